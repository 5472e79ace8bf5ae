"""Figures of sessions, pins, windows and turns as clients read them, for lists and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from app.domain.types import JsonObject, MessageId, SessionId, SummaryId, TurnId, TurnStatus


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """The prompt of the newest turn that had one, in tokens."""

    turn_id: TurnId
    model_alias: str
    model_context_limit: int
    input_budget: int
    estimated_input_tokens: int
    estimated_wire_tokens: int


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Where a session stands. Token sums are the providers', summaries included."""

    turns: int
    state: TurnStatus | None = field(metadata={"description": "Of the newest turn; null before the first."})
    first_input: str | None = field(metadata={"description": "The beginning of the first message."})
    last_turn_id: TurnId | None
    last_turn_at: datetime | None
    window: WindowFigures | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = field(metadata={"description": "Of the calls that have a price; null where none has."})


@dataclass(frozen=True, slots=True)
class PinFigures:
    """A pin's tokens in every prompt, and its relevance: if pins have to be trimmed, the least relevant is first."""

    tokens: int = field(metadata={"description": "As it stands in a prompt, without framing."})
    relevance: float = field(metadata={"description": "0 to 1."})
    relevance_from: Literal["given", "computed"] = field(
        metadata={"description": "Computed: a search for the room goal's words and those of the newest message."}
    )
    matched: Sequence[str] = field(metadata={"description": "Words of theirs that it has, where that is computed."})
    related: Sequence[JsonObject] = field(metadata={"description": "Related words of those that it has not."})
    similarity: float | None = field(
        metadata={"description": "How near its meaning is to the newest message's; null where it is not near."}
    )


@dataclass(frozen=True, slots=True)
class CurrentWindow:
    """The stored window, before the next message and before what that turn would compress. All figures are tokens."""

    model_alias: str
    model_context_limit: int
    context_limit_source: str
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens: int
    estimated_wire_tokens: int
    regions: Mapping[str, int]
    history_budget: int
    raw_turns: int = field(metadata={"description": "Turns that no summary stands for."})
    active_summary_id: SummaryId | None
    turns_to_next_summary: int | None = field(metadata={"description": "Null where the policy does not count turns."})
    summary_trigger_tokens: int | None = field(
        metadata={"description": "Null where the policy summarizes by no number of tokens."}
    )
    prune_trigger_tokens: int


@dataclass(frozen=True, slots=True)
class PointWindow:
    """The window of a turn's last call. All figures are tokens."""

    model_alias: str
    model_context_limit: int
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens_before: int
    estimated_input_tokens_after_summary: int
    estimated_input_tokens_after_prune: int
    estimated_wire_tokens: int
    calibration_ratio: float
    regions: Mapping[str, Any]
    summary_trigger_tokens: int | None = field(
        metadata={"description": "By the policy as it is now, and the turn's own."}
    )
    prune_trigger_tokens: int | None
    prompt_sha256: str | None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that changed what was sent. `tokens` is what left the prompt, or what was recalled into it."""

    kind: Literal["summary", "later_summary", "prune", "recall", "overflow", "emergency"]
    tokens: int | None = None
    count: int | None = field(
        default=None, metadata={"description": "Turns folded, or messages pruned, recalled, or dropped."}
    )
    summary_id: SummaryId | None = None
    origin: str | None = None
    status: str | None = None

    def public(self) -> JsonObject:
        """Its JSON, with figures and summary if the event has them."""
        figures = {} if self.count is None else {"count": self.count, "tokens": self.tokens}
        summary = {"summary_id": self.summary_id, "origin": self.origin, "status": self.status}
        return {"kind": self.kind, **figures, **(summary if self.summary_id else {})}


@dataclass(frozen=True, slots=True)
class TurnPoint:
    """A turn as a point of a plot. `window` is null where no prompt was decided."""

    turn_id: TurnId
    seq: int
    status: TurnStatus
    model_alias: str
    user_input: str = field(metadata={"description": "Its beginning."})
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    created_at: datetime
    completed_at: datetime | None
    rounds: int
    attempts: int
    window: PointWindow | None
    events: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class EventCounts:
    """In how many turns of a range something changed what was sent, by the kinds of events; and how many failed."""

    summary: int
    later_summary: int
    prune: int
    recall: int
    overflow: int
    emergency: int
    failed: int


@dataclass(frozen=True, slots=True)
class TimelineRange:
    """Turns `first_seq` through `last_seq` as one point of a plot. `peak` is the one with the largest prompt."""

    first_seq: int
    last_seq: int
    events: EventCounts
    peak: TurnPoint


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Where a message of a prompt stands and what it costs, without framing."""

    region: str | None = field(metadata={"description": "Null for prompts that were sent before this was recorded."})
    tokens: int
    message_id: MessageId | None = field(metadata={"description": "The stored message; null for what is none."})
    turn_id: TurnId | None
    shortened: bool
    turn_seq: int | None = field(default=None, metadata={"description": "The stored turn's number."})


@dataclass(frozen=True, slots=True)
class TurnChange:
    """Where a turn stands."""

    session_id: SessionId
    turn_id: TurnId
    seq: int
    status: TurnStatus
    model_alias: str
    created_at: datetime
    completed_at: datetime | None
