"""Messages as they are stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel

from app.api.schemas.content import StoredCall


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
