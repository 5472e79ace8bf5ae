"""Shared by all wire protocols: reading JSON that may be malformed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from app.domain.content import fields_of, is_nested_deeper, storable
from app.domain.frozen import replace
from app.domain.types import JsonObject, PromptMessage, ToolCall

MOST_JSON_MARKS: Final[Mapping[bytes, int]] = {b",": 131_072, b"[": 32_768, b"{": 32_768}
"""Most marks in one answer or event, also within texts: they determine how long parsing blocks the event loop."""
MOST_SLOW_JSON_BYTES: Final = 512 * 1024
"""Longest JSON that the standard library reads after orjson has refused it: there the time for an integer grows with
the square of its digits, and broken text takes three times as long as other text."""
MOST_NESTING: Final = 100
MOST_ITEMS: Final = 4_096
"""Most blocks in one answer, or fragments of tool calls in one event."""
MOST_TOOL_CALLS: Final = 128
MOST_REPLY_CHARS: Final = 4 * 1024 * 1024
"""Most characters of text, reasoning and tool calls together in a streamed answer."""
_MOST_NAME_CHARS: Final = 256
_MOST_CALLABLE_CHARS: Final = 64
_CALLABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_CALLABLE: Final = re.compile(r"[^A-Za-z0-9_-]")
_MOST_CALL_ID_CHARS: Final = 512
_MOST_TOKENS: Final = 2**31 - 1
"""Within this, sums over a session stay within 64 bits, and an export can be imported again."""


class MalformedAnswerError(Exception):
    """The answer violates its protocol. The message describes the violation and quotes nothing."""


def json_bytes(body: Any) -> bytes:
    """JSON of a request's body; a lone surrogate is replaced by something that every server can read."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate or an integer beyond 64 bits, which orjson refuses
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def decode_json(raw: bytes) -> Any:
    """Reads JSON, also with lone surrogates or broken UTF-8, which orjson refuses. Raises `MalformedAnswerError`.

    It raises for too many values, before they are created; for too deep nesting, so that readers of the value need no
    bounds of their own; and for JSON that orjson refuses and that is longer than `MOST_SLOW_JSON_BYTES`.
    """
    for mark, most in MOST_JSON_MARKS.items():
        if raw.count(mark) > most:
            raise MalformedAnswerError(f"it has more than {most} of {mark.decode()!r}")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as refused:
        if len(raw) > MOST_SLOW_JSON_BYTES:
            raise MalformedAnswerError("it is not valid JSON, and too long to be read leniently") from refused
        try:
            value = json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise MalformedAnswerError("the answer is not valid JSON") from error
    if raw.count(b"[") + raw.count(b"{") > MOST_NESTING and is_nested_deeper(value, MOST_NESTING):
        raise MalformedAnswerError(f"it is nested deeper than {MOST_NESTING} levels")
    return value


def storable_json(value: Any) -> str:
    """JSON of a value that came out of an answer, as text that can be stored."""
    return storable(json.dumps(value, ensure_ascii=False))


def list_of(value: Any) -> list[Any]:
    """`value` where it is a JSON list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def content_of(content: Any) -> tuple[str, str]:
    """Text and reasoning of a content (a string, null, or a list of parts), not yet storable."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise MalformedAnswerError("the message's content is neither text nor a list of parts")
    texts: list[str] = []
    thinking_texts: list[str] = []
    for part in cast("list[Any]", content):
        fields = {"text": part} if isinstance(part, str) else fields_of(part)
        text, thinking = fields.get("text"), fields.get("thinking")
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(thinking, str):
            thinking_texts.append(thinking)
        elif isinstance(thinking, list):
            thinking_texts.append(content_of(thinking)[0])
    return "".join(texts), "".join(thinking_texts)


def texts_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of each message, parts joined; empty where it has none."""
    return [storable(content_of(message.get("content"))[0]) for message in messages]


def reason_in_part(messages: Sequence[PromptMessage]) -> bool:
    """Whether some of the assistant's messages have reasoning and others have none."""
    return len({"reasoning_content" in each for each in messages if each["role"] == "assistant"}) > 1


def reasoning_blocks(message: Mapping[str, Any], *kinds: str) -> list[JsonObject]:
    """The blocks of these types that a message of the prompt has. An imported one may have blocks of any form."""
    stored = message.get("reasoning_blocks")
    return [block for block in map(fields_of, list_of(stored)) if block.get("type") in kinds] if stored else []


def answered_items(value: Any, what: str) -> list[Any]:
    """As `list_of`; raises `MalformedAnswerError` for more than `MOST_ITEMS` items, which its message calls `what`."""
    items = list_of(value)
    if len(items) > MOST_ITEMS:
        raise MalformedAnswerError(f"it has more than {MOST_ITEMS} {what}")
    return items


def finish_word(finish: Any) -> str:
    """The word of a finish reason, in lower case; Gemini adds a detail after a colon. Empty where there is none."""
    return finish.partition(":")[0].lower() if isinstance(finish, str) else ""


def check_calls(count: int) -> None:
    """Raises `MalformedAnswerError` if one answer has too many tool calls."""
    if count > MOST_TOOL_CALLS:
        raise MalformedAnswerError(f"it calls more than {MOST_TOOL_CALLS} tools")


def _checked_call(identity: Any, name: Any, arguments: str, position: int) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise MalformedAnswerError("a tool call names no tool")
    if len(name) > _MOST_NAME_CHARS:
        raise MalformedAnswerError("a tool call's name is too long")
    if not isinstance(identity, str) or not 0 < len(identity) <= _MOST_CALL_ID_CHARS:
        # Deterministic: the same call has the same id.
        digest = hashlib.sha256(f"{position}\n{name}\n{arguments}".encode("utf-8", "replace")).hexdigest()
        identity = f"call_{position}_{digest[:16]}"
    return ToolCall(id=storable(identity), name=storable(name), arguments=storable(arguments))


def checked_calls(calls: Sequence[tuple[Any, Any, str]]) -> tuple[ToolCall, ...]:
    """The tool calls of an answer by their ids, names and arguments. A missing or too long id is replaced, because tool
    outputs refer to it. Raises `MalformedAnswerError` for too many calls, or when one names no tool.
    """
    check_calls(len(calls))
    return tuple(_checked_call(*call, position) for position, call in enumerate(calls))


def with_callable_name(call: ToolCall, offered: Collection[str | None]) -> ToolCall:
    """The call with a name that every provider takes back in later prompts. Models make up names ("functions.look"),
    and OpenAI and Anthropic refuse each prompt with one that no tool could have. `offered` ones are never changed."""
    if call.name in offered or _CALLABLE.fullmatch(call.name):
        return call
    return replace(call, name=_NOT_CALLABLE.sub("_", call.name)[:_MOST_CALLABLE_CHARS])


def model_name(value: Any) -> str | None:
    """The model name that a provider reports, shortened; None where it reports none."""
    return storable(value[:_MOST_NAME_CHARS]) if isinstance(value, str) and value else None


def token_count(value: Any) -> int | None:
    """A number of tokens, or None for anything that cannot be one."""
    if type(value) not in (int, float):  # a bool is an int too
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS and value == int(value) else None
