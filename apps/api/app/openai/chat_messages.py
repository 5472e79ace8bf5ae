"""A list of OpenAI chat messages: split into instructions and messages, checked, and cut into turns."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, TypeVar

from app.domain.content import (
    content_text,
    joined,
    labels_of,
    of_one_speaker,
    system_reminder,
    tool_calls_from_json,
    with_name,
)
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen, replace
from app.domain.incoming import IncomingList, IncomingMessage
from app.domain.types import Content, Message, ToolCall

_Said = TypeVar("_Said", bound=IncomingMessage | Message)

_DIRECTING = ("system", "developer")


@frozen
class IncomingTurn:
    """A past turn in a list: consecutive user messages and those that followed. The first turn of a list that begins
    with the assistant has no user message."""

    messages: tuple[IncomingMessage, ...]

    @property
    def user_input(self) -> str:
        """The text of the user's messages; empty when there are none."""
        return content_text(joined([message.content for message in self.messages if message.role == "user"]))

    @property
    def assistant_output(self) -> str | None:
        """The text of the reply that ended the turn, or None if no reply did."""
        last = self.messages[-1]
        return content_text(last.content) if last.role == "assistant" and not last.tool_calls else None

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls at the end of the turn, which have no outputs yet."""
        return self.messages[-1].tool_calls


def read_messages(messages: Sequence[Mapping[str, Any]]) -> IncomingList:
    """Splits a list whose form has been validated (`api/schemas/chat.py`): a direction that stands where the user's
    message would is one. `check_pairing` checks calls and outputs."""
    directions: list[str] = []
    kept: list[IncomingMessage] = []
    answered = _answered_directions(messages)
    for place, message in enumerate(messages):
        role: str = message["role"]
        content: Content = message.get("content")
        name, said_at = message.get("name"), message.get("said_at")
        said_at = said_at and datetime.fromisoformat(said_at)
        if role in _DIRECTING:
            text = content_text(content)
            if place in answered and text.strip():
                kept.append(IncomingMessage(place, "user", system_reminder(text), said_at=said_at))
            else:
                directions.append(text)
        elif role == "assistant":
            calls = tool_calls_from_json(message.get("tool_calls"))
            text = None if content is None else reply_text(content)
            text = text or message.get("refusal") or (None if calls else "")
            kept.append(IncomingMessage(place, "assistant", text, calls, name=name, said_at=said_at))
        elif role == "tool":
            # Some clients send a name here. It is the function's, so it is not kept.
            kept.append(IncomingMessage(place, "tool", content, tool_call_id=message["tool_call_id"], said_at=said_at))
        else:
            kept.append(IncomingMessage(place, "user", content, name=name, said_at=said_at))
    return IncomingList.of(directions, kept)


def _answered_directions(messages: Sequence[Mapping[str, Any]]) -> Collection[int]:
    """The indexes of system and developer messages between a reply and the next one, or the end of the list: there the
    assistant answers them. gptme sends what a tool gave in this way, other clients "Now write as Bob."."""
    answered: list[int] = []
    since_reply: list[int] | None = None
    for place, message in enumerate(messages):
        if message["role"] in _DIRECTING:
            if since_reply is not None:
                since_reply.append(place)
            continue
        is_assistant = message["role"] == "assistant"
        if is_assistant and since_reply:
            answered += since_reply
        since_reply = [] if is_assistant and not message.get("tool_calls") else None
    return {*answered, *(since_reply or ())}


def check_pairing(messages: Sequence[IncomingMessage], *, may_end_open: bool = False) -> None:
    """Checks that every tool result follows its call, and that every call has exactly one result before other messages,
    except those of the last message if it `may_end_open`. Raises `InvalidRequest` with the message's index."""
    caller: IncomingMessage | None = None
    open_ids: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                raise misplaced(message, "This answers no open tool call before it.")
            open_ids.remove(message.tool_call_id)
            continue
        if open_ids:
            break
        caller, open_ids = message, {call.id for call in message.tool_calls}
        if len(open_ids) < len(message.tool_calls):
            raise misplaced(message, "Two of its tool calls have the same id.")
    if caller is not None and open_ids and not (may_end_open and caller is messages[-1]):
        raise misplaced(caller, f"{len(open_ids)} of its tool calls have no output after them.")


