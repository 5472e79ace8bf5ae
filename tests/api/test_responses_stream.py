"""The events of a response, as they go over the wire and as the `openai` client's own helpers put them together."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.api.chatting import Chat, chat_service, openai_at, say
from tests.api.conftest import until_heard
from tests.api.test_responses import TOOLS, output, sessions
from tests.providers.server import Answer, Stream

THINKING = [
    {"reasoning_content": "They ask "},
    {"reasoning_content": "for a."},
    {"content": "Let me "},
    {"content": "see."},
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look_up", "arguments": '{"id": "a"}'}}]},
]


def streamed(*deltas: Any, finish_reason: str = "stop") -> Answer:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 7}})
    body = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
    return Answer(body, content_type="text/event-stream")


def events_of(at: Chat, **asked: Any) -> list[dict[str, Any]]:
    """The events as they came; each one's name is its type's."""
    answer = at.http.post("/v1/responses", json={"model": "main", "stream": True} | asked)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    read_events: list[dict[str, Any]] = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        read_events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read_events[-1]['type']}"
    return read_events


def test_thoughts_words_and_calls_come_in_openais_order_each_opened_and_closed(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, streamed(*THINKING, finish_reason="tool_calls"), say("Paid.")) as at:
        read_events = events_of(at, input="Is a paid?", tools=TOOLS)
        assert [(event["type"].removeprefix("response."), event.get("output_index")) for event in read_events] == [
            ("created", None),
            ("in_progress", None),
            ("output_item.added", 0),
            ("content_part.added", 0),
            ("reasoning_text.delta", 0),
            ("reasoning_text.delta", 0),
            ("reasoning_text.done", 0),
            ("content_part.done", 0),
            ("output_item.done", 0),
            ("output_item.added", 1),
            ("content_part.added", 1),
            ("output_text.delta", 1),
            ("output_text.delta", 1),
            ("output_text.done", 1),
            ("content_part.done", 1),
            ("output_item.done", 1),
            ("output_item.added", 2),
            ("function_call_arguments.delta", 2),
            ("function_call_arguments.done", 2),
            ("output_item.done", 2),
            ("completed", None),
        ]
        assert [event["sequence_number"] for event in read_events] == list(range(len(read_events)))
        final = read_events[-1]["response"]
        assert final["output"] == [
            event["item"] for event in read_events if event["type"] == "response.output_item.done"
        ]
        assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
        assert final["output"][0]["content"] == [{"type": "reasoning_text", "text": "They ask for a."}]
        assert {event["response"]["id"] for event in read_events if "response" in event} == {final["id"]}
        assert at.http.get(f"/v1/responses/{final['id']}").json() == final
        items = at.http.get(f"/v1/conversations/conv_{final['id'][5:37]}/items?order=asc").json()["data"]
        assert items[1:] == final["output"]
        adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
        for event in read_events:
            adapter.validate_python(event)


class Found(BaseModel):
    city: str


def test_the_clients_streaming_and_parsing_helpers_understand_it(database_url: str, tmp_path: Path) -> None:
    with chat_service(
        database_url, tmp_path, say(None, "a"), say('{"city": "Sofia in the south"}'), say('{"city": "Rome"}')
    ) as at:
        with at.client.responses.stream(model="main", input="Where?", tools=TOOLS) as stream:
            kinds = [event.type for event in stream]
            calling = stream.get_final_response()
        assert "response.function_call_arguments.done" in kinds
        assert calling.output[0].type == "function_call"
        with at.client.responses.stream(
            model="main", input=[output("a")], previous_response_id=calling.id, text_format=Found
        ) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert len(snapshots) == 5
        assert snapshots[-1] == '{"city": "Sofia in the south"}'
        assert final.output_parsed == Found(city="Sofia in the south")
        parsed = at.client.responses.parse(model="main", input="And then?", text_format=Found)
        assert parsed.output_parsed == Found(city="Rome")
        assert at.model.seen[2].json["response_format"]["json_schema"]["name"] == "Found"


async def test_the_asynchronous_client_is_served_alike(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One two."), say("Three.")) as at:
        async with openai.AsyncOpenAI(base_url=f"{at.address}/v1", api_key="none") as client:
            events = [event async for event in await client.responses.create(model="main", input="Hi", stream=True)]
            last = events[-1]
            assert isinstance(last, ResponseCompletedEvent)
            async with client.responses.stream(
                model="main", input="More", previous_response_id=last.response.id
            ) as stream:
                assert (await stream.get_final_response()).output_text == "Three."
            conversation = await client.conversations.create(metadata={"a": "b"})
            made = await client.conversations.items.create(
                conversation.id, items=[{"role": "user", "content": f"Item {number}"} for number in range(20)]
            )
            assert len(made.data) == 20
            listed = [item async for item in client.conversations.items.list(conversation.id, limit=7)]
            assert [item.id for item in listed] == [item.id for item in reversed(made.data)]


def test_an_empty_answer_is_an_empty_message_in_a_stream_too(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, streamed({"content": ""})) as at:
        read_events = events_of(at, input="Hi")
        assert read_events[-1]["response"]["output"][0]["content"][0]["text"] == ""
        assert [event["type"] for event in read_events if event["type"].endswith("delta")] == []


def test_a_stream_that_breaks_ends_as_failed_and_keeps_what_had_come(database_url: str, tmp_path: Path) -> None:
    half = b'data: {"choices": [{"index": 0, "delta": {"content": "Half"}}]}\n\n'
    with chat_service(database_url, tmp_path, Stream((half,), ending="cut"), say("Whole.")) as at:
        read_events = events_of(at, input="Go")
        assert [event["type"] for event in read_events[-4:]] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.failed",
        ]
        failed = read_events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert failed["output"][0]["status"] == "incomplete"
        stored = at.client.responses.retrieve(failed["id"])
        assert (stored.status, stored.error and stored.error.message) == ("failed", failed["error"]["message"])
        assert [item.to_dict() for item in stored.output] == failed["output"]
        assert len(at.turns(sessions(at)[0]["id"])) == 1


def test_a_response_that_is_cancelled_keeps_what_had_come(database_url: str, tmp_path: Path) -> None:
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "Kept"}}]}\n\n'
    with chat_service(database_url, tmp_path, Stream((piece, piece), pause_s=30)) as at:
        with at.client.responses.create(model="main", input="Go", stream=True) as stream:
            created = next(event.response for event in stream if event.type == "response.created")
            assert next(event.delta for event in stream if event.type == "response.output_text.delta") == "Kept"
            cancelled = at.client.responses.cancel(created.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "Kept")
        assert at.client.responses.retrieve(created.id) == cancelled


def test_what_is_refused_before_it_begins_is_no_stream(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, window=4096) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.responses.create(model="main", input="word " * 5000, stream=True)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
        assert cast(Any, refused.value.body)["recovery"]["shorten"]


def test_a_silent_model_is_bridged_by_comments(database_url: str, tmp_path: Path) -> None:
    bridged = threading.Event()
    with chat_service(database_url, tmp_path, say("Hi", after=bridged.is_set), heartbeat_s=0.1) as at:
        request = {"model": "main", "input": "Hi", "stream": True}
        with at.http.stream("POST", "/v1/responses", json=request) as answer:
            until_heard(answer.iter_text(), ": the model is still silent", times=3)
            bridged.set()
        events = list(at.client.responses.create(model="main", input="Hi", stream=True))
        assert cast(ResponseCompletedEvent, events[-1]).response.output_text == "Hi"


def test_a_stream_whose_call_fails_before_its_answer_is_retried_by_the_client(
    database_url: str, tmp_path: Path
) -> None:
    limited = [Answer({"error": {"message": "Slow down."}}, 429)] * 3
    with (
        chat_service(database_url, tmp_path, *limited, say("Hi")) as at,
        openai_at(at.address, max_retries=1) as client,
    ):
        events = list(client.responses.create(model="main", input="Hi", stream=True))
        assert cast(ResponseCompletedEvent, events[-1]).response.output_text == "Hi"
        assert at.model.hits == 4


def test_a_background_response_begins_at_once_and_fails_in_its_stream(database_url: str, tmp_path: Path) -> None:
    refused = Answer({"error": {"message": "No."}}, 400)
    with chat_service(database_url, tmp_path, refused) as at:
        events = list(at.client.responses.create(model="main", input="Hi", stream=True, background=True))
        assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]


@pytest.mark.parametrize(
    ("on_disconnect", "background"), [("finish", False), ("cancel", True)], ids=["finished", "in the background"]
)
def test_a_client_that_goes_away_finds_its_response_complete(
    database_url: str, tmp_path: Path, on_disconnect: str, background: bool
) -> None:
    pieces = (b'data: {"choices": [{"index": 0, "delta": {"content": "Kept"}}]}\n\n',) * 2
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    model = Stream((*pieces, end), pause_s=0.2)
    with chat_service(database_url, tmp_path, model, on_disconnect=on_disconnect, heartbeat_s=0.05) as at:
        stream = at.client.responses.create(model="main", input="Go", stream=True, background=background)
        response_id = cast(Any, next(iter(stream))).response.id
        stream.close()
        deadline = time.monotonic() + 60
        while (response := at.client.responses.retrieve(response_id)).status == "in_progress":
            assert time.monotonic() < deadline, "it never ended"
            time.sleep(0.05)
        assert (response.status, response.output_text) == ("completed", "KeptKept")
