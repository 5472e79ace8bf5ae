"""`/v1/completions`: OpenAI's older form, for clients that still use it. A prompt is the user's message of a turn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import SESSION_HEADER, IdempotencyKey, openai_refusals, session_answers
from app.api.routes.chat import (
    ChatForm,
    RetryCount,
    SessionHeader,
    answer_list,
    named_session,
    provider_options,
)
from app.api.routes.turns import request_sha256
from app.api.schemas.chat import ChatUsage, StreamOptions
from app.api.schemas.values import In
from app.domain.errors import NotFound
from app.domain.incoming import IncomingMessage
from app.domain.types import JsonObject, Name
from app.services.openai.chat import ChatRequest
from app.services.openai.open_session import open_session
from app.services.turn.types import TurnOptions, TurnOutcome

_ANSWERS = session_answers("The completion, or with `stream: true` its chunks", {"type": "string"})

router = APIRouter(prefix="/v1/completions", tags=["chat"], route_class=DirectRoute)


_Text = Annotated[str, StringConstraints(min_length=1)]


class CompletionIn(In):
    """A request of OpenAI's completions. A field that is not listed is refused, for it would be without effect."""

    model: Name = Field(description="An alias of the catalogue.")
    prompt: _Text | Annotated[list[_Text], Field(min_length=1, max_length=1)] = Field(
        description="The user's message of a turn; one text."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Clamped to the output reserve.")
    # Passed on to the provider.
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: int | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    # Taken at the one value that this service can give.
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Literal[0] | None = None
    suffix: Literal[""] | None = None
    # Taken without effect.
    user: str | None = None


class CompletionChoice(BaseModel):
    index: Literal[0]
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length", "content_filter"]


class TextCompletion(BaseModel):
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str = Field(description="The alias that answered: a fallback's, where the requested one was down.")
    choices: list[CompletionChoice]
    usage: ChatUsage | None = None
    system_fingerprint: Any = None


@router.post("", response_model=TextCompletion, responses=_ANSWERS | openai_refusals())
async def create_completion(
    call: Call,
    body: CompletionIn,
    x_session_id: SessionHeader = None,
    idempotency_key: IdempotencyKey = None,
    x_stainless_retry_count: RetryCount = None,
) -> Response:
    """Answers a prompt in OpenAI's older form, as a turn of the session that the header names, or of a new one."""
    rt = call.rt
    if body.model not in rt.catalogue.aliases:
        raise NotFound("model")
    request = _request(call.raw_body, body, is_retry=x_stainless_retry_count not in (None, "0"))
    named = named_session(x_session_id, None)
    session_id, request = await open_session(rt, call.tenant_id, named, request, idempotency_key)
    call.note(session_id=str(session_id))
    form = CompletionForm(
        completion_id=f"cmpl-{rt.new_id().hex}",
        created=int(rt.now().timestamp()),
        model=body.model,
        headers={SESSION_HEADER: str(session_id)},
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    return await answer_list(call, session_id, request, idempotency_key, form, stream=bool(body.stream))


class CompletionForm(ChatForm):
    """The same with a text in the place of a message."""

    kind = kind_of_chunk = "text_completion"
    field = "prompt"

    def reply(self, outcome: TurnOutcome) -> JsonObject:
        return {"text": outcome.text or ""}

    def piece(self, delta: JsonObject) -> JsonObject:
        return {"text": delta.get("content") or ""}


def _request(raw: JsonObject, body: CompletionIn, *, is_retry: bool) -> ChatRequest:
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    return ChatRequest(
        messages=(IncomingMessage(0, "user", prompt),),
        options=TurnOptions(max_output_tokens=body.max_tokens, provider_options=provider_options(raw)),
        model_alias=body.model,
        request_sha256=request_sha256({name: value for name, value in raw.items() if name != "stream_options"}),
        is_retry=is_retry,
        all_new=True,
        within="prompt",
    )
