"""An answer that was cut off within a tool call: each API says so, as its vendor does, so that clients can know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from app.domain.types import ToolCall
from tests.api import chatting, messaging
from tests.api.chatting import Chat, chat_service
from tests.api.messaging import anthropic_at, create, said
from tests.api.test_responses import TOOLS, output
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply

CUT = ModelReply("Let me see.", "", (ToolCall("a", "look_up", '{"id": "1"}'), ToolCall("b", "look_up", "{}")), "length")
CUT_IN_ARGUMENTS = ModelReply("", "", (ToolCall("a", "look_up", '{"id": "1'),), "length")
FILTERED = ModelReply("Let me", "", (ToolCall("a", "look_up", '{"id": "1"}'),), "content_filter")
ASK: Any = [{"role": "user", "content": "Is 1 paid?"}]


def events_of(at: Chat, path: str, body: Mapping[str, Any]) -> list[Any]:
    text = at.http.post(path, json={**body, "stream": True}).text
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(("reply", "reason"), [(CUT_IN_ARGUMENTS, "length"), (FILTERED, "content_filter")])
def test_a_chat_completion_has_the_reason_of_its_end(
    database_url: str, tmp_path: Path, reply: ModelReply, reason: str
) -> None:
    with chat_service(database_url, tmp_path, said(OPENAI, reply)) as at:
        for _ in ("made", "repeated"):
            whole = at.client.chat.completions.create(
                model="main", messages=ASK, tools=chatting.TOOLS, extra_headers={"Idempotency-Key": "k"}
            )
            assert whole.choices[0].finish_reason == reason
            assert whole.choices[0].message.tool_calls
        assert at.model.hits == 1
        body = {"model": "main", "messages": ASK, "tools": chatting.TOOLS}
        assert events_of(at, "/v1/chat/completions", body)[-1]["choices"][0]["finish_reason"] == reason
        expected = openai.LengthFinishReasonError if reason == "length" else openai.ContentFilterFinishReasonError
        with pytest.raises(expected):
            at.client.chat.completions.parse(model="main", messages=ASK)


def test_a_response_is_incomplete_and_so_is_the_call_at_its_end(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, said(OPENAI, CUT)) as at:
        whole = at.client.responses.create(model="main", input="Is 1 paid?", tools=TOOLS)
        assert whole.status == "incomplete"
        assert whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert [item["status"] for item in whole.model_dump()["output"]] == ["completed", "completed", "incomplete"]
        assert at.client.responses.retrieve(whole.id) == whole
        events = events_of(at, "/v1/responses", {"model": "main", "input": "Is 1 paid?", "tools": TOOLS})
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "incomplete")
        done = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
        assert done == ["completed", "completed", "incomplete"]
        # As at OpenAI, the client may answer the calls.
        at.client.responses.create(
            model="main", input=[output("a"), output("b")], tools=TOOLS, previous_response_id=whole.id
        )


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_message_stops_at_its_limit(database_url: str, tmp_path: Path, provider: str) -> None:
    wire, reply = (OPENAI, CUT_IN_ARGUMENTS) if provider == "openai" else (ANTHROPIC, replace(CUT, stop="max_tokens"))
    with chat_service(database_url, tmp_path, said(wire, reply), provider=provider) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"messages": ASK, "tools": messaging.TOOLS}
        _, whole = create(client, **asked)
        assert (whole.stop_reason, whole.content[-1].type) == ("max_tokens", "tool_use")
        with client.messages.stream(model="main", max_tokens=100, **asked) as stream:
            assert stream.get_final_message().stop_reason == "max_tokens"
