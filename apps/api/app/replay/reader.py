"""Reads recorded conversations from JSON lines, plain or gzipped.

A line is either one OpenAI-style message (all such lines of a file are one conversation) or an object with `messages`
(one conversation a line). Other members of a line are ignored.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

from app.replay.recording import OPENING_PROMPT, Conversation, RecordedTurn, Round, Skipped, ToolOutput

GZIP_MAGIC = b"\x1f\x8b"
KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class UnreadableRecordingError(Exception):
    """The file is no recording. `line` is the number of the offending line, from 1; 0 for the file as a whole."""

    def __init__(self, path: Path, line: int, detail: str) -> None:
        super().__init__(f"{path}:{line}: {detail}" if line else f"{path}: {detail}")
        self.line = line


def read_conversations(path: Path, *, session_per_line: bool) -> list[Conversation]:
    """The conversations of `path`, one for each session to be made.

    With `session_per_line` every line that holds a conversation is one; without it they follow one another in a single
    one. Raises `UnreadableRecordingError` when the file is missing, is no JSON lines, or holds no turn.
    """
    spoken: list[Mapping[str, Any]] = []
    conversations: list[Conversation] = []
    for number, line in _objects(path):
        if isinstance(line.get("messages"), list):
            name = str(line.get("id", f"line {number}"))
            conversations.append(conversation(name, _messages(path, number, line["messages"])))
        else:
            spoken.extend(_messages(path, number, [line]))
    if spoken:
        conversations.append(conversation(_name(path), spoken))
    conversations = [found for found in conversations if found.turns]
    if not conversations:
        raise UnreadableRecordingError(path, 0, "holds no conversation with at least one message to send")
    return conversations if session_per_line else [_in_one_session(_name(path), conversations)]


def conversation(name: str, messages: Iterable[Mapping[str, Any]]) -> Conversation:
    """Sorts OpenAI-style messages into turns.

    Every user message begins a turn, also directly after another one. An assistant message before the first of them
    answers `OPENING_PROMPT`. Assistant messages in a row without tool calls between them are one reply.
    """
    instructions: list[str] = []
    turns: list[RecordedTurn] = []
    skipped: Counter[Skipped] = Counter()
    for message in messages:
        text, media_parts = _text(message.get("content"))
        skipped["media_parts"] += media_parts
        calls = tuple(cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ()))
        match message["role"]:
            case "system" | "developer" if not turns:
                instructions.append(text)
            case "system" | "developer":
                skipped["system_messages"] += 1
            case "tool":
                _attach_output(turns, ToolOutput(str(message.get("tool_call_id", "")), text), skipped)
            case _ if not text.strip() and not calls:
                skipped["empty_messages"] += 1
            case "user":
                turns.append(RecordedTurn(prompt=text))
            case _:
                _attach_reply(turns, Round(text=text or None, tool_calls=calls))
    return Conversation(name, tuple(turns), "\n\n".join(filter(None, instructions)) or None, +skipped)


def _attach_reply(turns: list[RecordedTurn], reply: Round) -> None:
    if not turns:
        turns.append(RecordedTurn(prompt=OPENING_PROMPT))
    turn = turns[-1]
    previous = turn.rounds[-1] if turn.rounds else None
    if previous is not None and not previous.tool_calls and not reply.tool_calls:
        joined = Round(text="\n\n".join(filter(None, (previous.text, reply.text))))
        turns[-1] = RecordedTurn(turn.prompt, (*turn.rounds[:-1], joined))
    else:
        turns[-1] = RecordedTurn(turn.prompt, (*turn.rounds, reply))


def _attach_output(turns: list[RecordedTurn], output: ToolOutput, skipped: Counter[Skipped]) -> None:
    if not turns or not turns[-1].rounds:
        skipped["tool_results"] += 1
        return
    *earlier, last = turns[-1].rounds
    answered = Round(last.text, last.tool_calls, (*last.outputs, output))
    turns[-1] = RecordedTurn(turns[-1].prompt, (*earlier, answered))


def _in_one_session(name: str, conversations: Sequence[Conversation]) -> Conversation:
    """One after the other; a session has one set of instructions, so the first conversation's stand for all."""
    skipped: Counter[Skipped] = Counter()
    for found in conversations:
        skipped.update(found.skipped or {})
    instructions = conversations[0].instructions
    skipped["system_messages"] += sum(
        1 for found in conversations[1:] if found.instructions not in {None, instructions}
    )
    return Conversation(name, tuple(turn for found in conversations for turn in found.turns), instructions, +skipped)


def _name(path: Path) -> str:
    return path.name.split(".", maxsplit=1)[0] or path.name


def _text(content: object) -> tuple[str, int]:
    """The text of a content and how many of its parts are no text; such a part leaves its type in brackets."""
    if content is None or isinstance(content, str):
        return content or "", 0
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False), 0
    texts: list[str] = []
    media_parts = 0
    for part in cast("list[Any]", content):
        if isinstance(part, str):
            texts.append(part)
        elif _is_object(part) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            media_parts += 1
            texts.append(f"[{part.get('type', 'media') if _is_object(part) else 'media'}]")
    return "\n".join(texts), media_parts


def _messages(path: Path, number: int, values: Iterable[object]) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    for value in values:
        if not _is_object(value) or value.get("role") not in KNOWN_ROLES:
            raise UnreadableRecordingError(path, number, f"a message needs a role of {', '.join(sorted(KNOWN_ROLES))}")
        messages.append(value)
    return messages


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UnreadableRecordingError(path, 0, f"cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value: object = json.loads(line)
        except json.JSONDecodeError as error:
            raise UnreadableRecordingError(path, number, f"is no JSON: {error}") from error
        if not _is_object(value):
            raise UnreadableRecordingError(path, number, "is no JSON object")
        yield number, value


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict)
