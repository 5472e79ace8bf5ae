"""Neutral request -> body of the Messages API.

All `system` messages go to the `system` field, in their order, wherever they stood. What is left alternates between
user and assistant: neighbours of one role are one message, and tool results are the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.types import CompletionRequest, JsonObject, PromptMessage
from app.providers.anthropic_content import content_blocks, text_block, tool_result_block, tool_use_blocks
from app.providers.wire import fields_of, list_of

_LEAST_THINKING_TOKENS: Final = 1_024
_THINKING_TYPES: Final = frozenset({"thinking", "redacted_thinking"})
MESSAGES_OPTIONS: Final = frozenset({"temperature", "top_p", "stop", "parallel_tool_calls"})
_EPHEMERAL: Final[Mapping[str, str]] = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class Form:
    """What a server turned out to accept."""

    with_cache: bool = True
    with_thinking: bool = True
    with_used_tools: bool = False


def request_body(request: CompletionRequest, *, model: str, parameters: Mapping[str, Any], form: Form) -> JsonObject:
    """The body of one call, without `stream`. `parameters` are the catalogue's own additions for this alias."""
    thinking = _thinking(request, fields_of(parameters.get("thinking")), form)
    body: JsonObject = {"model": model, "max_tokens": request.max_output_tokens, **parameters}
    body.pop("thinking", None)
    if thinking:
        body["thinking"] = thinking
    system = _system_blocks(request.messages, cached=form.with_cache)
    if system:
        body["system"] = system
    body["messages"] = _alternating(
        request.messages, with_thinking=thinking.get("type") != "disabled" and bool(thinking)
    )
    body |= _sampling(request.options, is_thinking=thinking.get("type") not in {None, "disabled"})
    tools = _tools(request, form)
    if tools:
        body["tools"] = tools
        choice = _tool_choice(request.tool_choice if request.tools else "none")
        if request.options.get("parallel_tool_calls") is False and choice != {"type": "none"}:
            choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
        if choice is not None:
            body["tool_choice"] = choice
    return body


def _sampling(options: Mapping[str, Any], *, is_thinking: bool) -> JsonObject:
    """What the API knows of a client's options: temperature ends at 1, and with thinking there is none."""
    sent: JsonObject = {}
    stop = options.get("stop")
    if stop:
        sent["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    if not is_thinking:
        sent |= {name: min(1.0, options[name]) for name in ("temperature", "top_p") if options.get(name) is not None}
    return sent


def _system_blocks(messages: Sequence[PromptMessage], *, cached: bool) -> list[JsonObject]:
    """With cache breakpoints at the end of what stands before the conversation, and one block earlier.

    The last of these blocks is the summary, once there is one: when it changes, what is before it is still cached.
    System messages from the middle of the conversation change every turn and come after the breakpoints.
    """
    blocks: list[JsonObject] = []
    stable = 0
    is_leading = True
    for message in messages:
        if message.get("role") == "system":
            blocks.extend(block for block in content_blocks(message.get("content")) if block["type"] == "text")
        else:
            is_leading = False
        if is_leading:
            stable = len(blocks)
    if cached:
        for place in range(max(0, stable - 2), stable):
            blocks[place]["cache_control"] = _EPHEMERAL
    return blocks


def _alternating(messages: Sequence[PromptMessage], *, with_thinking: bool) -> list[JsonObject]:
    loop_begins = _loop_begins(messages)
    sent: list[JsonObject] = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "system":
            continue
        if role == "tool":
            blocks = [tool_result_block(message)]
        elif role == "assistant":
            thoughts = _thoughts(message) if with_thinking and place > loop_begins else []
            said = [block for block in content_blocks(message.get("content")) if block["type"] == "text"]
            blocks = thoughts + said + tool_use_blocks(message)
        else:
            blocks = content_blocks(message.get("content"))
        role = "assistant" if role == "assistant" else "user"
        if not blocks:
            continue  # the API refuses messages without content
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"].extend(blocks)
        else:
            sent.append({"role": role, "content": blocks})
    if not sent or sent[0]["role"] == "assistant":
        sent.insert(0, {"role": "user", "content": [text_block("[The conversation begins.]")]})
    return sent


def _loop_begins(messages: Sequence[PromptMessage]) -> int:
    """The place of the newest user message: what follows it is the tool loop that still runs."""
    return max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=-1)


def _thoughts(message: PromptMessage) -> list[JsonObject]:
    blocks = [fields_of(block) for block in list_of(message.get("reasoning_blocks"))]
    return [block for block in blocks if block.get("type") in _THINKING_TYPES]


def _thinking(request: CompletionRequest, wanted: JsonObject, form: Form) -> JsonObject:
    """The thinking that this call can have; empty for none.

    The API wants the thoughts of a running tool loop back, signed, and refuses forced tools; where it cannot have
    them, the call goes without. A budget has to leave room in the output limit: it gets half of that at most.
    """
    if not wanted or wanted.get("type") == "disabled":
        return wanted
    loop = [message for message in request.messages[_loop_begins(request.messages) + 1 :] if message.get("tool_calls")]
    is_forced = bool(request.tools) and request.tool_choice not in {None, "auto", "none"}
    if not form.with_thinking or is_forced or not all(map(_thoughts, loop)):
        return {}
    budget = wanted.get("budget_tokens")
    if isinstance(budget, int) and budget >= request.max_output_tokens:
        half = request.max_output_tokens // 2
        return {**wanted, "budget_tokens": half} if half >= _LEAST_THINKING_TOKENS else {}
    return wanted


def _tools(request: CompletionRequest, form: Form) -> list[JsonObject]:
    tools = [_tool(fields_of(fields_of(dict(tool)).get("function"))) for tool in request.tools]
    if not tools and form.with_used_tools:
        used = [call for message in request.messages for call in tool_use_blocks(message)]
        tools = [_tool({"name": name}) for name in sorted({str(call["name"]) for call in used})]
    if tools and form.with_cache:
        tools[-1]["cache_control"] = _EPHEMERAL
    return tools


def _tool(function: JsonObject) -> JsonObject:
    tool: JsonObject = {
        "name": function.get("name"),
        "input_schema": {"type": "object", **fields_of(function.get("parameters"))},
    }
    if isinstance(function.get("description"), str):
        tool["description"] = function["description"]
    return tool


def _tool_choice(choice: str | Mapping[str, Any] | None) -> JsonObject | None:
    if isinstance(choice, Mapping):
        return {"type": "tool", "name": fields_of(dict(choice).get("function")).get("name")}
    return {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}.get(choice or "")
