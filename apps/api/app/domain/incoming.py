"""A list of messages that a client sends, whatever the form of its API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.types import Content, Role, ToolCall


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message of a client's list that is no instruction. `place` is its index in that list, `name` who spoke, and
    `said_at` when, where the client says so."""

    place: int
    role: Role
    content: Content
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IncomingList:
    """A whole list: its system and developer messages as one text, and all else in its order."""

    instructions: str | None
    messages: tuple[IncomingMessage, ...]
