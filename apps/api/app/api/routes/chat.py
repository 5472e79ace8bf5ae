"""`/v1/chat/completions`: OpenAI's chat completions; each request is a turn of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header
from starlette.responses import Response

from app.api import problems
from app.api.chat_form import ChatForm
from app.api.direct_route import UUID_TEXT, Call, DirectRoute, json_response
from app.api.openapi import IdempotencyKey, event_stream, openai_refusals
from app.api.routes.turns import check_tool_choice, request_sha256
from app.api.schemas.chat import ChatCompletion, ChatIn
from app.api.streaming import stream_turn
from app.domain.errors import InvalidRequest, NotFound, PlimsollError
from app.domain.types import CHAT_OPTIONS, JsonObject, SessionId
from app.openai.chat_messages import read_messages
from app.services.openai.chat import ChatRequest, complete_chat, open_session
from app.services.turn.types import TurnOptions

SESSION_HEADER = "X-Session-Id"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion, or with `stream: true` its chunks; `X-Session-Id` names the session.",
        "content": event_stream({}),
        "headers": {SESSION_HEADER: {"schema": {"type": "string", "format": "uuid"}}},
    }
}
# A value that means the same as its absence is not sent: not every provider knows the option.
_DEFAULTS: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "stop": [],
}

SessionHeader = Annotated[
    str | None,
    Header(alias=SESSION_HEADER, description="The session; without it one is created and named in the answer."),
]
RetryCount = Annotated[str | None, Header(alias="X-Stainless-Retry-Count", include_in_schema=False)]


router = APIRouter(prefix="/v1/chat", tags=["chat"], route_class=DirectRoute)


@router.post("/completions", response_model=ChatCompletion, responses=_ANSWERS | openai_refusals())
async def create_chat_completion(
    call: Call,
    body: ChatIn,
    x_session_id: SessionHeader = None,
    idempotency_key: IdempotencyKey = None,
    x_stainless_retry_count: RetryCount = None,
) -> Response:
    """Answers a list of messages in OpenAI's form, within the token budget, as a turn of a stored session."""
    rt, tenant_id = call.rt, call.tenant_id
    if body.model not in rt.catalogue.aliases:
        raise NotFound("model")
    check_tool_choice(body)
    request = _request(call.raw_body, body, is_retry=x_stainless_retry_count not in (None, "0"))
    session_id = await open_session(rt, tenant_id, _named_session(x_session_id, body), request, idempotency_key)
    call.note(session_id=str(session_id))
    form = ChatForm(
        completion_id=f"chatcmpl-{rt.new_id().hex}",
        created=int(rt.now().timestamp()),
        model=body.model,
        headers={SESSION_HEADER: str(session_id)},
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    try:
        if body.stream:
            return await stream_turn(
                call,
                session_id,
                lambda listen: complete_chat(rt, tenant_id, session_id, request, idempotency_key, listen),
                form,
            )
        outcome = await complete_chat(rt, tenant_id, session_id, request, idempotency_key)
    except PlimsollError as error:
        return problems.answer_to(call.scope["path"], error, form.headers)
    call.note(turn_id=str(outcome.turn.id))
    answer = json_response(form.whole(outcome))
    answer.headers.update(form.headers)
    return answer


def _request(raw: JsonObject, body: ChatIn, *, is_retry: bool) -> ChatRequest:
    listed = read_messages(raw["messages"])
    return ChatRequest(
        messages=listed.messages,
        options=TurnOptions(
            tools=tuple(raw.get("tools") or ()),
            tool_choice=raw.get("tool_choice"),
            max_output_tokens=body.max_completion_tokens or body.max_tokens,
            instructions=listed.instructions,
            provider_options=provider_options(raw),
        ),
        model_alias=body.model,
        request_sha256=request_sha256({name: value for name, value in raw.items() if name != "stream_options"}),
        is_retry=is_retry,
    )


def provider_options(options: Mapping[str, Any]) -> JsonObject:
    """The options of a body, by the names of chat completions, that a provider needs: none at its default."""
    given = {name: options[name] for name in CHAT_OPTIONS & options.keys() if options[name] is not None}
    return {name: value for name, value in given.items() if _DEFAULTS.get(name) != value}


def _named_session(header: str | None, body: ChatIn) -> SessionId | None:
    member = body.metadata.session_id if body.metadata else None
    if header and member and header != member:
        raise InvalidRequest(f"The header {SESSION_HEADER} names another session.", ("body", "metadata", "session_id"))
    named = header or member
    if named is None:
        return None
    if not UUID_TEXT.fullmatch(named):
        raise NotFound("session")
    return SessionId(UUID(named))
