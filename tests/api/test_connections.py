"""Heads that are too large, too slow or too many, against the real process; a neighbour is served meanwhile."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.api.connections import MAX_HEAD_BYTES, MAX_HEADERS, Connection, Connections
from tests.api.conftest import running
from tests.commands import test_cli
from tests.conftest import lasting_database

NEIGHBOUR = "127.0.0.2"
START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
MB = 1024 * 1024


@contextmanager
def serving(folder: Path, database_url: str, **settings: str) -> Generator[tuple[int, int]]:
    """A real process: its port, and its id."""
    with test_cli.serving(folder, DATABASE_URL=database_url, **settings) as (process, printed):
        yield httpx.URL(test_cli.address(printed)).port or 0, process.pid


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, postgres_server: str, template_database: str) -> Iterator[int]:
    """One process for all tests that leave it as it was."""
    with (
        lasting_database(postgres_server, template_database) as url,
        serving(tmp_path_factory.mktemp("serving"), url) as (port, _),
    ):
        yield port


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def everything(connection: socket.socket) -> bytes:
    """What is sent until the connection ends, however it does."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def answer_to(port: int, *parts: bytes) -> bytes:
    """What comes back for the parts, sent one after the other, on a connection of their own."""
    with connect(port) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except ConnectionError:
            pass  # refused before all of it was sent
        return everything(connection)


def assert_refused(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == status, answer[:200]
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem = json.loads(body)
    assert (problem["code"], problem["status"]) == (code, status)


def fill(size: int) -> Iterator[bytes]:
    """Headers of 1,000 bytes that add up to `size`."""
    for number in range(size // 1000):
        yield b"x-%08d: %s\r\n" % (number, b"v" * 986)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([START, *fill(5 * MB), b"\r\n"], id="5 MB of headers"),
        pytest.param([START, b"".join(b"a%d: b\r\n" % n for n in range(100_000)), b"\r\n"], id="100,000 headers"),
        pytest.param([START, b"x: ", *[b"v" * 1000] * 1000, b"\r\n\r\n"], id="one header of 1 MB"),
        pytest.param([START, b"x" * MB, b": v\r\n\r\n"], id="a header's name of 1 MB"),
        pytest.param([b"GET /" + b"p" * MB, b" HTTP/1.1\r\nHost: localhost\r\n\r\n"], id="an address of 1 MB"),
        pytest.param([START, *fill(MAX_HEAD_BYTES + 1000), b"\r\n"], id="just over the bytes"),
        pytest.param([START + b"a: b\r\n" * MAX_HEADERS + b"\r\n"], id="just over the headers"),
        pytest.param([b"\r\n" * MB], id="a megabyte of empty lines"),
    ],
)
def test_a_head_that_is_too_large_is_a_431_and_the_connection_ends(port: int, parts: list[bytes]) -> None:
    assert_refused(answer_to(port, *parts), 431, "headers_too_large")
    assert status_of(answer_to(port, START + b"Connection: close\r\n\r\n")) == 200


def test_a_head_within_the_bounds_is_taken_however_it_is_cut(port: int) -> None:
    whole = START + b"Connection: close\r\n" + b"".join(fill(30_000)) + b"\r\n"
    assert len(whole) < MAX_HEAD_BYTES
    for size in (1000, 10_000, len(whole)):
        parts = [whole[start : start + size] for start in range(0, len(whole), size)]
        assert status_of(answer_to(port, *parts)) == 200
    many = b"".join(b"a%d: b\r\n" % n for n in range(MAX_HEADERS - 2))
    assert status_of(answer_to(port, START, many, b"Connection: close\r\n\r\n")) == 200


def test_requests_that_are_sent_ahead_are_all_answered_though_together_they_are_larger_than_a_head(port: int) -> None:
    one = START + b"x: " + b"v" * 8000 + b"\r\n\r\n"
    answers = answer_to(port, one * 20 + START + b"Connection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 OK") == 21


@pytest.mark.parametrize("trailer", [b"x: " + b"v" * MB, b"a: b\r\n" * 100_000], ids=["one of 1 MB", "100,000"])
def test_a_trailer_is_no_way_around(port: int, trailer: bytes) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    # Nothing of it is taken as a request, though it ends well.
    assert answer_to(port, head, trailer, b"\r\n\r\n") == b""
    assert status_of(answer_to(port, START + b"Connection: close\r\n\r\n")) == 200


def test_what_is_no_http_is_a_problem_too(port: int) -> None:
    assert_refused(answer_to(port, b"\x16\x03\x01 hello\r\n\r\n"), 400, "invalid_http")


