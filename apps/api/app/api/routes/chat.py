"""`/v1/chat/completions`: OpenAI's chat completions, whole or in chunks. Each request is a turn of a session.

`/v1/completions` is OpenAI's older form, for clients that still use it: its prompt is the user's message of a turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Header
from starlette.responses import Response

from app.api import problems
from app.api.direct_route import UUID_TEXT, Call, DirectRoute
from app.api.openapi import SESSION_HEADER, IdempotencyKey, session_answers
from app.api.routes.turns import chosen_tools, provider_options, request_sha256
from app.api.schemas.chat import ChatCompletion, ChatIn, CompletionIn, TextCompletion
from app.api.streaming import answer_turn
from app.domain.clock import without_times
from app.domain.content import canonical_bytes, custom_call_json, is_custom, tool_call_json, tool_name
from app.domain.errors import InvalidRequest, NotFound, PlimsollError
from app.domain.frozen import frozen, replace
from app.domain.incoming import IncomingMessage
from app.domain.types import JsonObject, SessionId, ToolCall, Usage
from app.openai.chat_messages import read_messages, with_calls
from app.openai.items import joined_directions
from app.openai.known_lists import known_list
from app.services.openai.chat import ChatRequest, answerable
from app.services.openai.open_session import Target, open_session, respond
from app.services.runtime import Runtime
from app.services.sessions import has_session
from app.services.turn.types import TurnEvent, TurnOptions, TurnOutcome

_ANSWERS = session_answers("The completion, or with `stream: true` its chunks", {})
_LONGEST_NAME = 200

_SHARED_ID = "ses_"
"""How ids of opencode begin. Others that are sent in both headers name a session: Fireworks has the second one too."""


@frozen
class RequestHeaders:
    """The session that a client names, or that it wants a new one, and the key of its request."""

    session_header: Annotated[
        str | None,
        Header(
            alias=SESSION_HEADER,
            description="The session's id, or a name that the client chooses; a new name creates a session. Without it "
            "the session is recognized by the messages before the newest ones, or created; the answer has its id.",
        ),
    ] = None
    affinity_header: Annotated[
        str | None,
        Header(
            alias="X-Session-Affinity",
            description="The client's id of a conversation, sent with each request, those for a title included. It "
            "selects no session: these are recognized among those of the id. opencode sends it as the session too.",
        ),
    ] = None
    is_new: Annotated[
        bool, Header(alias="X-Session-New", description="`true` creates a new session if the request names none.")
    ] = False
    idempotency_key: IdempotencyKey = None

    @property
    def session(self) -> str | None:
        """What selects the session: not an id of opencode, which sends it with the request for a title too."""
        named = self.session_header
        is_opencodes = named is not None and named == self.affinity_header and named.startswith(_SHARED_ID)
        return None if is_opencodes else named

    @property
    def affinity(self) -> str | None:
        """The id to which all lists of a conversation and of its side calls belong, if nothing selects the session."""
        return None if self.session else self.affinity_header or None


Headers = Annotated[RequestHeaders, Depends()]

router = APIRouter(prefix="/v1", tags=["chat"], route_class=DirectRoute)


@router.post("/chat/completions", response_model=ChatCompletion, responses=_ANSWERS)
async def create_chat_completion(call: Call, body: ChatIn, headers: Headers) -> Response:
    """Answers a list of messages in OpenAI's form, within the token budget, as a turn of a stored session."""
    check_model(call.rt, body.model)
    named = session_or_name(headers.session, body.metadata.session_id if body.metadata else None)

    def read() -> ChatRequest:
        request = _request(call, body, headers.idempotency_key)
        if named is not None or headers.is_new:
            return answerable(request)
        return answerable(recognizable(call, request, affinity=headers.affinity))

    request = await call.aside(read)
    return await _complete(call, body, named, request, ChatForm)


