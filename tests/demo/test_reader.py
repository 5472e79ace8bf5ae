"""The reader's promises: which messages become which turns, and what is counted as left out."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll_demo.message_sorter import conversation
from plimsoll_demo.reader import UnreadableRecordingError, read_conversations
from plimsoll_demo.recording import OPENING_PROMPT, RecordedConversation


def said(role: str, content: Any = None, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def calling(*calls: tuple[str | None, str], text: str | None = None) -> dict[str, Any]:
    """An assistant message that makes these calls, each an id and a function."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} for call_id, name in calls
    ]
    return said("assistant", text, tool_calls=made)


def rounds_of(found: RecordedConversation) -> list[tuple[str | None, list[tuple[str, str | None]]]]:
    """Of the first turn: text, and the calls' ids with their results."""
    rounds = found.turns[0].rounds
    return [(round_.text, [(call.id, call.result) for call in round_.calls]) for round_ in rounds]


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
    assert found.left_out == {"system_messages": 1}


def test_tool_rounds_are_kept_in_order_with_their_results() -> None:
    messages = [
        said("user", "a"),
        calling(("call_1", "look")),
        said("tool", "seen", tool_call_id="call_1"),
        calling(("call_1", "find"), text="one moment"),
        said("tool", "", tool_call_id="call_1"),
        said("assistant", "done"),
    ]
    found = conversation("x", messages)
    assert rounds_of(found) == [(None, [("call_1", "seen")]), ("one moment", [("call_1", "")]), ("done", [])]
    assert found.turns[0].reply == "done"
    assert (found.left_out, found.mended) == ({}, {"ids_sent_again": 1})
    assert [tool["function"]["name"] for tool in found.tools] == ["find", "look"]


def test_a_recordings_own_definitions_are_taken_and_what_it_lacks_is_made_up() -> None:
    own = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
    messages = [said("user", "a"), calling(("1", "look")), calling(("2", "find")), said("assistant", "done")]
    found = conversation("x", messages, [own, {"name": "in an older form"}])
    made_up = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    assert found.tools == (made_up, own)
    assert found.left_out == {"tool_definitions": 1}


def test_calls_that_stand_in_messages_of_their_own_are_parallel() -> None:
    results = [said("tool", name.upper(), tool_call_id=name) for name in "ba"]
    found = conversation("x", [said("user", "go"), calling(("a", "look")), calling(("b", "look")), *results])
    assert rounds_of(found) == [(None, [("a", "A"), ("b", "B")])]
    assert found.mended == {"messages_joined": 1}


def test_a_text_before_a_call_goes_with_the_call() -> None:
    messages = [
        said("user", "go"),
        said("assistant", "Let me see."),
        calling(("a", "look")),
        said("assistant", "Well."),
    ]
    found = conversation("x", messages)
    assert rounds_of(found) == [("Let me see.", [("a", None)]), ("Well.", [])]
    assert found.mended == {"messages_joined": 1}


def test_a_late_result_goes_to_its_call_and_one_without_a_call_is_left_out() -> None:
    messages = [
        said("tool", "too early", tool_call_id="a"),
        said("user", "go"),
        calling(("a", "look")),
        said("assistant", "It takes a while."),
        said("user", "and?"),
        said("tool", "late", tool_call_id="a"),
        said("tool", "whose?", tool_call_id="b"),
        said("tool", "again", tool_call_id="a"),
    ]
    found = conversation("x", messages)
    assert rounds_of(found) == [(None, [("a", "late")]), ("It takes a while.", [])]
    assert found.turns[1].rounds == ()
    assert (found.left_out, found.mended) == ({"tool_results_without_call": 3}, {"results_moved": 1})


def test_missing_and_doubled_ids_are_given_and_their_results_found_by_order() -> None:
    messages = [
        said("user", "go"),
        calling((None, "look"), ("a", "look"), ("a", "look")),
        said("tool", "first"),
        said("tool", "second", tool_call_id="a"),
        said("tool", "third", tool_call_id="a"),
    ]
    found = conversation("x", messages)
    ids = [call.id for call in found.turns[0].rounds[0].calls]
    assert [call.result for call in found.turns[0].rounds[0].calls] == ["first", "second", "third"]
    assert ids == ["replayed_call_1", "a", "replayed_call_3"]
    assert found.mended == {"ids_given": 2}


def test_a_function_name_the_wire_does_not_take_is_changed_in_call_and_definition() -> None:
    call = {"id": "a", "function": {"name": "maps.look up", "arguments": {"at": "home"}}}
    found = conversation("x", [said("user", "go"), said("assistant", tool_calls=[call])])
    (made,) = found.turns[0].rounds[0].calls
    assert (made.name, made.arguments) == ("maps_look_up", '{"at": "home"}')
    assert found.tools[0]["function"]["name"] == "maps_look_up"
    assert found.mended == {"functions_renamed": 1}


def test_empty_messages_are_counted_and_make_no_turn() -> None:
    found = conversation("x", [said("user", " \n"), said("user", "a"), said("assistant", None)])
    assert len(found.turns) == 1
    assert found.left_out == {"empty_messages": 2}


def test_parts_that_are_no_text_leave_their_type_behind() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    found = conversation("x", [said("user", parts)])
    assert found.turns[0].prompt == "look\n[image_url]"
    assert found.left_out == {"media_parts": 1}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "with a byte order mark"])
def test_lines_of_messages_are_one_conversation_plain_or_gzipped(tmp_path: Path, packed: bool, mark: bytes) -> None:
    path = written(tmp_path / "talk.jsonl", [said("user", "a\u2028b"), said("assistant", "A")])
    path.write_bytes(mark + path.read_bytes())
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    (found,) = read_conversations(path, session_per_line=True)
    assert [(turn.prompt, turn.reply) for turn in found.turns] == [("a\u2028b", "A")]


def test_a_line_of_messages_is_a_session_only_where_requested(tmp_path: Path) -> None:
    lines = [{"id": name, "messages": [said("system", name), said("user", name)], "questions": []} for name in "ab"]
    path = written(tmp_path / "talks.jsonl", lines)
    assert [found.name for found in read_conversations(path, session_per_line=True)] == ["a", "b"]
    (joined,) = read_conversations(path, session_per_line=False)
    assert [turn.prompt for turn in joined.turns] == ["a", "b"]
    assert (joined.instructions, joined.left_out) == ("a", {"system_messages": 1})


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
