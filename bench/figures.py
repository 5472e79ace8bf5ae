"""The arithmetic: medians, percentiles, pairwise ratios, floors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the smallest and largest value beside it."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Batch:
    """One measured batch of turns. CPU is in milliseconds a turn; `postgres_cpu_ms` is None for a server elsewhere.

    `case` is the case's name; `prompt_tokens` and `recalled` messages are means of a turn.
    """

    target: str
    case: str
    concurrency: int
    turns: int
    wall_s: float
    cpu_ms: float
    postgres_cpu_ms: float | None
    latencies_ms: tuple[float, ...]
    prompt_tokens: float
    recalled: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its aim and its floor; both are upper bounds, `floor` is the one that fails a run."""

    name: str
    value: float
    aim: float
    floor: float

    @property
    def holds(self) -> bool:
        return self.value <= self.floor


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` (0..1] of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def pairwise_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Ratios of batches of the same round, so that a slow minute of the machine is in both or in neither."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def select(batches: Sequence[Batch], target: str, case: str, concurrency: int) -> list[Batch]:
    """The batches of one cell, in the order of the rounds."""
    wanted = (target, case, concurrency)
    return [batch for batch in batches if (batch.target, batch.case, batch.concurrency) == wanted]


def judge(reached: Mapping[str, float], floors: Mapping[str, Mapping[str, float]]) -> list[Verdict]:
    """One verdict for each floor whose figure was measured in this run."""
    return [
        Verdict(name, reached[name], bounds["aim"], bounds["floor"])
        for name, bounds in floors.items()
        if name in reached
    ]
