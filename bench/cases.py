"""What a run measures: kinds of sessions, and how many turns of each a batch takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from bench.filling import MANDATORY_SUMMARY_TURN
from bench.programs import LARGE_MODEL_ALIAS, MODEL_ALIAS

SERVICE: Final = "service"
BARE: Final = "bare"
REMEMBERING: Final = "remembering"
"""The bare handler with recall and summaries of its own."""
SUMMARIZING: Final = frozenset({SERVICE, REMEMBERING})
"""The targets whose summaries are rows of the service's table; those of other libraries are not."""

Kind: TypeAlias = Literal["default", "plain", "window"]

_PLAIN: Final[Mapping[str, object]] = {"recall": {"enabled": False}, "auto_summarize": False}
_PLAIN_RAW_TURNS: Final = 5
_PLAIN_TURNS: Final = 7
"""Between two summaries at the default settings: the raw window grows from 5 to 11 turns."""
DEFAULT_SESSIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """Sessions of one kind, with `length` turns when the run begins.

    `policy` is what they override of the defaults. With `raw_turns` their raw window has so many turns before every
    batch, and nothing is summarized; without, the service makes its own summaries, and a batch is whole cycles of them.
    """

    kind: Kind
    length: int
    policy: Mapping[str, object]
    turns: int
    sessions: int
    raw_turns: int | None = None
    model_alias: str = MODEL_ALIAS

    @property
    def name(self) -> str:
        """`default 300`: its length in turns, or of a window its size in messages."""
        return f"{self.kind} {self.size:,}"

    @property
    def size(self) -> int:
        """What tells cases of a kind apart."""
        return 2 * self.raw_turns if self.kind == "window" and self.raw_turns is not None else self.length


def default_case(length: int) -> Case:
    """All as it is when nothing is set: recall, and a summary every eight turns."""
    return Case("default", length, {}, MANDATORY_SUMMARY_TURN, DEFAULT_SESSIONS)


def plain_case(length: int) -> Case:
    """Without recall and summaries, in the window that the default has between two summaries."""
    return Case("plain", length, _PLAIN, _PLAIN_TURNS, 16, _PLAIN_RAW_TURNS)


def window_case(messages: int) -> Case:
    """A raw window of so many messages, all of them sent."""
    raw_turns = messages // 2
    return Case("window", raw_turns + 40, _PLAIN, 2, DEFAULT_SESSIONS, raw_turns, LARGE_MODEL_ALIAS)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: batches of cases, with `once` what is measured once, with `memory` the resident size too."""

    cases: tuple[Case, ...]
    concurrencies: tuple[int, ...]
    rounds: int
    provider_latency_ms: float = 0.0
    once: bool = False
    memory: bool = False

    def of_kind(self, kind: Kind) -> list[Case]:
        """Its cases of a kind, in the order of the plan."""
        return [case for case in self.cases if case.kind == kind]

    def concurrencies_of(self, case: Case) -> tuple[int, ...]:
        """Large windows are measured one turn at a time."""
        return self.concurrencies[:1] if case.kind == "window" else self.concurrencies
