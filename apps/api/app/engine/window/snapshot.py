"""All that a decision depends on, and what a turn's decisions have removed: as actions, and as ranges of a trim log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import floor
from typing import NamedTuple

import orjson

from app.domain.audit import TrimAction, TrimKind
from app.domain.frozen import frozen, replace
from app.domain.recalled import Recalled
from app.domain.types import Pin, Summary, ToolDefinition, Turn
from app.engine.policy.budget import Budget, part_of
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import Evicted
from app.engine.recall.vectors import Meaning
from app.engine.summary.summarizer_prompt import anchors_of
from app.engine.window.look_back import LOOK_BACK
from app.engine.window.past import Past


class Removal(NamedTuple):
    """A single action. `first_seq` and `last_seq` are the number of the turn that it changed, or the numbers of the
    first and last message of the piece that it changed; 0 if it has no place in a range of the log."""

    kind: TrimKind
    target: str
    reason: str
    tokens_removed: int
    first_seq: int = 0
    last_seq: int = 0


@frozen
class PlanLog:
    """What was done to a turn's window since the turn's first plan: `stored` with a summary, which no later plan of the
    turn can undo, and `actions` of the stages on this window.

    `wire_before`, `tokens_before` and `tools_tokens` are the tokens of the window at the first plan, on the wire and
    against the input budget, and of its tools; `tokens_after_summary` its input tokens when it was last laid out.
    """

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    tools_tokens: int
    summary_triggered: bool = False
    stored: tuple[Removal, ...] = ()
    actions: tuple[Removal, ...] = ()
    recalled: tuple[Recalled, ...] = ()

    @property
    def prune_triggered(self) -> bool:
        """Whether something was removed other than by a summary."""
        return any(action.kind != "summary_folded" for action in (*self.stored, *self.actions))

    def without_stages(self) -> PlanLog:
        """The log from which another plan of the same turn continues."""
        return replace(self, actions=(), recalled=())


@frozen(slots=False)
class Snapshot:
    """All that a decision may depend on, as read in one transaction, and the policy that it follows.

    `layers` are the active system layers as (label, text), outermost first. `past` has the turns after the active
    summary; `current` is the running turn, whose first message is the user's. `completed_since_summary` counts turns
    since the active summary or a restart of the count. `evicted` has the matching messages from before the window; a
    caller that replaces turns by a summary must search again. `pin_meaning` has the vectors of pins, by position. `log`
    is what earlier plans of the turn did. With `overflowed`, a provider rejected a prompt of the turn as too long.
    """

    policy: ContextPolicy
    budget: Budget
    layers: tuple[tuple[str, str], ...]
    goal: str | None
    pins: tuple[Pin, ...]
    summary: Summary | None
    past: Past
    current: Turn
    tools: tuple[ToolDefinition, ...] = ()
    completed_since_summary: int = 0
    calibration_ratio: float = 1.0
    is_counted_exactly: bool = False
    """Whether the calibration is the ratio of the provider's own count of this prompt."""
    evicted: Evicted = Evicted()
    pin_meaning: Meaning | None = None
    log: PlanLog | None = None
    overflowed: bool = False
    may_look_back: bool = False

    @property
    def offers_look_back(self) -> bool:
        """Whether the look-back tool is among the tools. It is then the last one."""
        return bool(self.tools) and self.tools[-1] is LOOK_BACK

    @cached_property
    def chars_around(self) -> int:
        """Characters of all that is sent besides messages and the summary, which has a bound; for tools, bytes as JSON.
        A turn reads it several times, and its tools may be large."""
        chars = sum([len(text) for _, text in self.layers]) + sum([len(pin.content) for pin in self.pins])
        return chars + len(self.goal or "") + (len(orjson.dumps(self.tools)) if self.tools else 0)

    @cached_property
    def cited(self) -> frozenset[int]:
        """The first message numbers (`seq`) of the past pieces that the summary cites."""
        return self.past.pieces_citing(anchors_of(self.summary))

    @cached_property
    def protected_from(self) -> int:
        """The number (`seq`) of the first protected message; without a protected turn, the one after the past."""
        return self.past.seq_from(self.first_protected())

    def first_protected(self, end: int | None = None) -> int:
        """The position of the oldest protected turn if the past ended before the turn at position `end`."""
        share, room = self.policy.protected_share, self.policy.summarized_room(self.budget.input_budget)
        room_tokens = None if share is None else floor(part_of(share, room) / self.calibration_ratio)
        return self.past.first_protected(self.policy.protected_turns, room_tokens, end)


def in_ranges(removals: Iterable[Removal]) -> tuple[TrimAction, ...]:
    """The actions of a trim log. Removals of the same kind, reason and type of target become one action with a range,
    unless they have no `first_seq`."""
    groups: dict[object, list[Removal]] = {}
    for at, removal in enumerate(removals):
        noun = removal.target.partition(":")[0]
        groups.setdefault((removal.kind, removal.reason, noun) if removal.first_seq else at, []).append(removal)
    return tuple(map(_as_one, groups.values()))


def _as_one(removals: Sequence[Removal]) -> TrimAction:
    one, target = removals[0], removals[0].target
    if len(removals) > 1:
        first, last = min(each.first_seq for each in removals), max(each.last_seq for each in removals)
        target = f"{target.partition(':')[0]}s:{first}-{last}"
    return TrimAction(one.kind, target, one.reason, sum(each.tokens_removed for each in removals), len(removals))
