"""What a decision depends on, and what a turn's decisions have done so far: one by one, and in a trim log's ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor
from typing import NamedTuple

from app.domain.audit import TrimAction, TrimKind
from app.domain.recalled import Recalled
from app.domain.types import Pin, Summary, ToolDefinition, Turn
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import Evicted
from app.engine.recall.vectors import Meaning
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import anchors_of
from app.engine.window.look_back import LOOK_BACK
from app.engine.window.past import Past, first_seq


class Removal(NamedTuple):
    """A single action. `first_seq` and `last_seq` are of the turn, or of the messages that stay or go together, that it
    took something from; 0 for what has none."""

    kind: TrimKind
    target: str
    reason: str
    tokens_removed: int
    first_seq: int = 0
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class PlanLog:
    """What was done to a turn's window since the turn's first plan, and what the window cost then.

    `wire_before` and `tokens_before` are the whole window's at the first plan, on the wire and against the input
    budget; `tokens_after_summary` counts against it where the window was laid out last. `tools_tokens` are those of the
    tools that were offered then. `stored` are actions that
    are stored as a summary: no other plan of the turn can take them back. `actions` are what the stages did to this
    window.
    """

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    tools_tokens: int
    summary_triggered: bool = False
    stored: tuple[Removal, ...] = ()
    actions: tuple[Removal, ...] = ()
    recalled: tuple[Recalled, ...] = ()

    def without_stages(self) -> PlanLog:
        """The log that another plan of the same turn goes on from."""
        return replace(self, actions=(), recalled=())


@dataclass(frozen=True)
class Snapshot:
    """All that a decision may depend on, as read in one transaction, and the policy that it follows.

    `layers` are the active system layers as (label, text), outermost first. `past` are the turns after the active
    summary; `current` is the running one, whose first message is the user's. `completed_since_summary`
    counts completed turns since the active summary was made or the count was restarted. `evicted` is what was found of
    the past before the window; who puts a summary in the place of turns looks for it anew. `pin_meaning` has vectors of
    pins, by their places. `log` is what earlier plans
    of the turn did, None before the first; with `overflowed` a provider refused what they sent as too long. With
    `may_look_back` the model can be offered to read back what has left.
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
    evicted: Evicted | None = None
    pin_meaning: Meaning | None = None
    log: PlanLog | None = None
    overflowed: bool = False
    may_look_back: bool = False

    @property
    def offers_look_back(self) -> bool:
        """Whether the service's own tool is among the tools: it is the last then."""
        return bool(self.tools) and self.tools[-1] is LOOK_BACK

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The past turns in time order."""
        return self.past.turns

    @cached_property
    def cited(self) -> frozenset[int]:
        """The places (`seq`) of the past pieces that the summary cites."""
        return self.past.pieces_citing(anchors_of(self.summary))

    @cached_property
    def protected_from(self) -> int:
        """The `seq` from which on turns are protected."""
        return self.protected_from_before(None)

    def protected_from_before(self, end: int | None) -> int:
        """The same when the turns before `end` are the past."""
        return self.past.first_seq(self.first_protected(end)) or first_seq((self.current,))

    def first_protected(self, end: int | None = None) -> int:
        """The place of the oldest turn that is protected when the turns before `end` are the past."""
        share, room = self.policy.protected_share, self.policy.summarized_room(self.budget.input_budget)
        room_tokens = None if share is None else floor(share * room / self.calibration_ratio)
        return self.past.first_protected(self.policy.protected_turns, room_tokens, end)

    def with_summary(self, fold: Fold, summary: Summary, actions: Iterable[Removal] = ()) -> Snapshot:
        """The same with the summary in the place of the turns that it took in, and `actions` in the log for it."""
        past = self.past.without(fold.turns)
        log = self.log and replace(self.log, stored=(*self.log.stored, *actions))
        return replace(self, summary=summary, past=past, log=log)


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
