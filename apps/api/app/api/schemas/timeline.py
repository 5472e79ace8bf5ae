"""A session's turns as points of a plot."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.api.schemas.context import Regions
from app.domain.types import TurnStatus


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
