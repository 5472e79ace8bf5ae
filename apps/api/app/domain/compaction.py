"""What stands for the compacted part of a conversation in the lists of OpenAI's and Anthropic's clients.

`encrypted_content` is the vendors' name for what a client gives back as it is. Here it is a plain handle, neither
secret nor encrypted: everything that it stands for is stored in its session.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from app.domain.errors import InvalidRequest
from app.domain.types import SessionId, SummaryId

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
