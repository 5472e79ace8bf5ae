"""What the next turn would send."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from app.api.schemas.context import ContextOut, LaidOut
from app.api.schemas.turns import TurnIn


class PreviewIn(TurnIn):
    """A turn's body, as it would be posted. `stream` and `recorded_reply` change nothing."""


class PreviewOut(BaseModel):
    """What the next turn would have. `messages` and `tools` are empty where it would be refused."""

    seq: int = Field(description="The number that turn would get.")
    open_turn_id: UUID | None = Field(description="A turn that still runs or waits for tools, and has to end first.")
    summary_pending: bool = Field(description="A summary would be made first: here it is reckoned at its cap.")
    context: ContextOut
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    layout: list[LaidOut] = Field(description="One for each message.")
    estimated_prompt_cost_usd: float | None = Field(
        description="Of sending it once, at published prices, without a cache and without the summary; null where no "
        "price is known and where it would be refused."
    )
    refusal: dict[str, Any] | None = Field(description="The problem the turn would be answered with.")
