"""`/v1/responses`: OpenAI's Responses; each chain of responses is a session. `/v1/responses/compact`: summarizes a
conversation now, and returns an item that replaces it in the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute, json_response
from app.api.openapi import OPENAI_READ, SESSION_HEADER, PageOfItems, openai_refusals, session_answers
from app.api.response_json import SEALED, ResponseForm, compaction_json, list_json, stored_json
from app.api.routes.chat import (
    Headers,
    check_model,
    in_session,
    own_cache_key,
    recognizable,
    session_or_name,
)
from app.api.routes.turns import chosen_tools, provider_options, request_sha256
from app.api.schemas import responses as schemas
from app.api.schemas.items import DeletedOut, ItemListOut
from app.api.streaming import Work, answer_turn
from app.domain.errors import InvalidRequest, PlimsollError, existing, located
from app.domain.frozen import replace
from app.domain.responses import (
    Lifetime,
    ResponseNote,
    ResponseRef,
    conversation_id,
    read_conversation_id,
    read_response_id,
)
from app.domain.types import JsonObject, Message, SessionId
from app.openai.client_tools import chat_tools
from app.openai.items import read_items, references_of
from app.services.openai import responses
from app.services.openai.chat import ChatRequest, answerable
from app.services.openai.conversations import referenced
from app.services.openai.open_session import Target, respond
from app.services.openai.responses import ResponseRequest, compact, compaction_policy, resolve_target
from app.services.turn.types import Listener, TurnEvent, TurnOptions, TurnOutcome

_ANSWERS = session_answers("The response, or with `stream: true` its events", {"type": "string"})

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=DirectRoute)


@router.post("", response_model=schemas.ResponseOut, responses=_ANSWERS)
async def create_response(
    call: Call,
    body: schemas.ResponseIn,
    headers: Headers,
    is_stored: Annotated[
        bool,
        Header(
            alias="X-Session-Store",
            description="`true` keeps the session of a request with `store: false`, as if that was true.",
        ),
    ] = False,
) -> Response:
    """Creates a response within the token budget: alone, in a session or conversation, or after another response."""
    rt, tenant_id = call.rt, call.tenant_id
    if is_stored:
        body = body.model_copy(update={"store": True})
    named = await referenced(rt, tenant_id, references_of(_items_of_input(call.raw_body)))

    def read() -> ResponseRequest:
        request = _response_request(call, body, named, headers.idempotency_key)
        request = _in_session(call, request, (body.metadata or {}).get("session_id"), headers)
        return replace(request, chat=answerable(request.chat, begins=request.previous is None))

    request = await call.aside(read)
    target = await resolve_target(rt, tenant_id, request)
    note = request.chat.options.note
    assert note is not None
    session_header = {SESSION_HEADER: str(target.session.id)} if target.is_kept else {}
    form = ResponseForm(target.session.id, note.form, note.created_at, request.chat.model_alias, session_header)
    return await in_session(call, target, session_header, _answer(call, body, target, form))


async def _answer(call: Call, body: schemas.ResponseIn, target: Target, form: ResponseForm) -> Response:
    async def work(listen: Listener | None) -> TurnOutcome:
        outcome = await respond(call.rt, target, listen)
        if outcome.reply_seq is None:
            sha256 = target.request.request_sha256
            form.stored = await responses.response_of_outcome(call.rt, call.tenant_id, outcome, sha256)
        return outcome

    stream, background = bool(body.stream), bool(body.background)
    if background and not stream:
        return json_response(await _begin(call, work, form), headers=form.headers)
    return await answer_turn(call, work, form, stream=stream, background=background)


async def _begin(call: Call, work: Work, form: ResponseForm) -> JsonObject:
    """Starts the work, and returns the response when it runs or has ended."""
    begun: asyncio.Future[TurnEvent] = asyncio.get_running_loop().create_future()

    def listen(event: TurnEvent) -> None:
        if not begun.done():
            begun.set_result(event)

    task = asyncio.ensure_future(work(listen))
    await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        try:
            return form.whole(task.result())
        finally:
            del task  # it refers to the error, whose traceback refers to this frame

    async def ended() -> None:
        try:
            await task
        except PlimsollError as error:  # the turn's record has it
            error.__traceback__ = None  # it has this frame, which refers to the task that has the error

    call.rt.chores.start(ended(), "a response in the background")
    return form.begun(begun.result())


@router.post("/compact", response_model=schemas.CompactionOut)
async def compact_response(call: Call, body: schemas.CompactIn, headers: Headers) -> Response:
    """Summarizes a conversation now. The answer's `output` replaces it at the beginning of the next `input`."""
    rt, tenant_id = call.rt, call.tenant_id
    check_model(rt, body.model)
    named = await referenced(rt, tenant_id, references_of(_items_of_input(call.raw_body)))

    def read() -> ResponseRequest:
        chat = _chat_request(call, body, named, TurnOptions(instructions=body.instructions or None))
        previous = _previous_of(body.previous_response_id)
        if previous is None and not chat.messages and chat.compaction is None:
            raise InvalidRequest(
                "There is nothing to compact: neither input nor a previous response.", ("body", "input")
            )
        all_new = previous is not None and chat.compaction is None
        chat = replace(chat, idempotency_key=headers.idempotency_key, all_new=all_new, all_past=True)
        return _in_session(call, ResponseRequest(chat, previous), None, headers)

    made = await compact(rt, tenant_id, await call.aside(read))
    session_id = str(made.compaction.session_id)
    call.note(session_id=session_id)
    answer = compaction_json(f"resp_{rt.new_id().hex}", rt.now(), made.compaction, made.usage)
    return json_response(answer, headers={SESSION_HEADER: session_id})


