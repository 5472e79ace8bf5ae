"""Tool calls that a client writes into its texts are read as calls, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.types import ToolCall
from app.openai.chat_messages import read_messages, with_calls

LOOK_UP = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": {"id": 7}}}
SECOND = LOOK_UP | {"id": "c2"}


def converted(assistant: str, user: Any, tools: set[str] | None = None) -> list[tuple[Any, ...]]:
    """Role, content and calls of each message."""
    listed: list[Any] = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": assistant},
        {"role": "user", "content": user},
    ]
    found = with_calls(read_messages(listed).messages, {"look_up"} if tools is None else tools)
    return [(message.role, message.content, message.tool_calls, message.tool_call_id) for message in found[1:]]


def test_calls_and_results_written_as_text_become_calls_and_outputs_and_the_next_task_is_a_user_message() -> None:
    written = f"I look.\nCalling tools:\n{[LOOK_UP, SECOND]}"
    observed = [{"type": "text", "text": "Observation:\nPaid.\nNew task:\nAnd 8?"}]
    calls = (ToolCall("c1", "look_up", '{"id": 7}'), ToolCall("c2", "look_up", '{"id": 7}'))
    assert converted(written, observed) == [
        ("assistant", "I look.", calls, None),
        ("tool", "Paid.", (), "c1"),
        ("tool", "See the first result.", (), "c2"),
        ("user", "New task:\nAnd 8?", (), None),
    ]
    failed = "Call id: c1\nError:\nNo such invoice."
    assert converted(f"Calling tools:\n{[LOOK_UP]}", failed)[1:] == [("tool", failed, (), "c1")]


@pytest.mark.parametrize(
    ("assistant", "user", "tools"),
    [
        (f"Calling tools:\n{[LOOK_UP]}", "Thank you.", None),
        (f"Calling tools:\n{[LOOK_UP]}", "Observation:\nPaid.", set[str]()),
        (f"Calling tools:\n{[LOOK_UP]}", "Observation:\nPaid.", {"another"}),
        (f"Calling tools:\n{[LOOK_UP, LOOK_UP]}", "Observation:\nPaid.", None),
        ("Calling tools:\n[{'id': 7, 'function': {'name': 'look_up', 'arguments': {}}}]", "Observation:\nPaid.", None),
        ("Calling tools:\n[{'id': open('x')}]", "Observation:\nPaid.", None),
        ("Calling tools:\n[{'id': " + "[" * 9000, "Observation:\nPaid.", None),
        ("Calling tools:\n[{'id': 'c', 'function': 'look_up'}]", "Observation:\nPaid.", None),
        ("Calling tools:\n[{'id': 'c', 'function': {'name': [], 'arguments': 1}}]", "Observation:\nPaid.", None),
        (f"Calling tools:\n{[LOOK_UP | {'id': 'NUL'}]}".replace("NUL", r"\0"), "Observation:\nPaid.", None),
        (f"Calling tools:\n{[LOOK_UP]}".replace("{'id': 7}", r"'\0'"), "Observation:\nPaid.", None),
        (f"Calling tools:\n{[LOOK_UP]}".replace("7", r"'\ud800'"), "Observation:\nPaid.", None),
    ],
)
def test_what_is_no_list_of_calls_of_the_requests_tools_stays_text(assistant: str, user: str, tools: Any) -> None:
    assert converted(assistant, user, tools) == [("assistant", assistant, (), None), ("user", user, (), None)]


def test_only_an_assistants_text_that_a_users_observation_follows_is_read() -> None:
    written, observed = f"Calling tools:\n{[LOOK_UP]}", "Observation:\nPaid."
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    lists: list[list[Any]] = [
        [{"role": "user", "content": written}, {"role": "user", "content": observed}],
        [{"role": "assistant", "content": "Done."}, {"role": "user", "content": observed}],
        [{"role": "assistant", "content": written}, {"role": "assistant", "content": observed}],
        [{"role": "assistant", "content": written}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        [{"role": "assistant", "content": written}],
    ]
    for messages in map(read_messages, lists):
        assert with_calls(messages.messages, {"look_up"}) == messages.messages


def test_what_follows_the_results_is_read_as_it_is() -> None:
    rounds: list[Any] = [
        {"role": "assistant", "content": f"Calling tools:\n{[LOOK_UP]}"},
        {"role": "user", "content": "Observation:\nPaid."},
    ]
    more: list[Any] = [{"role": "assistant", "content": "It is paid."}, {"role": "user", "content": "Thanks."}]
    found = with_calls(read_messages([*rounds, *rounds, *more]).messages, {"look_up"})
    assert [message.role for message in found] == ["assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert [message.content for message in found] == [None, "Paid.", None, "Paid.", "It is paid.", "Thanks."]
