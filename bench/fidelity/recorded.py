"""Recorded conversations as the engine sees them: turns of counted messages, and the questions asked at the end."""

from __future__ import annotations

import gzip
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from app.domain.content import content_text
from app.domain.types import Message, MessageId, ToolCall, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import Estimate, message_tokens

REPLY_WORDS = 360
"""Of a reply that was made long: about 450 tokens."""
REPLY_MESSAGES = 6
"""Messages before a reply that its words are drawn from."""
_SPOKEN_TIME = re.compile(r".* on .*, [0-9]{4}")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked after the last message; `evidence` are the texts of the messages that answer it."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    category: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recording: completed turns in time order, its system text, and its questions."""

    id: str
    system: str | None
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]

    @property
    def ended_at(self) -> datetime | None:
        """When its last message was said."""
        return self.turns[-1].messages[-1].said_at


def read_conversations(path: Path, estimate: Estimate) -> list[Conversation]:
    """All conversations of a file of JSON lines, gzipped or not."""
    stored = path.read_bytes()
    lines = (gzip.decompress(stored) if path.suffix == ".gz" else stored).decode().splitlines()
    return [_conversation(json.loads(line), estimate) for line in lines if line.strip()]


def with_long_replies(conversation: Conversation, estimate: Estimate) -> Conversation:
    """The same as a chat with an assistant that answers at length: every message is the user's, whoever had it, and is
    answered by words drawn from it and from those before it."""
    draw = Random(conversation.id)  # noqa: S311 - texts to measure with
    heard: deque[list[str]] = deque(maxlen=REPLY_MESSAGES)
    turns: list[Turn] = []
    for number, message in enumerate(chain.from_iterable(turn.messages for turn in conversation.turns), start=1):
        turn_id, text = TurnId(UUID(int=number)), content_text(message.content)
        heard.append(text.split())
        reply = " ".join(draw.choices([*chain.from_iterable(heard)] or ["Noted."], k=REPLY_WORDS))
        pair = (
            numbered_message(turn_id, 2 * number - 1, "user", text, estimate, said_at=message.said_at),
            numbered_message(turn_id, 2 * number, "assistant", reply, estimate, said_at=message.said_at),
        )
        turns.append(Turn(turn_id, number, TurnStatus.COMPLETED, unresolved=False, messages=pair))
    return replace(conversation, turns=tuple(turns))


def as_one_loop(conversations: Sequence[Conversation], estimate: Estimate) -> Conversation:
    """All tool rounds of the conversations as one turn of an agent, behind the first message of a user."""
    turns = [(at, turn) for at, conversation in enumerate(conversations) for turn in conversation.turns]
    asked = next(turn.messages[0] for _, turn in turns if turn.messages[0].role == "user")
    rounds = [
        _renamed(message, f"_{at}", estimate)
        for at, turn in turns
        for message in turn.messages
        if message.role == "tool" or message.tool_calls
    ]
    messages = tuple(
        replace(message, id=MessageId(UUID(int=seq)), turn_id=asked.turn_id, seq=seq)
        for seq, message in enumerate([asked, *rounds], start=1)
    )
    loop = Turn(asked.turn_id, 1, TurnStatus.COMPLETED, unresolved=False, messages=messages)
    return replace(conversations[0], id="one loop", turns=(loop,), questions=())


def _renamed(message: Message, suffix: str, estimate: Estimate) -> Message:
    """The message with call ids that end with `suffix`: two transcripts may have the same."""
    calls = tuple(replace(call, id=call.id + suffix) for call in message.tool_calls)
    answered = message.tool_call_id + suffix if message.tool_call_id else None
    tokens = message_tokens(message.content, estimate, tool_calls=calls, tool_call_id=answered)
    return replace(message, tool_calls=calls, tool_call_id=answered, tokens=tokens)


def numbered_message(
    turn_id: TurnId,
    seq: int,
    role: Any,
    text: str,
    estimate: Estimate,
    tool_calls: tuple[ToolCall, ...] = (),
    said_at: datetime | None = None,
) -> Message:
    """A message whose id is its number."""
    tokens = message_tokens(text or None, estimate, tool_calls=tool_calls)
    return Message(MessageId(UUID(int=seq)), turn_id, seq, role, text or None, tokens, tool_calls, said_at=said_at)


def _conversation(row: Mapping[str, Any], estimate: Estimate) -> Conversation:
    spoken = [message for message in row["messages"] if message["role"] != "system"]
    system = next((message["content"] for message in row["messages"] if message["role"] == "system"), None)
    texts = {message["id"]: message["content"] for message in spoken if "id" in message}
    questions = tuple(
        Question(
            asked["q"],
            tuple(asked["answers"]),
            tuple(texts[message_id] for message_id in asked["evidence"]),
            asked["category"],
        )
        for asked in row.get("questions", ())
    )
    return Conversation(row["id"], system, tuple(_turns(spoken, estimate)), questions)


def _turns(spoken: Sequence[Mapping[str, Any]], estimate: Estimate) -> Iterable[Turn]:
    """A turn is a user's message and all that comes before the next one."""
    starts = [at for at, message in enumerate(spoken) if message["role"] == "user"]
    bounds = [*([0] if starts[:1] != [0] else []), *starts, len(spoken)]
    for number, (first, end) in enumerate(pairwise(bounds), start=1):
        turn_id = TurnId(UUID(int=number))
        messages = tuple(_message(turn_id, at + 1, spoken[at], estimate) for at in range(first, end))
        yield Turn(turn_id, number, TurnStatus.COMPLETED, unresolved=False, messages=messages)


def _message(turn_id: TurnId, seq: int, row: Mapping[str, Any], estimate: Estimate) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in row.get("tool_calls") or ()
    )
    content, call_id = row.get("content"), row.get("tool_call_id")
    tokens = message_tokens(content, estimate, tool_calls=calls, tool_call_id=call_id)
    said_at = _instant(row["ts"]) if row.get("ts") else None
    return Message(
        MessageId(UUID(int=seq)), turn_id, seq, row["role"], content, tokens, calls, call_id, said_at=said_at
    )


def _instant(text: str) -> datetime:
    """Of the ISO form, or of that of LoCoMo: `1:56 pm on 8 May, 2023`."""
    form = _SPOKEN_TIME.fullmatch(text)
    found = datetime.strptime(text, "%I:%M %p on %d %B, %Y") if form else datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC)