def test_three_thousand_half_sent_heads_are_bounded_and_a_neighbour_is_answered(
    tmp_path: Path, database_url: str
) -> None:
    with _descriptors(8000), serving(tmp_path, database_url) as (port, pid), ExitStack() as held:
        for number in range(3000):
            connection = held.enter_context(connect(port))
            connection.sendall(START + b"x: y")
            if number % 300 == 0:
                for source in (NEIGHBOUR, "127.0.0.1"):
                    with connect(port, source) as neighbour:
                        neighbour.sendall(START + b"Connection: close\r\n\r\n")
                        assert status_of(everything(neighbour)) == 200
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 1024 + 200


def test_a_request_that_is_answered_is_not_ended_for_a_new_connection(tmp_path: Path, database_url: str) -> None:
    with serving(tmp_path, database_url, PLIMSOLL_MAX_CONNECTIONS="3") as (port, _), ExitStack() as held:
        streams = [held.enter_context(connect(port)) for _ in range(3)]
        for stream in streams:
            stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert status_of(stream.recv(65536)) == 200
        with connect(port) as fourth:
            assert_refused(everything(fourth), 503, "too_many_connections")
        streams.pop().close()
        # The place is free as soon as the process has seen it.
        deadline = time.monotonic() + 60
        while status_of(answer_to(port, START + b"Connection: close\r\n\r\n")) != 200:
            assert time.monotonic() < deadline


def test_one_address_may_not_take_every_connection(tmp_path: Path, database_url: str) -> None:
    settings = {"PLIMSOLL_MAX_CONNECTIONS": "4", "PLIMSOLL_MAX_CONNECTIONS_PER_ADDRESS": "2"}
    with serving(tmp_path, database_url, **settings) as (port, _), ExitStack() as held:
        for _ in range(2):
            stream = held.enter_context(connect(port))
            stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert status_of(stream.recv(65536)) == 200
        with connect(port) as third:
            assert_refused(everything(third), 503, "too_many_connections")
        with connect(port, NEIGHBOUR) as neighbour:
            neighbour.sendall(START + b"Connection: close\r\n\r\n")
            assert status_of(everything(neighbour)) == 200


def test_a_head_that_does_not_arrive_in_time_is_a_408_and_silence_ends_without_one(port: int) -> None:
    async def slow(first: bytes, *, trickled: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        reading = asyncio.create_task(reader.read())
        while trickled and not reading.done():
            writer.write(b"x")
            await asyncio.wait({reading}, timeout=0.5)
        async with asyncio.timeout(60):
            answer = await reading
        writer.close()
        return answer

    async def all_slow() -> tuple[bytes, bytes, bytes, bytes]:
        return await asyncio.gather(
            slow(START + b"x: ", trickled=True),
            slow(START, trickled=False),
            slow(b"", trickled=False),
            slow(START + b"\r\n" + START, trickled=False),
        )

    trickled, stopped, silent, second = asyncio.run(all_slow())
    assert_refused(trickled, 408, "request_timeout")
    assert_refused(stopped, 408, "request_timeout")
    assert silent == b""
    assert status_of(second) == 200


def test_a_client_that_does_not_read_its_answer_is_let_go_and_one_that_reads_slowly_is_not() -> None:
    size = 64 * MB  # more than the kernel holds for a client that does not read

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        for _ in range(size // MB):
            await send({"type": "http.response.body", "body": b"x" * MB, "more_body": True})
        await send({"type": "http.response.body"})

    ended: set[Connection] = set()

    class Noting(Connections):
        def let_go(self, connection: Connection) -> None:
            super().let_go(connection)
            ended.add(connection)

    connections = Noting(10, 10, unread_s=3.0)
    config = uvicorn.Config(app, port=0, http=cast(Any, partial(Connection, connections)), log_config=None)
    with running(config) as port, connect(port) as deaf, connect(port) as slow:
        deaf.sendall(START + b"\r\n")
        slow.sendall(START + b"Connection: close\r\n\r\n")
        received = 0
        while chunk := slow.recv(MB):
            received += len(chunk)
            time.sleep(0.02)
        assert received > size
        deadline = time.monotonic() + 60
        while len(ended) < 2:
            assert time.monotonic() < deadline, "who does not read is not let go"
            time.sleep(0.02)
        assert len(everything(deaf)) < size


def test_a_process_takes_the_descriptors_that_its_connections_need(database_url: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with serving(tmp_path, database_url, PLIMSOLL_MAX_CONNECTIONS="300") as (_, pid):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (600, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _descriptors(count: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count), hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
