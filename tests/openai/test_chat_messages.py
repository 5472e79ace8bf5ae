"""Which system messages of a list are instructions, and which stand in the user's place."""

from __future__ import annotations

from typing import Any

import pytest

from app.openai.chat_messages import read_messages

_OF: dict[str, dict[str, Any]] = {
    "s": {"role": "system", "content": "Note."},
    "d": {"role": "developer", "content": [{"type": "text", "text": "Note."}]},
    "b": {"role": "system", "content": " "},
    "u": {"role": "user", "content": "Look."},
    "a": {"role": "assistant", "content": "Reply."},
    "c": {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    "t": {"role": "tool", "tool_call_id": "1", "content": "found"},
}


@pytest.mark.parametrize(
    ("listed", "inputs", "directions"),
    [
        ("su", [1], 1),
        ("usa", [0], 1),
        ("uas", [0, 2], 0),
        ("uad", [0, 2], 0),
        ("uassa", [0, 2, 3], 0),
        ("suasauas", [1, 3, 5, 7], 1),
        ("uasu", [0, 3], 1),
        ("uasc", [0, 2], 0),
        ("ucts", [0], 1),
        ("uctsa", [0], 1),
        ("sau", [2], 1),
        ("uab", [0], 0),
        ("s", [], 1),
    ],
)
def test_a_system_message_between_a_reply_and_the_next_is_an_input(
    listed: str, inputs: list[int], directions: int
) -> None:
    read = read_messages([_OF[letter] for letter in listed])
    users = [message for message in read.messages if message.role == "user"]
    assert [message.place for message in users] == inputs
    assert len(read.directions) == directions
    note = "<system-reminder>\nNote.\n</system-reminder>"
    assert [message.content for message in users] == ["Look." if listed[at] == "u" else note for at in inputs]