def cut_turns(messages: Sequence[IncomingMessage]) -> tuple[IncomingTurn, ...]:
    """Cuts messages into turns: each begins with a user message, and none is empty."""
    turns: list[list[IncomingMessage]] = []
    for message, previous in zip(messages, (None, *messages), strict=False):
        if previous is None or (message.role == "user" and previous.role != "user"):
            turns.append([])
        turns[-1].append(message)
    return tuple(IncomingTurn(tuple(turn)) for turn in turns)


def as_one(messages: Sequence[_Said]) -> _Said:
    """Join several user messages into one. If they have different names, each text begins with its author's name, and
    a line that begins like the name of one of the authors with a backslash, so that none of them speaks for another."""
    if len({message.name for message in messages}) == 1:
        return replace(messages[-1], content=joined([message.content for message in messages]))
    labels = labels_of(message.name for message in messages)
    content = joined([with_name(message.name, of_one_speaker(message.content, labels)) for message in messages])
    return replace(messages[-1], content=content, name=None)


def reply_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """An assistant's content as one text, as the service stores its own replies."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def misplaced(message: IncomingMessage, detail: str) -> InvalidRequest:
    """An error that names a message of the list by its index."""
    return InvalidRequest(detail, (str(message.place),))


_CALLS = re.compile(r"(?:\A|\n)Calling tools:\n(?=\[\{'id': )")
_OBSERVED = re.compile(r"Observation:\n|Call id: \S+\nError:\n")
_NEXT_TASK = "\nNew task:\n"
_NOT_STORED = re.compile("[\0\ud800-\udfff]")
"""NUL and lone surrogates, which a Python literal can escape."""
_LONGEST_CALLS = 16 * 1024
"""Longest list of calls that is parsed, in characters. It takes up to two microseconds per character."""
_MOST_READ = 128 * 1024
_ELSEWHERE = "See the first result."
"""The output of every call of a message except the first, whose output is the one text with the results of all."""


def with_calls(messages: Sequence[IncomingMessage], tools: Collection[str]) -> tuple[IncomingMessage, ...]:
    """Convert calls of these `tools` and their results that the client wrote as text, as smolagents does.

    Such an assistant message ends with `Calling tools:` and the calls as a Python list. The user message after it
    begins with `Observation:`, or with the id of a call that failed. It may also have the user's next task.
    """
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
    """The calls in a list written as text; empty if the text is no list of calls of these tools."""
    if len(text) > _LONGEST_CALLS:
        return ()
    try:
        listed: Any = ast.literal_eval(text)
        calls = [ToolCall(call["id"], call["function"]["name"], _arguments(call["function"])) for call in listed]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return ()
    texts: list[object] = [text for call in calls for text in (call.id, call.name, call.arguments)]
    are_storable = all(isinstance(text, str) and _NOT_STORED.search(text) is None for text in texts)
    is_known = are_storable and all(call.name in tools for call in calls)
    return tuple(calls) if is_known and len({call.id for call in calls}) == len(calls) else ()


def _arguments(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _outputs(message: IncomingMessage, calls: Sequence[ToolCall]) -> list[IncomingMessage]:
    """The outputs of the calls, and the user's next task if it follows in the same text."""
    observed, next_task, task = content_text(message.content).rpartition(_NEXT_TASK)
    texts = [(observed if next_task else task).removeprefix("Observation:\n"), *[_ELSEWHERE] * (len(calls) - 1)]
    found = [
        replace(message, role="tool", content=text, tool_call_id=call.id, name=None)
        for call, text in zip(calls, texts, strict=True)
    ]
    if next_task:
        found.append(replace(message, content=next_task.lstrip("\n") + task))
    return found
