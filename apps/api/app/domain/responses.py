"""Responses in OpenAI's form: ids, what is kept of a request for one, and one as it is read back.

An id is made of ours and states where to look: a session, and a message's number in it. A response is named by the
number of its reply, which is set aside before the model is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

from app.domain.types import FinishReason, JsonObject, Message, SessionId, SummaryId, TurnId, TurnStatus, Usage

ItemPrefix: TypeAlias = Literal["msg", "fc", "fco", "rs"]

_CONVERSATION = re.compile(r"conv_([0-9a-f]{32})")
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{12})")
_ITEM = re.compile(r"(?:msg|fc|fco|rs)_([0-9a-f]{32})([0-9a-f]{12})(?:[0-9a-f]{4})?")


@dataclass(frozen=True, slots=True)
class ResponseRef:
    """Whose reply, and its message's number."""

    session_id: SessionId
    reply_seq: int


def conversation_id(session_id: UUID) -> str:
    """A session as a conversation."""
    return f"conv_{session_id.hex}"


def response_id(ref: ResponseRef) -> str:
    """A reply as a response."""
    return f"resp_{ref.session_id.hex}{ref.reply_seq:012x}"


def item_id(prefix: ItemPrefix, session_id: UUID, seq: int, place: int | None = None) -> str:
    """An item of a message; `place` distinguishes the calls of one message."""
    return f"{prefix}_{session_id.hex}{seq:012x}{'' if place is None else f'{place:04x}'}"


def read_conversation_id(text: str) -> SessionId | None:
    """The session that an id names; None for what can be no such id."""
    found = _CONVERSATION.fullmatch(text)
    return SessionId(UUID(found[1])) if found else None


def read_response_id(text: str) -> ResponseRef | None:
    """The response that an id names; None for what can be no such id."""
    found = _RESPONSE.fullmatch(text)
    return ResponseRef(SessionId(UUID(found[1])), int(found[2], 16)) if found else None


def read_item_id(text: str) -> tuple[SessionId, int] | None:
    """The session and the message's number of an item; None for what can be no such id."""
    found = _ITEM.fullmatch(text)
    return (SessionId(UUID(found[1])), int(found[2], 16)) if found else None


@dataclass(frozen=True, slots=True)
class ResponseNote:
    """What is kept of a request with the claim of its model call. `first_seq` is its input's first message.

    One that is not `is_stored` can not be fetched; it is only there for a retry of the same request.
    """

    request_sha256: str
    form: JsonObject
    created_at: datetime
    first_seq: int = 0
    is_stored: bool = True


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as its rows have it. `reply` is None while there is none, and where the call failed.

    `ends_turn` says that nothing of its turn came after the reply, `ends_session` that nothing of the session did.
    `last_turn_seq` is the session's newest turn number; `is_last_of_turn` that no later response is of the same turn.
    `summary_id` is the summary that was made for it, of a response whose request has a `context_management`.
    """

    ref: ResponseRef
    turn_id: TurnId
    turn_seq: int
    turn_status: TurnStatus
    last_turn_seq: int
    first_seq: int
    request_sha256: str
    form: JsonObject
    created_at: datetime
    model_alias: str
    reply: Message | None
    error: JsonObject | None
    finish_reason: FinishReason | None
    usage: Usage | None
    is_last_of_turn: bool
    ends_turn: bool
    ends_session: bool
    summary_id: SummaryId | None
