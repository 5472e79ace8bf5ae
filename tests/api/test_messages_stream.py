"""The events of a message, as they go over the wire and as the `anthropic` client puts them together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from app.domain.types import ToolCall
from tests.api.chatting import Chat, chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, create, post, said, user
from tests.providers.server import Stream
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
THOUGHT = ModelReply("Let me see.", "They ask for a.", (ToolCall("a", "look_up", '{"id": "a"}'),))


def events_of(at: Chat, **asked: Any) -> list[dict[str, Any]]:
    """The events as they came; each one's name is its type's, and the client's types take them."""
    answer = post(at, {"stream": True, "messages": [user("Is a paid?")], "tools": TOOLS, **asked})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    found: list[dict[str, Any]] = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        if found[-1]["type"] not in ("ping", "error"):
            _EVENT.validate_python(found[-1])
    return found


def shape_of(events: list[dict[str, Any]]) -> list[str]:
    """What came in which block: `0 text` for its start, `0 text_delta`, `0 end`."""
    shapes: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                shapes.append(f"{event['index']} {event['content_block']['type']}")
            case "content_block_delta":
                shapes.append(f"{event['index']} {event['delta']['type']}")
            case "content_block_stop":
                shapes.append(f"{event['index']} end")
            case other:
                shapes.append(other)
    return shapes


def test_blocks_come_one_after_the_other_each_opened_and_closed(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, said(OPENAI, THOUGHT)) as at:
        events = events_of(at, thinking={"type": "adaptive"})
        assert shape_of(events) == [
            "message_start",
            "ping",
            *("0 thinking", "0 thinking_delta", "0 thinking_delta", "0 signature_delta", "0 end"),
            *("1 text", "1 text_delta", "1 text_delta", "1 end"),
            *("2 tool_use", "2 input_json_delta", "2 end"),
            "message_delta",
            "message_stop",
        ]
        assert events[0]["message"]["usage"]["input_tokens"] > 0
        assert events[5]["delta"]["signature"] == "unsigned"
        assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        assert events[-2]["usage"]["output_tokens"] == 3
        shown = shape_of(events_of(at))
        assert not [each for each in shown if "thinking" in each]


def test_a_thought_that_no_text_follows_is_signed(database_url: str, tmp_path: Path) -> None:
    silent = replace(THOUGHT, text="")
    with chat_service(database_url, tmp_path, said(ANTHROPIC, silent), provider="anthropic") as at:
        events = events_of(at, thinking={"type": "enabled", "budget_tokens": 1024})
        assert shape_of(events)[2:9] == [
            *("0 thinking", "0 thinking_delta", "0 thinking_delta", "0 signature_delta", "0 end"),
            *("1 tool_use", "1 input_json_delta"),
        ]
        assert events[5]["delta"]["signature"] == "sig"


def test_a_thought_is_taken_back_without_its_signature(database_url: str, tmp_path: Path) -> None:
    """LangChain leaves out an empty signature, and one of which a stream has no event."""
    with chat_service(database_url, tmp_path, said(OPENAI, replace(THOUGHT, calls=())), say("Paid.")) as at:
        asked: list[Any] = [user("Is a paid?")]
        first = post(at, {"messages": asked, "thinking": {"type": "adaptive"}})
        thinking, words = first.json()["content"]
        asked += [{"role": "assistant", "content": [{**thinking, "signature": None}, words]}, user("Is it?")]
        for bare in (asked[1]["content"][0], {"type": "thinking", "index": 0}, {"type": "redacted_thinking"}):
            asked[1]["content"][0] = bare
            second = post(at, {"messages": asked}, **{"X-Session-Id": first.headers["x-session-id"]})
            assert second.json()["content"] == [{"type": "text", "text": "Paid."}]
        assert at.sent()[1] == {"role": "assistant", "content": "Let me see."}


def test_the_message_that_the_sdk_builds_from_a_stream_equals_the_unstreamed_one(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, said(OPENAI, THOUGHT)) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"messages": [user("Is a paid?")], "tools": TOOLS}
        with client.messages.stream(model="main", max_tokens=1000, **asked) as stream:
            streamed = stream.get_final_message()
        _, whole = create(client, **asked)
        assert streamed.model_dump(exclude={"id"}, exclude_none=True) == whole.model_dump(
            exclude={"id"}, exclude_none=True
        )


def test_an_answer_that_is_repeated_has_all_events(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Paid.")) as at:
        headers = {"Idempotency-Key": "k1"}
        body = {"stream": True, "messages": [user("Is a paid?")]}
        answers = [post(at, body, **headers).text for _ in range(2)]
        assert len(at.model.seen) == 1
        assert '"text":"Paid."' in answers[1]
        assert answers[1].count("event: message_stop") == 1


def test_a_reply_that_breaks_off_is_an_error_event(database_url: str, tmp_path: Path) -> None:
    broken = Stream((*OPENAI.begin(), *OPENAI.fragments(ModelReply("Half of it"))))
    with chat_service(database_url, tmp_path, broken) as at, anthropic_at(at, max_retries=0) as client:
        with (
            pytest.raises(anthropic.APIStatusError, match="api_error"),
            client.messages.stream(model="main", max_tokens=100, messages=[user("Hi")]) as stream,
        ):
            stream.until_done()
        last = events_of(at)[-1]
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert last["request_id"]
