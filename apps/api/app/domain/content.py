"""Message contents as text and as bytes to hash, and the forms of tool calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, Final, cast, overload
from unicodedata import normalize

import orjson

from app.domain.types import Content, ContentPart, JsonObject, PromptMessage, ToolCall, ToolDefinition

_MOST_NESTING = 200
"""Deepest nesting of a call's input in an answer, which adds levels around it: orjson reads 1,024 and writes 254."""
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


class JsonMessages(Sequence[PromptMessage]):
    """The messages of a prompt as canonical JSON without the list's brackets, in `pieces`, which are not joined before
    they are sent; parsed when one is first read."""

    def __init__(self, pieces: Sequence[bytes], count: int) -> None:
        self.pieces = pieces
        self._count = count
        self._parsed: list[PromptMessage] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> PromptMessage: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PromptMessage]: ...
    def __getitem__(self, at: int | slice) -> PromptMessage | Sequence[PromptMessage]:
        if self._parsed is None:
            self._parsed = cast("list[PromptMessage]", orjson.loads(b"[%b]" % b"".join(self.pieces)))
        return self._parsed[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(cast("Sequence[object]", other))

    __hash__ = None  # type: ignore


def fields_of(value: Any) -> JsonObject:
    """`value` where it is a JSON object, else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def bytea_json(value: bytes) -> str:
    """Bytes in the text form in which the database reads them from JSON."""
    return f"\\x{value.hex()}"


def content_text(content: Content) -> str:
    """The readable text of a content; a part that is not text is shown as its type in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in content
    )


def chars_of(content: Content, tool_calls: Sequence[ToolCall] = ()) -> int:
    """Characters of a message's content and of its tool calls' arguments; for content parts, their bytes as JSON."""
    chars = len(content or "") if content is None or isinstance(content, str) else len(orjson.dumps(content))
    return chars + sum([len(call.arguments) for call in tool_calls])


def joined(contents: Sequence[Content]) -> Content:
    """Join several contents into one: texts with a blank line between them, anything else as one list of parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(map(content_text, contents))
    parts: list[ContentPart] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    return parts


def system_reminder(text: str) -> str:
    """A system message in the middle of a conversation, as a text of the user: not every provider takes it as such."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def named(name: str | None, text: str) -> str:
    """A text with its speaker before it, if that is known: `Anna: …`."""
    return f"{name}: {text}" if name and text else text


def with_name(name: str | None, content: Content) -> Content:
    """A content with its speaker before it, if that is known; it is still a text or a list of parts."""
    if not name or not content:
        return content
    return named(name, content) if isinstance(content, str) else [{"type": "text", "text": f"{name}:"}, *content]


