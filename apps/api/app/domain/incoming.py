"""A list of messages that a client sends, whatever the form of its API, and what stands for its compacted part.

`encrypted_content` is the vendors' name for the latter, which a client gives back as it is. Here it is a plain handle,
neither secret nor encrypted: everything that it stands for is stored in its session.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID

from app.domain.errors import InvalidRequest
from app.domain.types import Content, Message, Role, SessionId, SummaryId, ToolCall


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


def after_compaction(
    before: Sequence[IncomingMessage], after: Sequence[IncomingMessage]
) -> tuple[IncomingMessage, ...]:
    """What of a list counts beside its last compaction: what follows it. Where nothing does, the client wants an answer
    to what it sent last: what stands between the assistant's last message and the compaction."""
    if after:
        return tuple(after)
    replied = next((at for at in range(len(before), 0, -1) if before[at - 1].role == "assistant"), 0)
    return tuple(before[replied:])


_HANDLE = re.compile(r"session_([0-9a-f]{32})_turn_([0-9]{1,12})(?:_summary_([0-9a-f]{32}))?")


@dataclass(frozen=True, slots=True)
class Compaction:
    """A session as it was when it had come to one of its turns, and the summary that was made then, if one was."""

    session_id: SessionId
    turn_seq: int
    summary_id: SummaryId | None = None

    @property
    def handle(self) -> str:
        """What a client gives back."""
        summary = f"_summary_{self.summary_id.hex}" if self.summary_id else ""
        return f"session_{self.session_id.hex}_turn_{self.turn_seq}{summary}"


def read_handle(text: object, *where: str) -> Compaction:
    """What a handle names. Raises `InvalidRequest` at `where` for what can be no handle of this service."""
    found = _HANDLE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequest("This compaction was not made by this service: its encrypted_content is no handle.", where)
    summary_id = SummaryId(UUID(found[3])) if found[3] else None
    return Compaction(SessionId(UUID(found[1])), int(found[2]), summary_id)
