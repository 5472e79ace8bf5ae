"""What the bench talks about: texts of every number, drawn or recorded. Nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from bench.conversation import Conversation, read_recorded


def test_drawn_texts_follow_from_their_numbers_and_have_the_lengths_of_chats() -> None:
    one, other = Conversation(), Conversation()
    asked = [one.question(number) for number in range(400)]
    answered = [one.answer(text) for text in asked]
    assert asked == [other.question(number) for number in range(400)]
    assert answered == [other.answer(text) for text in asked]
    assert len(set(asked)) > 0.9 * len(asked)
    assert 15 < median(len(text.split()) for text in asked) < 35
    assert 25 < median(len(text.split()) for text in answered) < 60
    words = {word for text in (*asked, *answered) for word in text.lower().split()}
    assert len(words) > 1_000


def test_recorded_exchanges_are_said_in_their_order_and_start_again(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "First."},
        {"role": "user", "content": "Never answered."},
        {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": "Second."},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"id": "c", "messages": messages}))
    recorded = read_recorded(tmp_path)
    assert [recorded.question(number) for number in range(3)] == ["One?", "Two?", "One?"]
    assert recorded.answer("Two?") == "Second."
    assert recorded.answer("What nobody recorded?")


def test_a_folder_without_recordings_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no recorded conversation"):
        read_recorded(tmp_path)
