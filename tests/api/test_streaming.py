"""Turns as server-sent events, over a real socket: what comes first, what last, and what a vanished client costs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for, until_heard
from tests.providers.playing import ThreadedServer, threaded_serving
from tests.providers.server import Answer, Seen

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def events_of(answer: httpx.Response) -> list[tuple[str, Any]]:
    """The events of a stream that has ended."""
    found: list[tuple[str, Any]] = []
    for block in answer.read().decode().split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("event: "):
            found.append((lines[0][7:], json.loads(lines[1][6:])))
    return found


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """One event of an OpenAI stream."""
    return (
        b"data: %b\n\n"
        % json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}).encode()
    )


def sse(*chunks: bytes, cut: bool = False) -> Answer:
    """A stream as an OpenAI server sends it."""
    body = b"".join(chunks) + (b"" if cut else b"data: [DONE]\n\n")
    return Answer(body, content_type="text/event-stream")


@contextmanager
def streaming_service(
    database_url: str, tmp_path: Path, model: ThreadedServer, **changes: Any
) -> Generator[httpx.Client]:
    """A service whose only model is the scripted server."""
    models = tmp_path / "models.toml"
    models.write_text(
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\ncontext_window = 4096\ntimeout_s = 60\n'
        f'base_url = "{model.base_url}"\n'
    )
    with (
        serving(settings_for(database_url, models_file=models, **changes)) as address,
        httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client,
    ):
        yield client


def test_a_stream_ends_with_what_reading_the_turn_then_gives(client: httpx.Client) -> None:
    session = new_session(client)
    with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hello", "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer)
    names = [name for name, _ in events]
    assert names[:2] == ["turn.created", "context.assembled"]
    assert set(names[2:-1]) == {"output.delta"}
    assert names[-1] == "turn.completed"
    last = events[-1][1]
    assert last["turn"] == client.get(f"/v1/sessions/{session}/turns/{last['turn']['id']}").json()
    assert last["context"] == events[1][1]["context"]
    assert "".join(data["text"] for name, data in events if name == "output.delta") == last["turn"]["assistant_output"]
    assert last["turn"]["id"] == events[0][1]["turn"]["id"]


def test_what_is_refused_before_the_context_stands_is_an_ordinary_problem(client: httpx.Client) -> None:
    session = new_session(client)
    body = {"content": "word " * 20_000, "stream": True}
    assert_problem(client.post(f"/v1/sessions/{session}/turns", json=body), 422, "context_budget_exceeded")
    assert_problem(
        client.post(f"/v1/sessions/{'0' * 8}-0000-7000-8000-{'0' * 12}/turns", json=body), 404, "session_not_found"
    )


def test_a_repeated_key_streams_the_stored_text_as_one_delta(client: httpx.Client) -> None:
    session = new_session(client)
    address, headers = f"/v1/sessions/{session}/turns", {"Idempotency-Key": "k"}
    stored = client.post(address, json={"content": "Hello"}, headers=headers).json()
    with client.stream("POST", address, json={"content": "Hello", "stream": True}, headers=headers) as answer:
        events = events_of(answer)
    assert [name for name, _ in events] == ["turn.created", "context.assembled", "output.delta", "turn.completed"]
    assert events[2][1] == {"text": stored["turn"]["assistant_output"]}
    assert events[3][1] == stored


def test_a_streamed_turn_with_tools_waits_and_goes_on_streaming(client: httpx.Client) -> None:
    session = new_session(client)
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    body = {"content": "Go", "tools": TOOLS, "stream": True, "recorded_reply": {"content": None, "tool_calls": [call]}}
    with client.stream("POST", f"/v1/sessions/{session}/turns", json=body) as answer:
        events = events_of(answer)
    assert events[-1][0] == "turn.awaiting_tools"
    turn = events[-1][1]["turn"]
    assert turn["tool_calls"] == [call]
    outputs = {
        "outputs": [{"tool_call_id": "a", "content": "42"}],
        "stream": True,
        "recorded_reply": {"content": "It is 42."},
    }
    with client.stream("POST", f"/v1/sessions/{session}/turns/{turn['id']}/tool-outputs", json=outputs) as answer:
        events = events_of(answer)
    assert events[-1][0] == "turn.completed"
    assert events[-1][1]["turn"]["assistant_output"] == "It is 42."
    wrong = client.post(f"/v1/sessions/{session}/turns/{turn['id']}/tool-outputs", json={"outputs": outputs["outputs"]})
    assert_problem(wrong, 409, "turn_not_open")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (sse(chunk({"content": "Half an ans"}), cut=True), "provider_error"),
        (
            sse(
                chunk({"content": "Half"}),
                b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n',
                cut=True,
            ),
            "provider_error",
        ),
    ],
    ids=["without its end mark", "with an error event"],
)
def test_a_stream_that_breaks_is_recorded_as_what_it_was(
    database_url: str, tmp_path: Path, script: Answer, code: str
) -> None:
    with threaded_serving(script) as model, streaming_service(database_url, tmp_path, model) as client:
        session = new_session(client)
        with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}) as answer:
            events = events_of(answer)
        assert model.hits == 1, "a call was repeated after its first token"
        assert events[-1][0] == "turn.failed"
        assert events[-1][1]["error"]["code"] == code
        turn = client.get(f"/v1/sessions/{session}/turns/{events[-1][1]['turn']['id']}").json()
        assert turn["status"] == "failed"
        assert turn["assistant_output"] is None
        assert turn["error"]["partial_output"].startswith("Half")
        assert events[-1][1]["turn"] == turn


def test_an_answer_that_stops_for_length_is_completed_and_says_so(database_url: str, tmp_path: Path) -> None:
    script = sse(chunk({"content": "Long"}), chunk({}, "length"))
    with threaded_serving(script) as model, streaming_service(database_url, tmp_path, model) as client:
        session = new_session(client)
        with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}) as answer:
            turn = events_of(answer)[-1][1]["turn"]
        assert (turn["status"], turn["finish_reason"]) == ("completed", "length")


def test_the_context_is_sent_while_the_model_is_still_silent(database_url: str, tmp_path: Path) -> None:
    context_read = threading.Event()

    def silent_until_then(_: Seen) -> Answer:
        assert context_read.wait(60), "the context was sent only when the model had answered"
        return sse(chunk({"content": "At last"}), chunk({}, "stop"))

    with threaded_serving(silent_until_then) as model, streaming_service(database_url, tmp_path, model) as client:
        session = new_session(client)
        with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}) as answer:
            pieces = answer.iter_text()
            heard = until_heard(pieces, "event: context.assembled")
            context_read.set()
            assert "output.delta" not in heard
            assert "event: turn.completed" in heard + "".join(pieces)


def test_a_silent_model_is_bridged_by_heartbeats(database_url: str, tmp_path: Path) -> None:
    bridged = threading.Event()
    slow = replace(sse(chunk({"content": "At last"}), chunk({}, "stop")), after=bridged.is_set)
    with threaded_serving(slow) as model, streaming_service(database_url, tmp_path, model, heartbeat_s=0.1) as client:
        session = new_session(client)
        with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}) as answer:
            pieces = answer.iter_text()
            heard = until_heard(pieces, ": the model is still silent", times=3)
            bridged.set()
            assert "event: turn.completed" in heard + "".join(pieces)


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
def test_a_client_that_goes_away_loses_no_reply_unless_the_deployment_says_so(
    database_url: str, tmp_path: Path, on_disconnect: str
) -> None:
    may_answer = threading.Event()  # where the turn is cancelled, it never may
    slow = replace(sse(chunk({"content": "Kept"}), chunk({}, "stop")), after=may_answer.is_set)
    with (
        threaded_serving(slow) as model,
        streaming_service(database_url, tmp_path, model, on_disconnect=on_disconnect, heartbeat_s=0.05) as client,
    ):
        session = new_session(client)
        with client.stream("POST", f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}) as answer:
            pieces = answer.iter_bytes()  # kept: a discarded iterator closes the connection at once
            assert next(pieces)
            deadline = time.monotonic() + 60
            while not model.hits:
                assert time.monotonic() < deadline, "the model was never called"
                time.sleep(0.01)
        if on_disconnect == "finish":
            may_answer.set()
        turn = {"status": "running"}
        while turn["status"] == "running":
            assert time.monotonic() < deadline, "the turn never ended"
            turn = client.get(f"/v1/sessions/{session}/turns").json()["items"][0]
            time.sleep(0.05)
        wanted = ("completed", "Kept") if on_disconnect == "finish" else ("cancelled", None)
        assert (turn["status"], turn["assistant_output"]) == wanted
        assert model.hits == 1
