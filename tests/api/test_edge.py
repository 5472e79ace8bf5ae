"""The edge around applications that misbehave, on a real socket; and what the log of a real process says."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils.compat import uuid7

from app.api.edge import PAUSE_S, SLICE_BYTES, Edge
from app.domain.types import TenantId
from app.services.process_state import Allowance
from tests.api.conftest import PATIENCE_S, assert_problem
from tests.pooling import pooler_settings

CANARY = "canary-0815"
CHUNK_BYTES = 64 * 1024


async def _anybody(_: Scope) -> TenantId:
    return TenantId("default")


def _uncounted(_code: str) -> None: ...


@contextmanager
def behind_the_edge(app: ASGIApp, **options: Any) -> Generator[tuple[str, int]]:
    """Serves an application of the test's own behind the edge."""
    edge = Edge(
        app,
        new_id=uuid7,
        max_body_bytes=1000,
        authenticate=_anybody,
        bodies=Allowance("bytes of bodies", 1_000_000, 1.0),
        count_problem=_uncounted,
        **options,
    )
    server = uvicorn.Server(uvicorn.Config(edge, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join(30)


def test_a_bug_is_a_500_that_reveals_nothing_and_keeps_the_connection() -> None:
    served = 0

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal served
        served += 1
        raise RuntimeError(CANARY)

    with behind_the_edge(broken) as (host, port), socket.create_connection((host, port), timeout=10) as connection:
        for number in (1, 2):
            connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r-{number}\r\n\r\n".encode())
            answer = _answer(connection)
            assert b" 500 " in answer.split(b"\r\n")[0]
            assert f"r-{number}".encode() in answer.partition(b"\r\n\r\n")[2]
            assert CANARY.encode() not in answer
            assert b"Traceback" not in answer
    assert served == 2


def test_half_an_answer_ends_with_its_connection() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        raise RuntimeError(CANARY)

    with behind_the_edge(broken) as (host, port), socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        assert received.endswith(b"12345")


def test_a_body_that_trickles_is_a_408_when_its_time_is_up() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the application saw a request whose body never arrived")

    with (
        behind_the_edge(never, body_timeout_s=0.5) as (host, port),
        socket.create_connection((host, port), timeout=10) as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
        started = time.monotonic()
        connection.setblocking(False)
        received = b""
        while not received and time.monotonic() - started < 60:
            with suppress(OSError):  # answered and closed since the look below
                connection.send(b"x")
            time.sleep(0.05)
            try:
                received = connection.recv(65536)
            except BlockingIOError:
                continue
        assert received.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in received.lower()


def test_the_application_sees_the_body_once_and_then_the_client_leave() -> None:
    seen: list[dict[str, Any]] = []
    done = threading.Event()

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append({"body": scope["plimsoll"].body})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append(dict(await asyncio.wait_for(receive(), 10)))
        done.set()

    with behind_the_edge(listening) as (host, port):
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
            time.sleep(0.2)
        assert done.wait(10)
    assert seen[0] == {"body": b"abc"}
    assert seen[1]["type"] == "http.disconnect"


async def _read_at_once(edge: Edge, size_bytes: int) -> None:
    """Passes a request with such a body, all of which has arrived already."""
    left = size_bytes // CHUNK_BYTES

    async def receive() -> Message:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": bytes(CHUNK_BYTES), "more_body": left > 0}

    async def send(_: Message) -> None: ...

    headers = [(b"host", b"localhost"), (b"content-length", str(size_bytes).encode())]
    await edge({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)


def _edge_of_large_bodies(app: ASGIApp, bodies_bytes: int) -> Edge:
    return Edge(
        app,
        new_id=uuid7,
        max_body_bytes=bodies_bytes,
        authenticate=_anybody,
        bodies=Allowance("bytes of bodies", bodies_bytes, 1.0),
        count_problem=_uncounted,
    )


async def test_a_large_body_is_in_memory_once() -> None:
    bodies: list[bytes] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        bodies.append(scope["plimsoll"].body)

    size = 256 * CHUNK_BYTES
    edge = _edge_of_large_bodies(read, size)
    tracemalloc.start()
    try:
        await _read_at_once(edge, size)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bodies == [bytes(size)]
    assert most_bytes < size * 1.5


async def test_a_large_body_that_arrives_at_once_leaves_the_event_loop_to_others_between_slices() -> None:
    size, read = 64 * CHUNK_BYTES, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert len(scope["plimsoll"].body) == size
        read.set()

    async def other() -> int:
        passes = 0
        while not read.is_set():
            await asyncio.sleep(0)
            passes += 1
        return passes

    others = asyncio.create_task(other())
    await _read_at_once(_edge_of_large_bodies(app, size), size)
    assert await others >= size // SLICE_BYTES - 1


async def test_the_large_bodies_of_one_tenant_are_read_one_slice_after_the_other() -> None:
    size, bodies = 64 * CHUNK_BYTES, 4

    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    edge = _edge_of_large_bodies(app, bodies * size)
    started = time.monotonic()
    await asyncio.gather(*[_read_at_once(edge, size) for _ in range(bodies)])
    pauses = bodies * (size // SLICE_BYTES - 1)
    assert time.monotonic() - started >= pauses * PAUSE_S / 2  # a pause may end a little early


_FIRST_STREAM = """
import asyncio, sys
from collections.abc import AsyncIterator
from starlette.responses import StreamingResponse
from app.main import create_app


async def events() -> AsyncIterator[bytes]:
    yield b"data: 1"


async def receive() -> dict[str, str]:
    await asyncio.sleep(60)
    return {"type": "http.disconnect"}


async def send(message: object) -> None: ...


async def main() -> None:
    app = create_app()
    async with app.router.lifespan_context(app):
        before = set(sys.modules)
        await StreamingResponse(events())({"type": "http"}, receive, send)
        print(sorted(set(sys.modules) - before))


asyncio.run(main())
"""


def test_the_first_stream_of_a_process_loads_nothing(database_url: str) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        **pooler_settings(),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", _FIRST_STREAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_real_process_writes_one_json_line_a_request_with_ids_and_no_content(database_url: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))  # what connects before it is served waits
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "PLIMSOLL_LOG_LEVEL": "DEBUG",
        **pooler_settings(),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with listener:
        port, file = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app.main:create_app", "--factory", "--fd", str(file)],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            pass_fds=[file],
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_S) as client:
            assert client.get("/readyz").status_code == 200
            session_id, turn_id = _use(client)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert CANARY not in errors
    assert "postgresql://" not in errors
    requests = [line for line in lines if line["event"] == "request" and line["route"].startswith("/v1")]
    assert [(line["method"], line["status"]) for line in requests] == [
        ("POST", 201),
        ("POST", 201),
        ("POST", 422),
        ("GET", 404),
        ("PUT", 200),
    ]
    assert requests[1]["route"] == "/v1/sessions/{session_id}/turns"
    assert (requests[1]["session_id"], requests[1]["turn_id"]) == (session_id, turn_id)
    assert requests[1]["request_id"] == "mine-1"
    assert requests[1]["tenant"] == "default"
    assert requests[1]["duration_ms"] > 0
    (unknown,) = [line for line in lines if line["event"] == "request" and line["route"] == "(none)"]
    assert unknown["status"] == 404


def _use(client: httpx.Client) -> tuple[str, str]:
    """Requests with a secret word in every place where a client can put one."""
    session_id = client.post("/v1/sessions", json={"room_goal": CANARY, "metadata": {CANARY: CANARY}}).json()["id"]
    path = f"/v1/sessions/{session_id}"
    headers = {"x-request-id": "mine-1", "authorization": f"Bearer {CANARY}", "idempotency-key": CANARY}
    turn = client.post(f"{path}/turns", json={"content": CANARY}, headers=headers).json()["turn"]
    wrong = client.post(f"{path}/turns?x={CANARY}", json={CANARY: CANARY}, headers={"x-request-id": f"{CANARY} {{}}"})
    assert_problem(wrong, 422, "invalid_request")
    client.get(f"/v1/sessions/{CANARY}%0a%1b[2J/turns")
    client.put(f"{path}/pins/{CANARY}", json={"content": CANARY})
    client.get(f"/{CANARY}%0d%0a%E2%80%A8forged")
    return session_id, turn["id"]


def _answer(connection: socket.socket) -> bytes:
    received = b""
    while b"}" not in received:
        chunk = connection.recv(65536)
        assert chunk, "the connection was closed before an answer"
        received += chunk
    return received