def with_speakers(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    """The messages with each speaker before the text, not in the field `name`. In a named message a line that begins
    like the name of one of the speakers begins with a backslash, so that none of them speaks for another."""
    messages = list(messages)
    labels = labels_of(message.get("name") for message in messages)
    return [
        {field: value for field, value in message.items() if field != "name"}
        | {"content": with_name(name, of_one_speaker(message["content"], labels))}
        if (name := message.get("name"))
        else message
        for message in messages
    ]


_COLONS: Final = ":：﹕︰∶ː"
_LABEL: Final = re.compile(f"[^{_COLONS}]{{1,400}}+(?=[{_COLONS}])")
_NOT_IN_LABELS: Final = re.compile("[\\W_\u115f\u1160]")
"""Also the fillers, which count as letters."""


def labels_of(names: Iterable[str | None]) -> frozenset[str]:
    """The labels of these speakers for `of_one_speaker`."""
    return frozenset(_as_label(name) for name in names if name)


@lru_cache(4_096)
def _as_label(text: str) -> str:
    """What names that look alike before a colon have in common."""
    begin = normalize("NFKC", re.split(f"[{_COLONS}]", text, maxsplit=1)[0])
    return _NOT_IN_LABELS.sub("", begin).casefold() or begin.strip()


def of_one_speaker(content: Content, labels: Collection[str]) -> Content:
    """A content in which a backslash precedes each line that begins with a name of these labels and a colon."""
    if content is None or not labels:
        return content
    if not isinstance(content, str):
        return [
            {**part, "text": of_one_speaker(str(part["text"]), labels)} if part["type"] == "text" else part
            for part in content
        ]
    return "".join(
        f"\\{line}" if (label := _LABEL.match(line)) and _as_label(label[0]) in labels else line
        for line in content.splitlines(keepends=True)
    )


def tool_call_json(call: ToolCall) -> JsonObject:
    """A tool call in the OpenAI form, in which it is sent, stored and returned to clients."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def tool_calls_from_json(calls: Sequence[Mapping[str, Any]] | None) -> tuple[ToolCall, ...]:
    """Tool calls from the OpenAI form; empty for None."""
    if not calls:
        return ()
    return tuple(
        ToolCall(call["id"], call["custom"]["name"], arguments_of(call["custom"]["input"]))
        if is_custom(call)
        else ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in calls
    )


def call_input(arguments: str) -> JsonObject:
    """A tool call's arguments as an object; other text, or too deep JSON, becomes its field `malformed_arguments`.

    NUL becomes U+FFFD, as in the bodies of requests: clients resend the object.
    """
    given = _object_in(arguments.strip() or "{}")
    return {"malformed_arguments": arguments} if given is None else given


def with_object_arguments(message: PromptMessage) -> PromptMessage:
    """A message whose tool calls have JSON objects as arguments: the same one where they do; other arguments are given
    as `call_input`."""
    given = message.get("tool_calls", ())
    calls = [call if _object_in(call["function"]["arguments"]) is not None else _with_input(call) for call in given]
    return message if all(map(is_, calls, given)) else {**message, "tool_calls": calls}


def _with_input(call: JsonObject) -> JsonObject:
    arguments = orjson.dumps(call_input(call["function"]["arguments"])).decode()
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _object_in(text: str) -> JsonObject | None:
    readable = _ESCAPED_NUL.sub(r"\1\\ufffd", text) if "\\u0000" in text else text
    try:
        value = orjson.loads(readable)
    except orjson.JSONDecodeError:
        return None
    if text.count("[") + text.count("{") > _MOST_NESTING and is_nested_deeper(value, _MOST_NESTING):
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None


def is_nested_deeper(value: object, levels: int) -> bool:
    """Whether a JSON value has more levels of lists and objects than this."""
    containers: list[Any] = [[value]]
    for _ in range(levels + 1):
        containers = [
            child
            for container in containers
            for child in (cast("JsonObject", container).values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
    return bool(containers)


def canonical_bytes(value: object) -> bytes:
    """Compact, key-sorted JSON, of which hashes are made (contract.md, decision 10)."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def canonical_json(value: object) -> str:
    return canonical_bytes(value).decode()


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD: Postgres stores neither, and the reply is kept."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        # A pair that arrived as two escapes becomes the one character that it means; a lone surrogate is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Custom tools, whose input is text and not JSON: `{"type": "custom", "custom": {"name", "description", "format"}}`, as
# in OpenAI's chat completions. Their calls are stored as calls of functions: the text is the argument `input`.


def is_custom(tool: ToolDefinition) -> bool:
    """Whether the tool, or the call, is one of a custom tool, not of a function."""
    return tool.get("type") == "custom"


def tool_name(tool: ToolDefinition) -> str | None:
    return tool.get("custom" if is_custom(tool) else "function", {}).get("name")


def as_function(tool: ToolDefinition) -> ToolDefinition:
    """A custom tool as a function of one argument, for models that only support functions; a function unchanged."""
    if not is_custom(tool):
        return tool
    custom: JsonObject = tool["custom"]
    form: JsonObject = custom.get("format") or {}
    grammar: JsonObject = form.get("grammar") or {}
    about = "The whole input, as text."
    if grammar:
        about = f"The whole input, as text that follows this {grammar['syntax']} grammar:\n{grammar['definition']}"
    described = {"description": custom["description"]} if custom.get("description") else {}
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": about}},
        "required": ["input"],
    }
    return {"type": "function", "function": {"name": custom["name"], **described, "parameters": parameters}}


def arguments_of(text: str) -> str:
    """The stored arguments of a call of a custom tool with this text."""
    return orjson.dumps({"input": text}).decode()


def custom_call_json(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": custom_input(call.arguments)}}


def custom_input(arguments: str) -> str:
    """The text of a call of a custom tool; arguments of any other form are returned unchanged."""
    text = call_input(arguments).get("input")
    return text if isinstance(text, str) else arguments