@router.post("/completions", response_model=TextCompletion, responses=_ANSWERS)
async def create_completion(
    call: Call,
    body: CompletionIn,
    x_session_id: Annotated[
        str | None,
        Header(
            alias=SESSION_HEADER,
            description="The session's id, or a name that the client chooses. Without it a session is created; the "
            "answer has its id.",
        ),
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers a prompt in OpenAI's older form, as a turn of the session in the header, or of a new one."""
    check_model(call.rt, body.model)
    raw: JsonObject = call.raw_body
    request = ChatRequest(
        messages=(IncomingMessage(0, "user", body.prompt if isinstance(body.prompt, str) else body.prompt[0]),),
        options=TurnOptions(max_output_tokens=body.max_tokens, provider_options=provider_options(raw)),
        model_alias=body.model,
        request_sha256=request_sha256(raw),
        idempotency_key=idempotency_key,
        is_retry=call.is_retry,
        all_new=True,
        within="prompt",
    )
    return await _complete(call, body, session_or_name(x_session_id, None), request, CompletionForm)


async def _complete(
    call: Call,
    body: ChatIn | CompletionIn,
    named: SessionId | str | None,
    request: ChatRequest,
    form_of: type[ChatForm],
) -> Response:
    target = await open_session(call.rt, call.tenant_id, named, request)
    form = form_of(call, body, target.session.id)
    answer = answer_turn(call, partial(respond, call.rt, target), form, stream=bool(body.stream))
    return await in_session(call, target, form.headers, answer)


def check_model(rt: Runtime, alias: str | None) -> None:
    """Raises `NotFound` if the catalogue does not have the alias."""
    if alias is not None and alias not in rt.catalogue.aliases:
        raise NotFound("model", "GET /v1/models lists the names.")


async def in_session(
    call: Call, target: Target, headers: Mapping[str, str], answering: Awaitable[Response]
) -> Response:
    """The answer. An error has the headers too, which name the session unless it was erased."""
    call.note(session_id=str(target.session.id))
    try:
        return await answering
    except PlimsollError as error:
        if target.request.keeping is not None:
            with suppress(PlimsollError):
                if not await has_session(call.rt, target.session):
                    headers = {name: value for name, value in headers.items() if name != SESSION_HEADER}
        return problems.answer_to(call.scope, error, headers)


def _request(call: Call, body: ChatIn, idempotency_key: str | None) -> ChatRequest:
    raw: JsonObject = call.raw_body
    listed = read_messages(raw["messages"])
    tools, tool_choice = chosen_tools(raw.get("tools") or (), raw.get("tool_choice"))
    return ChatRequest(
        messages=with_calls(listed.messages, set(filter(None, map(tool_name, tools)))),
        options=TurnOptions(
            tools=tools,
            tool_choice=tool_choice,
            max_output_tokens=body.max_completion_tokens or body.max_tokens,
            instructions=listed.instructions,
            provider_options=provider_options(raw) | (body.model_extra or {}),
        ),
        model_alias=body.model,
        request_sha256=request_sha256(raw),
        idempotency_key=idempotency_key,
        is_retry=call.is_retry,
        cache_key=own_cache_key(call),
    )


def own_cache_key(call: Call) -> str | None:
    """The key for the provider's cache that stands for the body's `prompt_cache_key`. Tenants have different keys."""
    given = call.raw_body.get("prompt_cache_key")
    return sha256(canonical_bytes([call.tenant_id, given])).hexdigest()[:32] if given else None


def recognizable(
    call: Call, request: ChatRequest, conversation: str | None = None, affinity: str | None = None
) -> ChatRequest:
    """The request with what its session is recognized by, if the deployment recognizes sessions: tenant and API key,
    model, instructions without the dates and times in them, the person whose request it is, if the client says so, and
    messages. Requests with different API keys or persons never share a session in this way.

    If the client has its own id for the conversation, it replaces the instructions, which may then differ, and the
    person. An id in the header of affinity, which may be that of a node, does not replace the person.
    """
    if not call.rt.recognizes_sessions:
        return request
    raw: JsonObject = call.raw_body
    metadata: JsonObject = raw.get("metadata") or {}
    key = (call.exchange.credential or b"").decode("latin-1")
    person = raw.get("user") or raw.get("safety_identifier") or metadata.get("user_id")
    of_person = (None, str(person)) if person else ()
    if conversation is not None:
        own = (None, conversation)
    elif affinity is not None:
        own = (None, affinity, *of_person[1:])
    else:
        instructions = joined_directions(request.options.instructions, request.directions)
        own = (instructions and without_times(instructions), *of_person)
    owner = (call.tenant_id, key, request.model_alias, *own)
    known = known_list(owner, request.messages)
    return replace(request, known=known, options=replace(request.options, list_sha256=known.whole))


def session_or_name(header: str | None, member: str | None) -> SessionId | str | None:
    """The session's id, or the client's own name for it, from the header or the body's `metadata.session_id`.

    Raises `InvalidRequest`.
    """
    if header and member and header != member:
        raise InvalidRequest(f"The header {SESSION_HEADER} names another session.", ("body", "metadata", "session_id"))
    named = header or member
    if not named:
        return None
    if UUID_TEXT.fullmatch(named):
        return SessionId(UUID(named))
    if len(named) > _LONGEST_NAME or not named.isprintable():
        where = ("header", SESSION_HEADER) if header else ("body", "metadata", "session_id")
        raise InvalidRequest(f"A session's name has at most {_LONGEST_NAME} printable characters.", where)
    return named


DONE = b"data: [DONE]\n\n"


class ChatForm:
    """One answer. Its id is for this answer alone: a turn with tools has one for each of its rounds."""

    id_prefix = "chatcmpl"
    kind = "chat.completion"
    kind_of_chunk = "chat.completion.chunk"
    streamed = ("reasoning_content", "content", "refusal")
    """The members that are streamed as they arrive."""

    def __init__(self, call: Call, body: ChatIn | CompletionIn, session_id: SessionId) -> None:
        self.headers: Mapping[str, str] = {SESSION_HEADER: str(session_id)}
        self._path: str = call.scope["path"]
        self._id = f"{self.id_prefix}-{call.rt.new_id().hex}"
        self._created = int(call.rt.now().timestamp())
        self._model = body.model
        tools: list[JsonObject] = call.raw_body.get("tools") or []
        self._custom_names = {tool_name(tool) for tool in tools if is_custom(tool)}
        self._include_usage = bool(body.stream_options and body.stream_options.include_usage)

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        choice = {"index": 0, **self.reply(outcome), "logprobs": None, "finish_reason": _finish_reason(outcome)}
        return {
            "id": self._id,
            "object": self.kind,
            "created": self._created,
            "model": outcome.turn.model_alias,
            "choices": [choice],
            "usage": _usage(outcome.completion.usage),
        }

    def reply(self, outcome: TurnOutcome) -> JsonObject:
        """The members of a choice that have the model's reply."""
        calls = list(map(self._call, outcome.completion.tool_calls))
        return {"message": {"role": "assistant", **_content(outcome), **({"tool_calls": calls} if calls else {})}}

    def _call(self, call: ToolCall) -> JsonObject:
        return custom_call_json(call) if call.name in self._custom_names else tool_call_json(call)

    def piece(self, delta: JsonObject) -> JsonObject:
        """The members of a streamed choice that have a chunk of the reply."""
        return {"delta": delta}

    def event(self, event: TurnEvent) -> Iterable[bytes]:
        """The role when the context is assembled, then the model's reasoning and text."""
        if event.name == "context.assembled":
            yield self._chunk({"role": "assistant", "content": ""})
        else:
            refusal = event.data.get("refusal", "")
            text, reasoning = event.data.get("text", "").removesuffix(refusal), event.data.get("reasoning")
            given = {"reasoning_content": reasoning, "content": text, "refusal": refusal}
            yield from [self._chunk({member: given[member]}) for member in self.streamed if given[member]]

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """The text unless it was streamed, then the tool calls, each whole, the finish reason, and the end mark."""
        self._model = outcome.turn.model_alias  # a fallback, if the requested one was down
        if not streamed:
            yield self._chunk({"role": "assistant", **_content(outcome)})
        for index, call in enumerate(outcome.completion.tool_calls):
            yield self._chunk({"tool_calls": [{"index": index, **self._call(call)}]})
        yield self._chunk({}, _finish_reason(outcome))
        if self._include_usage:
            yield self._encoded({"choices": [], "usage": _usage(outcome.completion.usage)})
        yield DONE

    async def failure(self, problem: JsonObject) -> Iterable[bytes]:
        """An error event, and no end mark: the answer before it is incomplete."""
        return (b"data: %b\n\n" % orjson.dumps({"error": problems.error_of(self._path, problem)}),)

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, **self.piece(delta), "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return self._encoded({"choices": [choice], **usage})

    def _encoded(self, fields: JsonObject) -> bytes:
        chunk = {"id": self._id, "object": self.kind_of_chunk, "created": self._created, "model": self._model}
        return b"data: %b\n\n" % orjson.dumps(chunk | fields)


class CompletionForm(ChatForm):
    """The same with a text instead of a message."""

    id_prefix = "cmpl"
    kind = kind_of_chunk = "text_completion"
    streamed = ("content", "refusal")

    def reply(self, outcome: TurnOutcome) -> JsonObject:
        return {"text": outcome.text or ""}

    def piece(self, delta: JsonObject) -> JsonObject:
        return {"text": delta.get("content") or delta.get("refusal") or ""}


def _content(outcome: TurnOutcome) -> JsonObject:
    """The reply's text as `content`, or as `refusal` if it is one. OpenAI has no member for the reasoning; it has the
    name that DeepSeek, vLLM and others give it, which clients know."""
    reasoning = {"reasoning_content": outcome.completion.reasoning} if outcome.completion.reasoning else {}
    if outcome.completion.finish_reason == "refusal":
        return {"content": None, "refusal": outcome.text, **reasoning}
    return {"content": outcome.text, "refusal": None, **reasoning}


def _usage(usage: Usage | None) -> JsonObject | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_completion_tokens},
    }


def _finish_reason(outcome: TurnOutcome) -> str:
    reason = outcome.turn.finish_reason
    if reason in ("length", "content_filter"):
        return reason  # also of an answer with calls, the last of which may be cut off
    return "tool_calls" if outcome.completion.tool_calls else "stop"
