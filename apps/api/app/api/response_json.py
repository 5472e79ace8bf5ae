"""Responses, conversations and lists of items as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from app.api import problems
from app.api.openai_errors import error_of
from app.domain.openai_ids import ResponseRef, conversation_id, response_id
from app.domain.responses import StoredResponse
from app.domain.types import Completion, FinishReason, JsonObject, Session, TurnStatus, Usage
from app.openai.items import reply_items
from app.services.openai.conversations import ItemPage
from app.services.openai.responses import is_running
from app.services.turn.types import TurnOutcome

Status: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
_INCOMPLETE: Mapping[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ERROR_CODES: Mapping[str, str] = {
    "rate_limit_exceeded": "rate_limit_exceeded",
    "insufficient_quota": "insufficient_quota",
    "context_length_exceeded": "context_length_exceeded",
    "provider_timeout": "server_error",
}


@dataclass(frozen=True, slots=True)
class ResponseOutcome:
    """What became of a response."""

    status: Status
    model: str
    output: tuple[JsonObject, ...] = ()
    usage: Usage | None = None
    incomplete: str | None = None
    error: JsonObject | None = None


def response_json(form: JsonObject, ref: ResponseRef, created_at: datetime, reply: ResponseOutcome) -> JsonObject:
    """The `response` object: `form` is the parts of the request that a response repeats."""
    return {
        "id": response_id(ref),
        "object": "response",
        "created_at": int(created_at.timestamp()),
        "status": reply.status,
        "error": reply.error,
        "incomplete_details": {"reason": reply.incomplete} if reply.incomplete else None,
        **form,
        "model": reply.model,
        "output": list(reply.output),
        "usage": usage_json(reply.usage),
    }


def stored_json(found: StoredResponse) -> JsonObject:
    """A stored response."""
    return response_json(found.form, found.ref, found.created_at, reply_of_stored(found))


def reply_of_stored(found: StoredResponse) -> ResponseOutcome:
    """What became of a stored response."""
    message = found.reply
    if message is not None:
        completion = Completion(
            text=message.content if isinstance(message.content, str) else None,
            finish_reason=(found.finish_reason if found.is_last_of_turn else None) or "stop",
            usage=found.usage,
            tool_calls=message.tool_calls,
            reasoning=message.reasoning,
        )
        return _reply(found.ref, found.model_alias, completion)
    if is_running(found):
        return ResponseOutcome("in_progress", found.model_alias)
    if found.turn_status is TurnStatus.CANCELLED and found.is_last_of_turn:
        return ResponseOutcome("cancelled", found.model_alias)
    problem = problems.complete(found.error if found.is_last_of_turn else None)
    return ResponseOutcome("failed", found.model_alias, error=response_error(problem))


def reply_of_outcome(outcome: TurnOutcome, ref: ResponseRef) -> ResponseOutcome:
    """What became of a response whose turn has just been stored."""
    if outcome.completion is None:
        raise LookupError("a turn that was answered before has no completion")
    return _reply(ref, outcome.turn.model_alias, outcome.completion)


def _reply(ref: ResponseRef, model: str, completion: Completion) -> ResponseOutcome:
    """The reply of a call that was answered. One that was cut off is incomplete, unless it calls tools."""
    calls = completion.tool_calls
    reason = None if calls else _INCOMPLETE.get(completion.finish_reason)
    status: Literal["completed", "incomplete"] = "incomplete" if reason else "completed"
    items = reply_items(ref.session_id, ref.reply_seq, completion.text, calls, completion.reasoning, status=status)
    return ResponseOutcome(status, model, tuple(items), completion.usage, reason)


def response_error(problem: JsonObject | None) -> JsonObject:
    """The `error` of a response that failed, by the codes that OpenAI has for it."""
    if problem is None:
        return {"code": "server_error", "message": "The call did not end; it was tried again."}
    error = error_of(problem, "input")
    return {"code": _ERROR_CODES.get(error["code"], "server_error"), "message": error["message"]}


def usage_json(usage: Usage | None) -> JsonObject | None:
    """The provider's figures; how many of the output's tokens were reasoning is not known."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": usage.cache_write_prompt_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def conversation_json(session: Session) -> JsonObject:
    """A session as a conversation."""
    return {
        "id": conversation_id(session.id),
        "object": "conversation",
        "created_at": int(session.created_at.timestamp()),
        "metadata": session.metadata,
    }


def list_json(page: ItemPage) -> JsonObject:
    """A page of items."""
    return {
        "object": "list",
        "data": page.items,
        "first_id": page.items[0]["id"] if page.items else None,
        "last_id": page.items[-1]["id"] if page.items else None,
        "has_more": page.has_more,
    }
