"""What a plan took from its window, one by one, and the ranges in which a trim log names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.trim_log import TrimAction, TrimKind


@dataclass(frozen=True, slots=True)
class Removal:
    """A single action. `first_seq` and `last_seq` are of the turn, or of the messages that stay or go together, that it
    took something from; 0 for what has none."""

    kind: TrimKind
    target: str
    reason: str
    tokens_removed: int
    first_seq: int = 0
    last_seq: int = 0


def in_ranges(removals: Iterable[Removal]) -> tuple[TrimAction, ...]:
    """The actions of a log: one for all of a kind and reason that has a place in the conversation."""
    groups: dict[object, list[Removal]] = {}
    for at, removal in enumerate(removals):
        noun = removal.target.partition(":")[0]
        groups.setdefault((removal.kind, removal.reason, noun) if removal.first_seq else at, []).append(removal)
    return tuple(map(_as_one, groups.values()))


def _as_one(removals: Sequence[Removal]) -> TrimAction:
    one = removals[0]
    if len(removals) == 1:
        return TrimAction(one.kind, one.target, one.reason, one.tokens_removed)
    first, last = min(each.first_seq for each in removals), max(each.last_seq for each in removals)
    target = f"{one.target.partition(':')[0]}s:{first}-{last}"
    return TrimAction(one.kind, target, one.reason, sum(each.tokens_removed for each in removals), len(removals))
