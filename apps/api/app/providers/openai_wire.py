"""The chat completions wire: neutral request -> JSON body, JSON answer -> `Completion`.

The neutral form is OpenAI's own, so messages and tools go through as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from app.domain.types import Completion, CompletionRequest, FinishReason, PromptMessage, ToolCall, Usage
from app.providers.endpoint import MaxTokensField
from app.providers.wire import (
    MalformedAnswerError,
    check_calls,
    fields_of,
    json_bytes,
    json_text,
    list_of,
    model_name,
    read_call,
    storable,
    token_count,
)

_NOT_OF_THIS_WIRE: Final = frozenset({"reasoning", "reasoning_blocks"})
_REASONING_TOO: Final = _NOT_OF_THIS_WIRE | {"reasoning_content"}
_OF_TOOLS: Final = frozenset({"parallel_tool_calls"})
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
}


def request_body(
    request: CompletionRequest,
    *,
    model: str,
    parameters: Mapping[str, Any],
    max_tokens_field: MaxTokensField,
    with_schema: bool,
    stream: bool = False,
    with_usage: bool = True,
    with_reasoning: bool = True,
) -> bytes:
    """The JSON body of one call. `parameters` are the catalogue's own additions for this alias."""
    left_out = _NOT_OF_THIS_WIRE if with_reasoning else _REASONING_TOO
    body: dict[str, Any] = {
        "model": model,
        "messages": [_without(message, left_out) for message in request.messages],
        **parameters,
        **{name: value for name, value in request.options.items() if request.tools or name not in _OF_TOOLS},
    }
    body[max_tokens_field] = request.max_output_tokens
    if request.tools:
        body["tools"] = list(request.tools)
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    if with_schema and request.response_schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": request.purpose, "schema": request.response_schema},
        }
    if stream:
        body["stream"] = True
        if with_usage:
            body["stream_options"] = {"include_usage": True}
    return json_bytes(body)


def read_completion(body: Any, *, attempts: int) -> Completion:
    """Reads a chat completion's first choice. Raises `MalformedAnswerError`."""
    if not isinstance(body, dict):
        raise MalformedAnswerError("the answer is not a JSON object")
    answer = cast("dict[str, Any]", body)
    choice = _first_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedAnswerError("the first choice carries no message")
    fields = cast("dict[str, Any]", message)
    tool_calls = _tool_calls(fields.get("tool_calls"))
    text, thought = map(storable, content_of(fields.get("content")))
    if not text and isinstance(fields.get("refusal"), str):
        text = storable(fields["refusal"])
    return Completion(
        text=text or (None if tool_calls else ""),
        finish_reason=finish_reason(choice.get("finish_reason"), called_tools=bool(tool_calls)),
        usage=read_usage(answer.get("usage")),
        tool_calls=tool_calls,
        reasoning=_text_of(fields, "reasoning_content") or _text_of(fields, "reasoning") or thought or None,
        provider_model=model_name(answer.get("model")),
        attempts=attempts,
    )


def _first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswerError("the answer carries no choices")
    first: Any = cast("list[Any]", choices)[0]
    if not isinstance(first, dict):
        raise MalformedAnswerError("the first choice is not an object")
    return cast("dict[str, Any]", first)


def _text_of(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return storable(value) if isinstance(value, str) else ""


def content_of(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content, not yet storable: it is a string, null, or a list of parts."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise MalformedAnswerError("the message's content is neither text nor a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[Any]", content):
        if isinstance(part, str):
            texts.append(part)
            continue
        text, thought = (fields_of(part).get(name) for name in ("text", "thinking"))
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(thought, str):
            thoughts.append(thought)
        elif isinstance(thought, list):
            thoughts.append(content_of(thought)[0])
    return "".join(texts), "".join(thoughts)


def _tool_calls(value: Any) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedAnswerError("the message's tool_calls are not a list")
    calls = list_of(value)
    check_calls(len(calls))
    return tuple(tool_call(call, position) for position, call in enumerate(calls))


def tool_call(value: Any, position: int) -> ToolCall:
    """Reads a tool call, the `position`th of its answer; raises as `read_call`."""
    call = fields_of(value)
    fields = fields_of(call.get("function"))
    arguments = fields.get("arguments") or "{}"  # nothing, or the empty text that some servers send for no arguments
    if not isinstance(arguments, str):
        arguments = json_text(arguments)  # some servers send the object itself
    return read_call(call.get("id"), fields.get("name"), arguments, position)


def finish_reason(value: Any, *, called_tools: bool) -> FinishReason:
    reason: FinishReason = _FINISH_REASONS.get(value.lower(), "other") if isinstance(value, str) else "other"
    # Some servers say "stop", or nothing, when the model called tools.
    if called_tools and reason in {"stop", "other"}:
        return "tool_calls"
    return reason


def read_usage(value: Any) -> Usage | None:
    """None unless the prompt's tokens can be read: half a figure would falsify what is compared with the estimate."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    prompt, answer, total = (
        token_count(fields.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None and total is not None and answer is not None and total >= answer:
        prompt = total - answer
    if prompt is None:
        return None
    if answer is None:
        answer = total - prompt if total is not None and total >= prompt else 0
    details = fields_of(fields.get("prompt_tokens_details"))
    cached = _first_count(details.get("cached_tokens"), fields.get("prompt_cache_hit_tokens"))
    written = _first_count(details.get("cache_write_tokens"), fields.get("cache_creation_input_tokens"))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        cached_prompt_tokens=min(cached, prompt),
        cache_write_prompt_tokens=min(written, prompt - min(cached, prompt)),
    )


def _first_count(*values: Any) -> int:
    return next((found for found in map(token_count, values) if found is not None), 0)


def _without(message: PromptMessage, left_out: frozenset[str]) -> PromptMessage:
    """The neutral form is this wire's own, but for what only other wires, or other servers, want back."""
    if left_out.isdisjoint(message):
        return message
    return {name: value for name, value in message.items() if name not in left_out}


def texts_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of each message, parts joined; empty where it has none."""
    found: list[str] = []
    for message in messages:
        content: Any = message.get("content")
        found.append(storable(content_of(content)[0]) if isinstance(content, str | list) else "")
    return found
