"""A list of messages that a client sends, in any API's form, and the handle that replaces its compacted part.

`encrypted_content` is the vendors' name for the handle, which a client returns unchanged. Here it is plain text,
neither secret nor encrypted: everything that it replaces is stored in its session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Self
from uuid import UUID

from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen, names_of
from app.domain.types import Content, JsonObject, Message, Role, SessionId, SummaryId, ToolCall


@frozen
class IncomingMessage:
    """A message of a client's list that is not an instruction. `place` is its index in that list, `name` the speaker,
    and `said_at` the time; both are None if the client does not give them. `reasoning` is as in `Message`; it counts
    only if the session does not have the message, because its own copy may have more."""

    place: int
    role: Role
    content: Content
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    said_at: datetime | None = None
    reasoning: str | None = None
    reasoning_blocks: tuple[JsonObject, ...] = ()

    @classmethod
    def of_stored(cls, place: int, message: Message) -> Self:
        return cls(place=place, **{name: getattr(message, name) for name in names_of(cls) if name != "place"})


@frozen
class IncomingList:
    """A whole list: the texts of its system and developer messages, and its other messages, with a `compaction` only
    those that count in addition to it."""

    directions: tuple[str, ...]
    messages: tuple[IncomingMessage, ...]
    compaction: Compaction | None = None

    @classmethod
    def of(
        cls,
        directions: Iterable[str],
        messages: Sequence[IncomingMessage],
        before: Sequence[IncomingMessage] = (),
        compaction: Compaction | None = None,
    ) -> Self:
        """The list without blank directions. If its last `compaction` comes after all `messages`, the client wants an
        answer to what it sent last: what is `before` the compaction and after the assistant's last message there."""
        replied = next((at for at in range(len(before), 0, -1) if before[at - 1].role == "assistant"), 0)
        return cls(tuple(text for text in directions if text.strip()), tuple(messages or before[replied:]), compaction)

    @property
    def instructions(self) -> str | None:
        return "\n\n".join(self.directions) or None


_HANDLE = re.compile(r"session_([0-9a-f]{32})_turn_([0-9]{1,12})(?:_summary_([0-9a-f]{32}))?")


@frozen
class Compaction:
    """A session as it was at one of its turns, and the summary that was made then, if there was one."""

    session_id: SessionId
    turn_seq: int
    summary_id: SummaryId | None = None

    @property
    def handle(self) -> str:
        summary = f"_summary_{self.summary_id.hex}" if self.summary_id else ""
        return f"session_{self.session_id.hex}_turn_{self.turn_seq}{summary}"


def read_handle(text: object, *where: str) -> Compaction:
    """The compaction that a handle names. Raises `InvalidRequest` at `where` if it is not a handle of this service."""
    found = _HANDLE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequest(
            "This compaction was not made by this service: its encrypted_content is none of its handles.", where
        )
    summary_id = SummaryId(UUID(found[3])) if found[3] else None
    return Compaction(SessionId(UUID(found[1])), int(found[2]), summary_id)
