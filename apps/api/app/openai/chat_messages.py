"""A list of OpenAI chat messages: split into instructions and messages, checked, and cut into turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.domain.content import content_text, tool_calls_from_json, with_name
from app.domain.errors import InvalidRequest
from app.domain.incoming import IncomingList, IncomingMessage
from app.domain.types import Content, ContentPart, Role, ToolCall


@dataclass(frozen=True, slots=True)
class IncomingTurn:
    """A past turn in a list: the user's messages and what followed from them.

    Several user messages in a row are one turn. A list that begins with the assistant has a first turn without a user.
    """

    messages: tuple[IncomingMessage, ...]

    @property
    def user_input(self) -> str:
        """The text of the user's messages; empty when there are none."""
        return content_text(joined([message.content for message in self.messages if message.role == "user"]))

    @property
    def assistant_output(self) -> str | None:
        """The text of the reply that ended the turn, or None when none did."""
        last = self.messages[-1]
        return content_text(last.content) if last.role == "assistant" and not last.tool_calls else None

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls at its end that nothing has answered yet."""
        return self.messages[-1].tool_calls


def read_messages(messages: Sequence[Mapping[str, Any]]) -> IncomingList:
    """Splits a list whose form has been validated (`api/schemas/chat.py`); pairing is `check_pairing`'s."""
    instructions: list[str] = []
    kept: list[IncomingMessage] = []
    for place, message in enumerate(messages):
        role: str = message["role"]
        content: Content = message.get("content")
        name, said_at = message.get("name"), instant_from(message.get("said_at"))
        if role in ("system", "developer"):
            instructions.append(content_text(content))
        elif role == "assistant":
            calls = tool_calls_from_json(message.get("tool_calls"))
            text = None if content is None else reply_text(content)
            text = text or message.get("refusal") or (None if calls else "")
            kept.append(IncomingMessage(place, "assistant", text, calls, name=name, said_at=said_at))
        elif role == "tool":
            # The name that some clients send here is the function's.
            call_id = message["tool_call_id"]
            kept.append(IncomingMessage(place, "tool", content, tool_call_id=call_id, said_at=said_at))
        else:
            kept.append(IncomingMessage(place, "user", content, name=name, said_at=said_at))
    return IncomingList("\n\n".join(text for text in instructions if text.strip()) or None, tuple(kept))


def check_pairing(messages: Sequence[IncomingMessage], *, may_end_open: bool = False) -> None:
    """Holds every tool result to its call, and every call to exactly one result before another message.

    With `may_end_open` the last message may be calls that nothing has answered yet. Raises `InvalidRequest` that names
    the message by its index.
    """
    caller: IncomingMessage | None = None
    open_ids: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                raise misplaced(message, "This answers no open tool call before it.")
            open_ids.remove(message.tool_call_id)
            continue
        if caller is not None and open_ids:
            break
        caller, open_ids = message, {call.id for call in message.tool_calls}
        if len(open_ids) < len(message.tool_calls):
            raise misplaced(message, "Two of its tool calls have the same id.")
    if caller is not None and open_ids and not (may_end_open and caller is messages[-1]):
        raise misplaced(caller, f"{len(open_ids)} of its tool calls have no output after them.")


def cut_turns(messages: Sequence[IncomingMessage]) -> tuple[IncomingTurn, ...]:
    """Cuts messages into turns: each begins with a user message, and none is empty."""
    turns: list[list[IncomingMessage]] = []
    previous: Role | None = None
    for message in messages:
        if not turns or (message.role == "user" and previous != "user"):
            turns.append([])
        turns[-1].append(message)
        previous = message.role
    return tuple(IncomingTurn(tuple(turn)) for turn in turns)


def instant_from(text: str | None) -> datetime | None:
    """An instant as clients write it, with its zone."""
    return None if text is None else datetime.fromisoformat(text)


def as_one(messages: Sequence[IncomingMessage]) -> IncomingMessage:
    """Several of the user's messages as one. Where more than one person spoke, each text begins with who did."""
    if len({message.name for message in messages}) == 1:
        return replace(messages[-1], content=joined([message.content for message in messages]))
    content = joined([with_name(message.name, message.content) for message in messages])
    return replace(messages[-1], content=content, name=None)


def joined(contents: Sequence[Content]) -> Content:
    """Several contents as one: texts with a blank line between, anything else as one list of parts."""
    if len(contents) == 1:
        return contents[0]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(map(content_text, contents))
    parts: list[ContentPart] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    return parts


def reply_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """An assistant's content as text, as the service stores its own."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def misplaced(message: IncomingMessage, detail: str) -> InvalidRequest:
    """The error that names a message of a list by its index."""
    return InvalidRequest(detail, (str(message.place),))
