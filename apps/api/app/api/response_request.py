"""A body of Responses as the request of the services, and as the parts of it that a response repeats."""

from __future__ import annotations

from collections.abc import Mapping

from app.api.routes.chat import provider_options
from app.api.routes.turns import request_sha256
from app.api.schemas.responses import AllowedTools, ConversationRef, NamedFunction, ResponseIn
from app.domain.errors import InvalidRequest, NotFound, located
from app.domain.openai_ids import ResponseRef, conversation_id, read_conversation_id, read_response_id
from app.domain.responses import ResponseNote
from app.domain.types import JsonObject, Message, SessionId, ToolDefinition
from app.openai.items import read_items
from app.services.openai.chat import ChatRequest
from app.services.openai.responses import ResponseRequest
from app.services.runtime import Runtime
from app.services.turn.types import TurnOptions

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


def input_of(raw: JsonObject) -> list[JsonObject]:
    """The input as items: a text is a user's message."""
    given = raw["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def response_request(
    rt: Runtime, raw: JsonObject, body: ResponseIn, referenced: Mapping[str, Message], *, is_retry: bool
) -> ResponseRequest:
    """What a body requests. `referenced` are the messages that its item references name.

    Raises `InvalidRequest`, and `NotFound` for an id that nothing can have.
    """
    _check(rt, body)
    previous = _previous(body)
    tools, tool_choice = _tools(raw, body)
    conversation, stored = _conversation(body), body.store is not False
    sha256 = request_sha256({name: value for name, value in raw.items() if name != "stream_options"})
    with located("body", "input"):
        read = read_items(input_of(raw), referenced)
    options = TurnOptions(
        tools=tools,
        tool_choice=tool_choice,
        max_output_tokens=body.max_output_tokens,
        instructions=body.instructions or None,
        provider_options=provider_options(_options(raw, body)),
        policy={},
        whole_past=body.truncation == "disabled",
        note=ResponseNote(sha256, _form(raw, body, conversation), rt.now(), is_stored=stored),
    )
    chat = ChatRequest(
        messages=read.messages,
        options=options,
        model_alias=body.model or rt.catalogue.default,
        request_sha256=sha256,
        is_retry=is_retry,
        all_new=True,
        directions=read.directions,
        within="input",
    )
    return ResponseRequest(chat=chat, previous=previous, conversation=conversation, store=stored)


def _check(rt: Runtime, body: ResponseIn) -> None:
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidRequest("Name a conversation or a previous response, not both.", ("body", "previous_response_id"))
    if body.background and body.store is False:
        raise InvalidRequest("What runs in the background has to be stored to be fetched.", ("body", "background"))
    if body.model is not None and body.model not in rt.catalogue.aliases:
        raise NotFound("model")


def _previous(body: ResponseIn) -> ResponseRef | None:
    if body.previous_response_id is None:
        return None
    previous = read_response_id(body.previous_response_id)
    if previous is None:
        raise NotFound("previous_response")
    return previous


def _conversation(body: ResponseIn) -> SessionId | None:
    if body.conversation is None:
        return None
    named = body.conversation.id if isinstance(body.conversation, ConversationRef) else body.conversation
    session_id = read_conversation_id(named)
    if session_id is None:
        raise NotFound("conversation")
    return session_id


def _tools(raw: JsonObject, body: ResponseIn) -> tuple[tuple[ToolDefinition, ...], str | JsonObject | None]:
    """Tools and choice in the form of chat completions, in which they are kept and sent."""
    tools = [_tool(tool) for tool in raw.get("tools") or ()]
    names = {tool["function"]["name"] for tool in tools}
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        _check_offered({choice.name}, names)
        return tuple(tools), {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        _check_offered(allowed, names)
        return tuple(tool for tool in tools if tool["function"]["name"] in allowed), choice.mode
    return tuple(tools), choice


def _tool(tool: JsonObject) -> JsonObject:
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in kept if tool.get(name) is not None}}


def _check_offered(chosen: set[str], offered: set[str]) -> None:
    if not chosen <= offered:
        raise InvalidRequest("tool_choice names a function that tools does not have.", ("body", "tool_choice"))


def _options(raw: JsonObject, body: ResponseIn) -> JsonObject:
    """By the names of chat completions."""
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


def _form(raw: JsonObject, body: ResponseIn, conversation: SessionId | None) -> JsonObject:
    """The parts of a request that its response repeats."""
    text: JsonObject = raw.get("text") or {}
    given = {name: value for name, value in text.items() if value is not None}
    return {
        **{name: raw.get(name) for name in _REPEATED},
        "background": bool(body.background),
        "conversation": None if conversation is None else {"id": conversation_id(conversation)},
        "metadata": raw.get("metadata") or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None} | (raw.get("reasoning") or {}),
        "store": body.store is not False,
        "text": {"format": {"type": "text"}} | given,
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": raw.get("tools") or [],
        "top_logprobs": 0,
        "truncation": body.truncation or "auto",
    }