@router.post("/input_tokens", response_model=schemas.InputTokensOut)
async def count_input_tokens(call: Call, body: schemas.InputTokensIn) -> JsonObject:
    """Counts the prompt of a response, with the session that it would continue. Calls no language model."""
    named = await referenced(call.rt, call.tenant_id, references_of(_items_of_input(call.raw_body)))
    request = await call.aside(lambda: _response_request(call, body, named, None))
    tokens = await responses.count_input(call.rt, call.tenant_id, request)
    return {"object": "response.input_tokens", "input_tokens": tokens}


@router.get("/{response_id}", response_model=schemas.ResponseOut)
async def get_response(
    call: Call,
    response_id: str,
    stream: Annotated[str | None, Query(description="`true` is refused: a stored response is not streamed.")] = None,
) -> JsonObject:
    """A stored response; while it runs it is `in_progress`."""
    if stream == "true":
        raise InvalidRequest("A stored response is not streamed; fetch it until it has ended.", ("query", "stream"))
    return stored_json(await responses.stored_response(call.rt, call.tenant_id, _ref(call, response_id)))


@router.delete("/{response_id}", response_model=DeletedOut)
async def delete_response(call: Call, response_id: str) -> JsonObject:
    """Deletes a response, and its session if nothing else is in it."""
    await responses.delete_response(call.rt, call.tenant_id, _ref(call, response_id))
    return {"id": response_id, "object": "response", "deleted": True}


@router.post(
    "/{response_id}/cancel", response_model=schemas.ResponseOut, responses=openai_refusals(*OPENAI_READ, 408, 413)
)
async def cancel_response(call: Call, response_id: str) -> JsonObject:
    """Cancels a running response. One that has ended is returned unchanged."""
    return stored_json(await responses.cancel_response(call.rt, call.tenant_id, _ref(call, response_id)))


@router.get("/{response_id}/input_items", response_model=ItemListOut)
async def list_response_input_items(call: Call, response_id: str, wanted: PageOfItems) -> JsonObject:
    """The input of a response, without earlier items."""
    return list_json(*await responses.input_items(call.rt, call.tenant_id, _ref(call, response_id), wanted))


def _ref(call: Call, response_id: str) -> ResponseRef:
    ref = existing(read_response_id(response_id), "response")
    call.note(session_id=str(ref.session_id))
    return ref


_REPEATED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "temperature",
    "top_p",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "previous_response_id",
)


def _items_of_input(raw: JsonObject) -> list[JsonObject]:
    """The input as items. A text becomes a user's message."""
    given: str | list[JsonObject] = raw.get("input") or []
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _chat_request(
    call: Call, body: schemas.ResponseIn | schemas.CompactIn, referenced: Mapping[str, Message], options: TurnOptions
) -> ChatRequest:
    """The request of a body. `referenced` maps item references to messages. Raises `InvalidRequest`."""
    with located("body", "input"):
        read = read_items(_items_of_input(call.raw_body), referenced)
    return ChatRequest(
        messages=read.messages,
        options=options,
        model_alias=body.model or call.rt.catalogue.default,
        request_sha256=request_sha256(call.raw_body),
        directions=read.directions,
        within="input",
        compaction=read.compaction,
        lifetime=Lifetime.WITH_RESPONSES,
        cache_key=own_cache_key(call),
    )


