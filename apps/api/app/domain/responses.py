"""Responses in OpenAI's form: what is kept of a request for one, and one as it is read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.openai_ids import ResponseRef
from app.domain.types import FinishReason, JsonObject, Message, TurnId, TurnStatus, Usage


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
    """A response as its rows tell it. `reply` is None while there is none, and where the call failed.

    `ends_turn` says that nothing of its turn came after the reply, `ends_session` that nothing of the session did.
    `last_turn_seq` is the session's newest turn number; `is_last_of_turn` that no later response is of the same turn.
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
