"""Responses in OpenAI's form: their ids, what is stored of a request for one, a response as it is read, and how long a
session is kept that is made for one.

An id contains a session's id and the `seq` of a message in it. A response has the `seq` of its reply, which is reserved
before the model is called.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from app.domain.frozen import frozen
from app.domain.types import FinishReason, JsonObject, Message, SessionId, SummaryId, TurnId, TurnStatus, Usage

ItemPrefix: TypeAlias = Literal["msg", "fc", "fco", "rs"]

_CONVERSATION = re.compile(r"conv_([0-9a-f]{32})")
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{12})")
_ITEM = re.compile(r"(?:msg|(fc)|fco|rs)_([0-9a-f]{32})([0-9a-f]{12})(?(1)[0-9a-f]{4})")


class Lifetime(StrEnum):
    """How long a session is kept that is made for a request: until it is deleted, or until its last response is, or for
    the request's answer only."""

    UNTIL_DELETED = "until_deleted"
    WITH_RESPONSES = "with_responses"
    FOR_ANSWER = "for_answer"


@frozen
class ResponseRef:
    """A reply, by its session and the `seq` of its message."""

    session_id: SessionId
    reply_seq: int


def conversation_id(session_id: UUID) -> str:
    return f"conv_{session_id.hex}"


def response_id(ref: ResponseRef) -> str:
    return f"resp_{ref.session_id.hex}{ref.reply_seq:012x}"


def item_id(prefix: ItemPrefix, session_id: UUID, seq: int, place: int | None = None) -> str:
    """The id of a message's item; `place` distinguishes the calls of one message."""
    return f"{prefix}_{session_id.hex}{seq:012x}{'' if place is None else f'{place:04x}'}"


def read_conversation_id(text: str) -> SessionId | None:
    """The session that an id names; None if the text is not such an id."""
    found = _CONVERSATION.fullmatch(text)
    return SessionId(UUID(found[1])) if found else None


def read_response_id(text: str) -> ResponseRef | None:
    """The response that an id names; None if the text is not such an id."""
    found = _RESPONSE.fullmatch(text)
    return ResponseRef(SessionId(UUID(found[1])), int(found[2], 16)) if found else None


def read_item_id(text: str) -> tuple[SessionId, int] | None:
    """The session and the message `seq` of an item's id; None if the text is not such an id."""
    found = _ITEM.fullmatch(text)
    return (SessionId(UUID(found[2])), int(found[3], 16)) if found else None


@frozen
class ResponseNote:
    """What is stored of a request when its model call is claimed. `first_seq` is the `seq` of its first input message.
    Without `is_stored` the note is only for a retry of the same request."""

    request_sha256: str
    form: JsonObject
    created_at: datetime
    first_seq: int = 0
    is_stored: bool = True


@frozen
class StoredResponse:
    """A response as it is stored. `reply` is None before the model has answered, and if the call failed. `ends_turn`
    and `ends_session` say that nothing of these follows the reply, `is_last_of_turn` that no later response does.
    `last_message_seq` is the session's. `summary_id` was made for a request with a `context_management`."""

    ref: ResponseRef
    turn_id: TurnId
    turn_seq: int
    turn_status: TurnStatus
    last_message_seq: int
    first_seq: int
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
