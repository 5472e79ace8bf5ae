"""What a decision depends on, and what a turn's decisions have done so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from app.domain.types import JsonObject, Pin, Summary, ToolDefinition, Turn
from app.engine.policy.budget import Budget
from app.engine.recall.ranking import Evicted, Recalled
from app.engine.summary.fold import Fold

ShorteningKind: TypeAlias = Literal["tool_result_shortened", "assistant_shortened", "media_marked"]
TrimKind: TypeAlias = (
    ShorteningKind
    | Literal[
        "tool_group_dropped",
        "assistant_dropped",
        "turn_dropped",
        "history_drop",
        "pinned_trim",
        "pinned_drop",
        "summary_folded",
        "summary_shortened",
        "emergency_drop",
    ]
)


@dataclass(frozen=True, slots=True)
class TrimAction:
    """A decision. `target` is `message:<id>`, `turn:<id>`, `summary:<id>`, a pin's name, or `conversation_history` for
    turns that a shared-out window lost; `tokens_removed` is on the wire, and negative for what was added."""

    kind: TrimKind
    target: str
    reason: str
    tokens_removed: int

    def public(self) -> JsonObject:
        """The shape of an action in `context_trim_log`."""
        return {
            "kind": self.kind,
            "target": self.target,
            "reason": self.reason,
            "tokens_removed_est": self.tokens_removed,
        }


@dataclass(frozen=True, slots=True)
class TrimLog:
    """What was done to a turn's window since the turn's first plan, and what the window cost then.

    `wire_before` and `tokens_before` are the whole window's at the first plan, on the wire and charged to the input
    budget; `tokens_after_summary` is charged where the window was laid out last. `stored` are actions that are stored
    as a summary: no other plan of the turn can take them back. `actions` are what the stages did to this window.
    """

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    summary_triggered: bool = False
    stored: tuple[TrimAction, ...] = ()
    actions: tuple[TrimAction, ...] = ()
    recalled: tuple[Recalled, ...] = ()

    def without_stages(self) -> TrimLog:
        """The log that another plan of the same turn goes on from."""
        return replace(self, actions=(), recalled=())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may depend on, as gathered in one transaction.

    `layers` are the active system layers as (label, text), outermost first. `turns` are the past turns after the active
    summary, in time order; `current` is the running one, whose first message is the user's. `completed_since_summary`
    counts completed turns since the active summary was made or the count was restarted. `evicted` is what was found of
    the past before the window, `folded_now` are turns that have left the window since then. `log` is what earlier plans
    of the turn did, None before the first; with `overflowed` a provider refused what they sent as too long.
    """

    budget: Budget
    layers: tuple[tuple[str, str], ...]
    goal: str | None
    pins: tuple[Pin, ...]
    summary: Summary | None
    turns: tuple[Turn, ...]
    current: Turn
    tools: tuple[ToolDefinition, ...] = ()
    completed_since_summary: int = 0
    calibration_ratio: float = 1.0
    evicted: Evicted | None = None
    folded_now: tuple[Turn, ...] = ()
    log: TrimLog | None = None
    overflowed: bool = False

    def with_summary(self, fold: Fold, summary: Summary, actions: Iterable[TrimAction] = ()) -> Snapshot:
        """The same with the summary in the place of the turns that it took in, and `actions` in the log for it."""
        folded = {turn.id for turn in fold.turns}
        left = tuple(turn for turn in self.turns if turn.id not in folded)
        log = self.log and replace(self.log, stored=(*self.log.stored, *actions))
        return replace(self, summary=summary, turns=left, folded_now=(*self.folded_now, *fold.turns), log=log)
