"""The reader's promises: which messages become which turns, and what is counted as left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.replay.reader import UnreadableRecordingError, conversation, read_conversations
from app.replay.recording import OPENING_PROMPT


def said(role: str, content: Any = None, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_consecutive_user_messages_are_separate_turns() -> None:
    found = conversation("x", [said("user", "a"), said("user", "b"), said("assistant", "B")])
    assert [(turn.prompt, turn.reply) for turn in found.turns] == [("a", None), ("b", "B")]


def test_assistant_messages_in_a_row_are_one_reply() -> None:
    found = conversation("x", [said("user", "a"), said("assistant", "A1"), said("assistant", "A2")])
    assert found.turns[0].reply == "A1\n\nA2"


def test_an_assistant_that_speaks_first_answers_the_opening_prompt() -> None:
    found = conversation("x", [said("assistant", "hello"), said("user", "a")])
    assert [(turn.prompt, turn.reply) for turn in found.turns] == [(OPENING_PROMPT, "hello"), ("a", None)]


def test_a_leading_system_message_becomes_the_instructions_and_later_ones_are_counted() -> None:
    found = conversation("x", [said("system", "be brief"), said("user", "a"), said("system", "changed")])
    assert found.instructions == "be brief"
    assert found.skipped == {"system_messages": 1}


def test_tool_rounds_are_kept_in_order_and_flattened_to_the_last_text() -> None:
    messages = [
        said("user", "a"),
        {"role": "assistant", "tool_calls": [CALL]},
        said("tool", "seen", tool_call_id="call_1"),
        said("assistant", "one moment", tool_calls=[CALL]),
        said("tool", "seen again", tool_call_id="call_1"),
        said("assistant", "done"),
    ]
    (turn,) = conversation("x", messages).turns
    assert turn.reply == "done"
    assert [(len(round_.tool_calls), len(round_.outputs), round_.text) for round_ in turn.rounds] == [
        (1, 1, None),
        (1, 1, "one moment"),
        (0, 0, "done"),
    ]
    assert turn.flattened() == {"tool_calls": 2, "tool_results": 2, "interim_texts": 1}


def test_empty_messages_are_counted_and_make_no_turn() -> None:
    found = conversation("x", [said("user", " \n"), said("user", "a"), said("assistant", None)])
    assert len(found.turns) == 1
    assert found.skipped == {"empty_messages": 2}


def test_parts_that_are_no_text_leave_their_type_behind() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    found = conversation("x", [said("user", parts)])
    assert found.turns[0].prompt == "look\n[image_url]"
    assert found.skipped == {"media_parts": 1}


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_messages_are_one_conversation_plain_or_gzipped(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path / "talk.jsonl", [said("user", "a\u2028b"), said("assistant", "A")])
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    (found,) = read_conversations(path, session_per_line=True)
    assert [(turn.prompt, turn.reply) for turn in found.turns] == [("a\u2028b", "A")]


def test_a_line_of_messages_is_a_session_only_where_asked(tmp_path: Path) -> None:
    lines = [{"id": name, "messages": [said("system", name), said("user", name)], "questions": []} for name in "ab"]
    path = written(tmp_path / "talks.jsonl", lines)
    assert [found.name for found in read_conversations(path, session_per_line=True)] == ["a", "b"]
    (joined,) = read_conversations(path, session_per_line=False)
    assert [turn.prompt for turn in joined.turns] == ["a", "b"]
    assert (joined.instructions, joined.skipped) == ("a", {"system_messages": 1})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", 1),
        ('{"role": "user", "content": "a"}\n[]', 2),
        ('{"role": "pilot"}', 1),
        ('{"messages": [1]}', 1),
        ("", 0),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableRecordingError) as caught:
        read_conversations(path, session_per_line=False)
    assert caught.value.line == line


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecordingError, match=r"nowhere\.jsonl"):
        read_conversations(tmp_path / "nowhere.jsonl", session_per_line=False)