def _response_request(
    call: Call, body: schemas.ResponseIn, referenced: Mapping[str, Message], idempotency_key: str | None
) -> ResponseRequest:
    """The request in a body. Raises `InvalidRequest`, and `NotFound` for an id of an impossible form."""
    rt, raw = call.rt, call.raw_body
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidRequest("Name a conversation or a previous response, not both.", ("body", "previous_response_id"))
    if body.background and body.store is False:
        raise InvalidRequest("What runs in the background has to be stored to be fetched.", ("body", "background"))
    check_model(rt, body.model)
    previous = _previous_of(body.previous_response_id)
    own_tools = _own_tools(raw)
    tools, tool_choice = chosen_tools(chat_tools(own_tools), raw.get("tool_choice"))
    conversation, stored = _conversation(body), body.store is not False
    form = _repeated_form(raw, body, conversation, own_tools)
    options = TurnOptions(
        tools=tools,
        tool_choice=tool_choice,
        max_output_tokens=body.max_output_tokens,
        instructions=body.instructions or None,
        provider_options=provider_options(_chat_options(raw, body)),
        policy=_policy(body),
        whole_past=body.truncation == "disabled",
        note=ResponseNote(request_sha256(raw), form, rt.now(), is_stored=stored),
    )
    chat = _chat_request(call, body, referenced, options)
    chat = replace(
        chat,
        idempotency_key=idempotency_key,
        is_retry=call.is_retry,
        all_new=chat.compaction is None,
        lifetime=Lifetime.WITH_RESPONSES if stored else Lifetime.FOR_ANSWER,
    )
    return ResponseRequest(chat=chat, previous=previous, conversation=conversation)


def _own_tools(raw: JsonObject) -> list[JsonObject]:
    """The tools that the client runs. Raises `InvalidRequest` if it has only tools that are left out."""
    tools: list[JsonObject] = raw.get("tools") or []
    own = [tool for tool in tools if tool["type"] not in schemas.LEFT_OUT_TOOLS]
    if tools and not own:
        raise InvalidRequest(f"{schemas.hosted_tool(tools[0]['type'])}.", ("body", "tools", "0"))
    return own


def _policy(body: schemas.ResponseIn) -> JsonObject:
    """The policy for the request's own compaction. Raises `InvalidRequest` if it could not be stored or sent."""
    if not body.context_management:
        return {}
    if body.store is False or body.truncation == "disabled":
        field = "store" if body.store is False else "truncation"
        raise InvalidRequest(
            f"A compaction has to be stored, and to be sent: {field} keeps it from that.", ("body", field)
        )
    threshold = body.context_management[0].compact_threshold
    return {} if threshold is None else compaction_policy(threshold)


def _in_session(call: Call, request: ResponseRequest, member: str | None, headers: Headers) -> ResponseRequest:
    """The request with its session's name, or with what the session is recognized by. Raises `InvalidRequest`."""
    named = session_or_name(headers.session, member)
    recognize = not headers.is_new and request.chat.compaction is None
    if request.previous is not None or request.conversation is not None:
        if headers.session is not None:
            raise InvalidRequest(f"{SESSION_HEADER} does not go with a conversation or a previous response.")
        if request.conversation is None or not recognize:
            return request
        return replace(request, chat=recognizable(call, request.chat, str(request.conversation)))
    if named is not None:
        return replace(request, named=named, chat=replace(request.chat, all_new=False))
    if not (recognize and request.chat.is_kept):
        return request
    return replace(request, chat=recognizable(call, request.chat, affinity=headers.affinity))


def _previous_of(named: str | None) -> ResponseRef | None:
    """The response that a body names. Raises `NotFound` if the text cannot be the id of a response."""
    return None if named is None else existing(read_response_id(named), "previous_response")


def _conversation(body: schemas.ResponseIn) -> SessionId | None:
    if body.conversation is None:
        return None
    named = body.conversation.id if isinstance(body.conversation, schemas.ConversationRef) else body.conversation
    return existing(read_conversation_id(named), "conversation")


def _chat_options(raw: JsonObject, body: schemas.ResponseIn) -> JsonObject:
    """The options of a body, by their names in chat completions."""
    text: JsonObject = raw.get("text") or {}
    return {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "parallel_tool_calls": body.parallel_tool_calls,
        "service_tier": body.service_tier,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "verbosity": body.text.verbosity if body.text else None,
        "response_format": _response_format(text.get("format")),
    }


def _response_format(text_format: JsonObject | None) -> JsonObject | None:
    if text_format is None or text_format["type"] != "json_schema":
        return text_format
    schema = {name: value for name, value in text_format.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _repeated_form(
    raw: JsonObject, body: schemas.ResponseIn, conversation: SessionId | None, tools: Sequence[JsonObject]
) -> JsonObject:
    """The fields of a request that its response repeats."""
    text: JsonObject = raw.get("text") or {}
    return {
        **{name: raw.get(name) for name in _REPEATED},
        "background": bool(body.background),
        "conversation": None if conversation is None else {"id": conversation_id(conversation)},
        "metadata": raw.get("metadata") or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None} | (raw.get("reasoning") or {}),
        "store": body.store is not False,
        "text": {"format": {"type": "text"}} | {name: value for name, value in text.items() if value is not None},
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": tools,
        "top_logprobs": 0,
        "truncation": body.truncation or "auto",
        **({"context_management": raw["context_management"]} if body.context_management else {}),
        **({"include": [SEALED]} if SEALED in (body.include or ()) else {}),
    }
