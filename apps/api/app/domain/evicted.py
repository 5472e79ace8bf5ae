"""What of a session's past is not in the raw window, and was found to match what its user says now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.types import Turn


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that matches. `score` is its BM25 score, `coverage` the rarity of the query's terms it has, summed."""

    seq: int
    score: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """What of the past is not in the raw window and may come back for the query `terms`.

    `turns` hold the messages that matched and their neighbours, in time order; a turn may be there in part. `hits`
    refer to them by `seq`. `messages` is how many were searched, `seen_in` how many of them have each term.
    """

    terms: tuple[str, ...]
    turns: tuple[Turn, ...] = ()
    hits: tuple[Hit, ...] = ()
    messages: int = 0
    seen_in: Mapping[str, int] = field(default_factory=dict[str, int])
