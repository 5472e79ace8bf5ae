"""What is answered of a session over time: its turns as points of a plot, its messages, and where turns stand now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.api.schemas import Regions, StoredCall
from app.domain.types import TurnStatus


class TurnNews(BaseModel):
    """Where a turn stands."""

    session_id: UUID
    turn_id: UUID
    seq: int
    status: TurnStatus
    model_alias: str
    created_at: datetime
    completed_at: datetime | None


class OpenTurns(BaseModel):
    items: list[TurnNews]
    next_cursor: None = None


class StoredMessageOut(BaseModel):
    """A message as it is stored; `token_estimate` is in `token_encoding`."""

    id: UUID
    turn_id: UUID
    turn_seq: int
    seq: int
    role: Literal["user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None
    tool_calls: list[StoredCall] | None
    tool_call_id: str | None
    token_estimate: int
    token_encoding: str
    created_at: datetime


class MessagePage(BaseModel):
    items: list[StoredMessageOut]
    next_cursor: str | None


class TimelineWindow(BaseModel):
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
    regions: Regions
    summary_trigger_tokens: int | None = Field(description="By the policy as it is now, and the turn's own.")
    prune_trigger_tokens: int | None
    prompt_sha256: str | None


class TimelineEvent(BaseModel):
    """Something that changed what was sent. `tokens` is what left the prompt, or what was recalled into it."""

    kind: Literal["summary", "later_summary", "prune", "recall", "overflow", "emergency"]
    tokens: int | None = None
    count: int | None = Field(default=None, description="Turns folded, or messages pruned, recalled, or dropped.")
    summary_id: UUID | None = None
    origin: str | None = None
    status: str | None = None


class TimelineTurn(BaseModel):
    """A turn as a point of a plot. `window` is null where no prompt was decided."""

    turn_id: UUID
    seq: int
    status: TurnStatus
    model_alias: str
    user_input: str = Field(description="Its beginning.")
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    created_at: datetime
    completed_at: datetime | None
    rounds: int
    attempts: int
    window: TimelineWindow | None
    events: list[TimelineEvent]


class TimelinePage(BaseModel):
    items: list[TimelineTurn]
    next_cursor: str | None
