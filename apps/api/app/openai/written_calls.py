"""Tool calls that a client writes into its texts, as smolagents does.

Its assistant message ends with `Calling tools:` and the calls as a Python list, and the user message after it begins
with `Observation:`, or with the id of a call that failed. A task that followed is part of the same message.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, cast

from app.domain.content import content_text
from app.domain.incoming import IncomingMessage
from app.domain.types import ToolCall

_CALLS = re.compile(r"(?:\A|\n)Calling tools:\n(?=\[\{'id': )")
_OBSERVED = re.compile(r"Observation:\n|Call id: \S+\nError:\n")
_NEXT_TASK = "\nNew task:\n"
_LONGEST_CALLS = 16 * 1024
"""Characters; reading a list takes up to two microseconds for each."""
_MOST_READ = 128 * 1024
_ELSEWHERE = "See the first result."
"""One text has what all calls of a message gave."""


def with_calls(messages: Sequence[IncomingMessage], tools: Collection[str]) -> tuple[IncomingMessage, ...]:
    """The messages, with written calls of these tools and what came of them as calls and outputs."""
    if not tools:
        return tuple(messages)
    found: list[IncomingMessage] = []
    open_calls: tuple[ToolCall, ...] = ()
    unread = _MOST_READ
    for message, following in zip_longest(messages, messages[1:]):
        if open_calls:
            found += _outputs(message, open_calls)
            open_calls = ()
            continue
        text = content_text(message.content) if message.role == "assistant" and not message.tool_calls else ""
        written = _CALLS.search(text)
        if written and following is not None and _is_observation(following):
            unread -= len(text) - written.end()
            open_calls = _read(text[written.end() :], tools) if unread >= 0 else ()
        if written and open_calls:
            text = text[: written.start()].strip()
            found.append(replace(message, content=text or None, tool_calls=open_calls))
        else:
            found.append(message)
    return tuple(found)


def _is_observation(message: IncomingMessage) -> bool:
    content = message.content
    is_text = isinstance(content, str) or (content is not None and [part["type"] for part in content] == ["text"])
    return message.role == "user" and is_text and _OBSERVED.match(content_text(content)) is not None


def _read(text: str, tools: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls of a written list; none where it is no list of calls of these tools."""
    if len(text) > _LONGEST_CALLS:
        return ()
    try:
        listed: Any = ast.literal_eval(text)
        calls = [ToolCall(call["id"], call["function"]["name"], _arguments(call["function"])) for call in listed]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return ()
    texts = [text for call in calls for text in (call.id, call.name)]
    is_known = all(isinstance(cast(object, text), str) for text in texts) and all(call.name in tools for call in calls)
    return tuple(calls) if is_known and len({call.id for call in calls}) == len(calls) else ()


def _arguments(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _outputs(message: IncomingMessage, calls: Sequence[ToolCall]) -> list[IncomingMessage]:
    """What came of the calls, and the user's next task where it follows in the same text."""
    observed, next_task, task = content_text(message.content).rpartition(_NEXT_TASK)
    if not next_task:
        observed, task = task, ""
    texts = [observed.removeprefix("Observation:\n"), *[_ELSEWHERE] * (len(calls) - 1)]
    found = [
        replace(message, role="tool", content=text, tool_call_id=call.id, name=None)
        for call, text in zip(calls, texts, strict=True)
    ]
    if next_task:
        found.append(replace(message, content=next_task.lstrip("\n") + task))
    return found
