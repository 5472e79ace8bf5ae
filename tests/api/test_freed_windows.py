"""What a request read of a session is freed when the request fails, without a garbage collection: else the next are
refused for as long as no collection comes."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from threading import get_ident
from time import monotonic, sleep
from typing import Any, TypeVar

import httpx
import pytest

from app.api.direct_route import Call
from app.api.edge import Exchange
from app.services.process_state import WindowBytes
from tests.api.chatting import chat_service
from tests.api.conftest import PATIENCE_S, new_session
from tests.freed import frees_failed_blocks
from tests.providers.server import Answer, Play, Reset, Stream

T = TypeVar("T")
_WINDOWS_BYTES = 1024 * 1024
_SESSION_BYTES = 600_000
_FREED_WITHIN_S = 5.0
_REFUSAL = Answer({"error": {"message": "No."}}, status=400)
_PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n'
_CASES: dict[str, tuple[Play, str, dict[str, Any], int, str]] = {
    "a prompt that does not fit": (
        _REFUSAL,
        "turns",
        {"content": "word " * 20_000},
        422,
        "context_budget_exceeded",
    ),
    "a refusal": (_REFUSAL, "turns", {"content": "Hello"}, 502, "provider_error"),
    "an overflow": (
        Answer({"error": {"message": "Too long.", "code": "context_length_exceeded"}}, status=400),
        "turns",
        {"content": "Hello"},
        502,
        "provider_context_overflow",
    ),
    "a limited rate": (
        Answer(status=429, headers={"retry-after": "100"}),
        "turns",
        {"content": "Hello"},
        502,
        "rate_limited",
    ),
    "a hang-up": (Reset(), "turns", {"content": "Hello"}, 502, "provider_error"),
    "a stream that is cut": (
        Stream([_PIECE] * 3, "cut"),
        "turns",
        {"content": "Hello", "stream": True},
        200,
        "turn.failed",
    ),
    "a stream that cannot be read": (
        Stream([_PIECE, b"data: {\n\n"]),
        "turns",
        {"content": "Hello", "stream": True},
        200,
        "turn.failed",
    ),
    "a stream that is refused": (_REFUSAL, "turns", {"content": "Hello", "stream": True}, 200, "turn.failed"),
    "a summarizer that is down": (Answer(status=500), "summaries", {}, 201, '"origin":"fallback"'),
}


@pytest.fixture
def without_collections() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def imported(client: httpx.Client, turns: int) -> str:
    text = "word " * (_SESSION_BYTES // turns // 2 // len("word "))
    messages = [{"role": role, "content": text} for _ in range(turns) for role in ("user", "assistant")]
    return client.post("/v1/sessions/import", json={"messages": messages}).raise_for_status().json()["id"]


def assert_freed(client: httpx.Client, session: str) -> None:
    """That a request gets what needs as many bytes again, and that no collection of the service had to free them. A
    thread that has computed for the first one may still refer to its arguments when that is answered."""
    collector, by_collection = [0], list[bool]()

    def note(phase: str, _info: object) -> None:
        collector[0] = get_ident() if phase == "start" else 0

    gc.callbacks.append(note)
    held = [each for each in gc.get_objects() if isinstance(each, WindowBytes)]
    watched = [weakref.ref(each, lambda _: by_collection.append(collector[0] == get_ident())) for each in held]
    del held
    gives_up_at = monotonic() + _FREED_WITHIN_S
    while (answer := client.get(f"{session}/context")).status_code == 429 and monotonic() < gives_up_at:
        sleep(0.02)
    gc.callbacks.remove(note)
    assert answer.status_code == 200, answer.text
    assert not any(by_collection), f"of {len(watched)} held, {sum(by_collection)} were freed by a collection"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=frees_failed_blocks if case == "a stream that is cut" else ()) for case in _CASES],
)
@pytest.mark.usefixtures("without_collections")
def test_a_request_that_fails_frees_what_it_read(database_url: str, tmp_path: Path, case: str) -> None:
    play, route, body, status, code = _CASES[case]
    window, turns = (20_000, 1) if status == 422 else (400_000, 10)
    changes: dict[str, Any] = {"max_windows_bytes": _WINDOWS_BYTES, "session_cache_bytes": 0}
    with chat_service(database_url, tmp_path, play, window=window, **changes) as chat:
        session = f"/v1/sessions/{imported(chat.http, turns)}"
        answer = chat.http.post(f"{session}/{route}", json=body)
        assert (answer.status_code, code in answer.text) == (status, True), answer.text
        assert_freed(chat.http, session)


@pytest.mark.usefixtures("without_collections")
def test_a_turn_that_is_cancelled_frees_what_it_read(database_url: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"max_windows_bytes": _WINDOWS_BYTES, "session_cache_bytes": 0}
    silent = Stream([_PIECE], "open")
    with (
        chat_service(database_url, tmp_path, silent, window=400_000, **changes) as chat,
        httpx.Client(base_url=chat.address, timeout=PATIENCE_S, trust_env=False) as streaming,
    ):
        session = f"/v1/sessions/{imported(chat.http, 10)}"
        body = {"content": "Hello", "stream": True}
        with streaming.stream("POST", f"{session}/turns", json=body) as answer:
            lines = answer.iter_lines()
            created = next(line for line in lines if line.startswith("data:"))
            turn_id = json.loads(created.removeprefix("data:"))["turn"]["id"]
            assert chat.http.post(f"{session}/turns/{turn_id}/cancel").status_code == 200
            assert any("turn_cancelled" in line for line in lines)
        assert_freed(chat.http, session)


_SAID = {"messages": [{"role": "user", "content": "Hello"}], "model": "main"}
_REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a turn": ("/v1/sessions/{}/turns", {"content": "Hello"}),
    "a streamed turn": ("/v1/sessions/{}/turns", {"content": "Hello", "stream": True}),
    "a streamed chat completion": ("/v1/chat/completions", {**_SAID, "stream": True}),
    "a streamed message": ("/v1/messages", {**_SAID, "stream": True, "max_tokens": 9}),
    "a streamed response": ("/v1/responses", {"model": "main", "input": "Hello", "stream": True}),
    "a response in the background": ("/v1/responses", {"model": "main", "input": "Hello", "background": True}),
}


@pytest.mark.usefixtures("without_collections")
def test_a_turn_that_a_limit_refuses_frees_what_it_read(database_url: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"max_windows_bytes": _WINDOWS_BYTES, "session_cache_bytes": 0}
    with chat_service(database_url, tmp_path, window=400_000, **changes) as chat:
        session = f"/v1/sessions/{imported(chat.http, 10)}"
        assert chat.http.patch(session, json={"limits": {"turns_total": 0}}).status_code == 200
        assert chat.http.post(f"{session}/turns", json={"content": "Hello"}).status_code == 429
        assert_freed(chat.http, session)


@pytest.mark.parametrize("case", _REFUSED)
@pytest.mark.usefixtures("without_collections")
def test_a_refused_request_is_freed(database_url: str, tmp_path: Path, case: str) -> None:
    """The error of a stream referred to its request, and both stayed until a garbage collection."""
    route, body = _REFUSED[case]
    with chat_service(database_url, tmp_path) as chat:
        session_id = new_session(chat.http, limits={"turns_total": 0})
        headers = {"X-Session-Id": session_id, "Connection": "close"}
        answer = chat.http.post(route.format(session_id), json=body, headers=headers)
        assert answer.status_code == 429, answer.text
        assert_none(lambda: objects_of(Call))


@pytest.mark.usefixtures("without_collections")
def test_a_response_in_the_background_that_fails_is_freed(database_url: str, tmp_path: Path) -> None:
    """What waited for its end referred to the error, whose traceback referred to what waited."""
    body = {"model": "main", "input": "Hello", "background": True}
    with chat_service(database_url, tmp_path, _REFUSAL) as chat:
        answer = chat.http.post("/v1/responses", json=body, headers={"Connection": "close"}).raise_for_status()
        response = f"/v1/responses/{answer.json()['id']}"
        while chat.http.get(response, headers={"Connection": "close"}).json()["status"] == "in_progress":
            sleep(0.02)
        assert_none(lambda: objects_of(Call))


@pytest.mark.usefixtures("without_collections")
def test_an_idle_connection_keeps_no_body(database_url: str, tmp_path: Path) -> None:
    """Each kept that of its last request, and the JSON in it, which takes several times as much, for up to 65 s."""
    with chat_service(database_url, tmp_path) as chat:
        new_session(chat.http, metadata={"kept": "by the session alone"})
        assert objects_of(Exchange)
        assert_none(lambda: [each for each in objects_of(Exchange) if each.body or each.json])


def objects_of(kind: type[T]) -> list[T]:
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def assert_none(found: Callable[[], Sequence[object]]) -> None:
    """That there are soon none. The client may have its answer before the service is done with the request."""
    gives_up_at = monotonic() + _FREED_WITHIN_S
    while found() and monotonic() < gives_up_at:
        sleep(0.02)
    assert not found()
