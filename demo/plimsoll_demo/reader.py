"""Reads recorded conversations from JSON lines, plain or gzipped.

A line is either one OpenAI-style message (all such lines of a file are one conversation) or an object with `messages`
(one conversation a line), and `tools` where it has definitions. Other members of a line are ignored.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from plimsoll_demo.definitions import united
from plimsoll_demo.message_sorter import conversation
from plimsoll_demo.recording import LeftOut, Mended, RecordedConversation

GZIP_MAGIC = b"\x1f\x8b"
KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class UnreadableRecordingError(Exception):
    """The file is no recording. `line` is the number of the offending line, from 1; 0 for the file as a whole."""

    def __init__(self, path: Path, line: int, detail: str) -> None:
        super().__init__(f"{path}:{line}: {detail}" if line else f"{path}: {detail}")
        self.line = line


def read_conversations(path: Path, *, session_per_line: bool) -> list[RecordedConversation]:
    """The conversations of `path`, one for each session to be made.

    With `session_per_line` every line that holds a conversation is one; without it they follow one another in a single
    one. Raises `UnreadableRecordingError` when the file is missing, is no JSON lines, or holds no turn.
    """
    spoken: list[Mapping[str, Any]] = []
    conversations: list[RecordedConversation] = []
    for number, line in _objects(path):
        if isinstance(line.get("messages"), list):
            name = str(line.get("id", f"line {number}"))
            conversations.append(conversation(name, _messages(path, number, line["messages"]), line.get("tools")))
        else:
            spoken.extend(_messages(path, number, [line]))
    if spoken:
        conversations.append(conversation(_name(path), spoken))
    conversations = [found for found in conversations if found.turns]
    if not conversations:
        raise UnreadableRecordingError(path, 0, "holds no conversation with at least one message to send")
    return conversations if session_per_line else [_in_one_session(_name(path), conversations)]


def _in_one_session(name: str, conversations: Sequence[RecordedConversation]) -> RecordedConversation:
    """One after the other; a session has one set of instructions, so the first conversation's stand for all."""
    left_out: Counter[LeftOut] = Counter()
    mended: Counter[Mended] = Counter()
    for found in conversations:
        left_out.update(found.left_out or {})
        mended.update(found.mended or {})
    instructions = conversations[0].instructions
    left_out["system_messages"] += sum(
        1 for found in conversations[1:] if found.instructions not in {None, instructions}
    )
    return RecordedConversation(
        name=name,
        turns=tuple(turn for found in conversations for turn in found.turns),
        instructions=instructions,
        tools=united(found.tools for found in conversations),
        left_out=+left_out,
        mended=+mended,
    )


def _name(path: Path) -> str:
    return path.name.split(".", maxsplit=1)[0] or path.name


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
        text = (gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UnreadableRecordingError(path, 0, f"cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value: object = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UnreadableRecordingError(path, number, f"is not JSON: {error}") from error
        if not _is_object(value):
            raise UnreadableRecordingError(path, number, "is not a JSON object")
        yield number, value


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict)
