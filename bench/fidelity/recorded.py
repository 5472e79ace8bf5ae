"""Recorded conversations as the engine sees them: turns of counted messages, and the questions asked at the end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from app.domain.types import Message, MessageId, ToolCall, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import Estimate, message_tokens


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


def read_conversations(path: Path, estimate: Estimate) -> list[Conversation]:
    """All conversations of a file of JSON lines, gzipped or not."""
    stored = path.read_bytes()
    lines = (gzip.decompress(stored) if path.suffix == ".gz" else stored).decode().splitlines()
    return [_conversation(json.loads(line), estimate) for line in lines if line.strip()]


def numbered_message(
    turn_id: TurnId, seq: int, role: Any, text: str, estimate: Estimate, tool_calls: tuple[ToolCall, ...] = ()
) -> Message:
    """A message whose id is its number."""
    tokens = message_tokens(text or None, estimate, tool_calls=tool_calls)
    return Message(MessageId(UUID(int=seq)), turn_id, seq, role, text or None, tokens, tool_calls)


def _conversation(row: Mapping[str, Any], estimate: Estimate) -> Conversation:
    said = [message for message in row["messages"] if message["role"] != "system"]
    system = next((message["content"] for message in row["messages"] if message["role"] == "system"), None)
    texts = {message["id"]: message["content"] for message in said if "id" in message}
    questions = tuple(
        Question(
            asked["q"],
            tuple(asked["answers"]),
            tuple(texts[message_id] for message_id in asked["evidence"]),
            asked["category"],
        )
        for asked in row.get("questions", ())
    )
    return Conversation(row["id"], system, tuple(_turns(said, estimate)), questions)


def _turns(said: Sequence[Mapping[str, Any]], estimate: Estimate) -> Iterable[Turn]:
    """A turn is a user's message and all that comes before the next one."""
    starts = [at for at, message in enumerate(said) if message["role"] == "user"]
    bounds = [*([0] if starts[:1] != [0] else []), *starts, len(said)]
    for number, (first, end) in enumerate(pairwise(bounds), start=1):
        turn_id = TurnId(UUID(int=number))
        messages = tuple(_message(turn_id, at + 1, said[at], estimate) for at in range(first, end))
        yield Turn(turn_id, number, TurnStatus.COMPLETED, unresolved=False, messages=messages)


def _message(turn_id: TurnId, seq: int, row: Mapping[str, Any], estimate: Estimate) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in row.get("tool_calls") or ()
    )
    content, call_id = row.get("content"), row.get("tool_call_id")
    tokens = message_tokens(content, estimate, tool_calls=calls, tool_call_id=call_id)
    return Message(MessageId(UUID(int=seq)), turn_id, seq, row["role"], content, tokens, calls, call_id)
