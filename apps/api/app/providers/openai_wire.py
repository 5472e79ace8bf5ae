"""The chat completions wire: neutral request -> JSON body, JSON answer -> `Completion`.

The neutral form is OpenAI's own, so messages and tools go through as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from app.domain.types import Completion, CompletionRequest, FinishReason, ToolCall, Usage

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
_MOST_TOKENS: Final = 2**53
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


class MalformedAnswerError(Exception):
    """The answer is no chat completion. The sentence says what is wrong with its form and quotes nothing."""


def request_body(
    request: CompletionRequest,
    *,
    model: str,
    parameters: Mapping[str, Any],
    max_tokens_field: MaxTokensField,
    with_schema: bool,
) -> bytes:
    """The JSON body of one call. `parameters` are the catalogue's own additions for this alias."""
    body: dict[str, Any] = {"model": model, "messages": list(request.messages), **parameters}
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
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate or an integer beyond 64 bits, which orjson refuses
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def parse_json(raw: bytes) -> Any:
    """Reads JSON, also with lone surrogates or broken UTF-8, which orjson refuses. Raises `MalformedAnswerError`."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            return json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise MalformedAnswerError("the answer is not valid JSON") from error


def completion(body: Any, *, attempts: int) -> Completion:
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
    text, thought = _content(fields.get("content"))
    if not text and isinstance(fields.get("refusal"), str):
        text = storable(fields["refusal"])
    model = answer.get("model")
    return Completion(
        text=text or (None if tool_calls else ""),
        finish_reason=_finish_reason(choice.get("finish_reason"), called_tools=bool(tool_calls)),
        usage=_usage(answer.get("usage")),
        tool_calls=tool_calls,
        reasoning=_text_of(fields, "reasoning_content") or _text_of(fields, "reasoning") or thought or None,
        provider_model=storable(model) if isinstance(model, str) else None,
        attempts=attempts,
    )


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD: Postgres stores neither, and the reply is kept."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        # Pairs that arrived as two escapes become the one character they mean, what stays alone is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


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


def _content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content: a string, null, or a list of parts."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return storable(content), ""
    if not isinstance(content, list):
        raise MalformedAnswerError("the message's content is neither text nor a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[Any]", content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            text, thought = fields.get("text"), fields.get("thinking")
            if isinstance(text, str):
                texts.append(text)
            elif isinstance(thought, str):
                thoughts.append(thought)
            elif isinstance(thought, list):
                thoughts.append(_content(thought)[0])
    return storable("".join(texts)), storable("".join(thoughts))


def _tool_calls(value: Any) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedAnswerError("the message's tool_calls are not a list")
    return tuple(_tool_call(call, position) for position, call in enumerate(cast("list[Any]", value)))


def _tool_call(value: Any, position: int) -> ToolCall:
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    function = call.get("function")
    fields = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
    name, arguments, identity = fields.get("name"), fields.get("arguments"), call.get("id")
    if not isinstance(name, str) or not name:
        raise MalformedAnswerError("a tool call names no function")
    if arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)  # some servers send the object itself
    if not isinstance(identity, str) or not identity:
        # Some servers leave the id out; tool outputs need one to answer to.
        digest = hashlib.sha256(f"{position}\n{name}\n{arguments}".encode("utf-8", "replace")).hexdigest()
        identity = f"call_{position}_{digest[:16]}"
    return ToolCall(id=storable(identity), name=storable(name), arguments=storable(arguments))


def _finish_reason(value: Any, *, called_tools: bool) -> FinishReason:
    reason: FinishReason = _FINISH_REASONS.get(value.lower(), "other") if isinstance(value, str) else "other"
    # Some servers say "stop", or nothing, when the model called tools.
    if called_tools and reason in {"stop", "other"}:
        return "tool_calls"
    return reason


def _usage(value: Any) -> Usage | None:
    """None unless the prompt's tokens can be read: half a figure would falsify what is compared with the estimate."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    prompt, answer, total = (
        _count(fields.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None and total is not None and answer is not None and total >= answer:
        prompt = total - answer
    if prompt is None:
        return None
    if answer is None:
        answer = total - prompt if total is not None and total >= prompt else 0
    details = fields.get("prompt_tokens_details")
    nested = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
    cached = next(
        (found for found in map(_count, (nested, fields.get("prompt_cache_hit_tokens"))) if found is not None), 0
    )
    return Usage(prompt_tokens=prompt, completion_tokens=answer, cached_prompt_tokens=min(cached, prompt))


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS and value == int(value) else None


def texts_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of each message, parts joined; empty where it has none."""
    found: list[str] = []
    for message in messages:
        content: Any = message.get("content")
        found.append(_content(content)[0] if isinstance(content, str | list) else "")
    return found
