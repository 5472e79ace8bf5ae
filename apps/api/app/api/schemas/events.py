"""Where turns stand now."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel

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
