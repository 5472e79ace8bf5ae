"""A list of messages that a client sends, whatever the form of its API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from app.domain.compaction import Compaction
from app.domain.types import Content, Message, Role, ToolCall


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

    @classmethod
    def of_stored(cls, place: int, message: Message) -> Self:
        """A stored message in a client's list: the same, without what the client is not shown of it."""
        calls, call_id = message.tool_calls, message.tool_call_id
        return cls(place, message.role, message.content, calls, call_id, message.name, message.said_at)


@dataclass(frozen=True, slots=True)
class IncomingList:
    """A whole list: its system and developer messages as one text, and all else in its order, or what of it counts
    beside its last compaction."""

    instructions: str | None
    messages: tuple[IncomingMessage, ...]
    compaction: Compaction | None = None


def beyond(before: Sequence[IncomingMessage], after: Sequence[IncomingMessage]) -> tuple[IncomingMessage, ...]:
    """What of a list counts beside its last compaction: what follows it. Where nothing does, the client wants an answer
    to what it sent last: what stands between the assistant's last message and the compaction."""
    if after:
        return tuple(after)
    replied = next((at for at in range(len(before), 0, -1) if before[at - 1].role == "assistant"), 0)
    return tuple(before[replied:])
