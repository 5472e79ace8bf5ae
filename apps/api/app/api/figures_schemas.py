"""Figures that stand in other answers: of a session and a pin in a list, and of a message in a prompt."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.domain.types import TurnStatus


class WindowFigures(BaseModel):
    """The prompt of the newest turn that had one, in tokens."""

    turn_id: UUID
    model_alias: str
    model_context_limit: int
    input_budget: int
    estimated_input_tokens: int
    estimated_wire_tokens: int


class SessionFigures(BaseModel):
    """Where a session stands. Token sums are the providers', summaries included."""

    turns: int
    state: TurnStatus | None = Field(description="Of the newest turn; null before the first.")
    first_input: str | None = Field(description="The beginning of the first message.")
    last_turn_id: UUID | None
    last_turn_at: datetime | None
    window: WindowFigures | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = Field(description="Of the calls that have a price; null where none has.")


class PinFigures(BaseModel):
    """What a pin costs in every prompt, and how relevant it is: where pins have to be trimmed, the least goes first."""

    tokens: int = Field(description="As it stands in a prompt, without framing.")
    relevance: float = Field(description="0 to 1.")
    relevance_from: Literal["given", "computed"] = Field(
        description="Computed: its words against the room goal's and those of the newest message."
    )


class LaidOut(BaseModel):
    """Where a message of a prompt stands and what it costs, without framing."""

    region: str | None = Field(description="Null for prompts that were sent before this was recorded.")
    tokens: int
    message_id: UUID | None = Field(description="The stored message; null for what is none.")
    turn_id: UUID | None
    shortened: bool
