"""The connections to a provider: one tenant's calls leave another some, and every call gives its own back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import uvloop

from app.core.fairness import tenant_at_work
from app.providers.transport import AttemptError, HttpTransport
from tests.freed import assert_soon, no_collections

_LONG_S = 20.0
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_SURPLUS = _ANSWER.replace(b"{}", b"[]")


class _Server:
    """Answers `/hold` once `over` is set, and `/joined` in two packets, of which the second has another answer. Breaks
    off at `/broken`. Answers `/twice` again once `over` is set.

    `held` counts calls that wait, `surplus` second answers.
    """

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.held = self.surplus = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                if b"/broken" in head:
                    break
                if b"/hold" in head:
                    self.held += 1
                    await self.over.wait()
                if b"/joined" in head:
                    writer.write(_ANSWER[:-2])
                    await asyncio.sleep(0.05)  # the client has read the head
                    writer.write(_ANSWER[-2:] + _SURPLUS)
                    self.surplus += 1
                    continue
                writer.write(_ANSWER)
                if b"/twice" in head:
                    await self.over.wait()
                    writer.write(_SURPLUS)
                    self.surplus += 1
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def _serving() -> AsyncGenerator[tuple[_Server, str]]:
    served = _Server()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    try:
        yield served, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        served.over.set()
        server.close()


async def _post(transport: HttpTransport, tenant: str, url: str) -> bytes:
    tenant_at_work.set(tenant)
    reply = await transport.post(url, {"content-type": "application/json"}, (b"{}",))
    try:
        return await reply.read()
    finally:
        await reply.aclose()


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came to this")


async def test_calls_of_one_tenant_that_hang_leave_another_a_connection() -> None:
    """1,000 hanging calls of one tenant made the calls of all others wait, until their deadline."""
    transport = HttpTransport("main", encrypted=False, tenant_ratio=0.75, most_calls=4)
    async with _serving() as (server, url):
        hog = [asyncio.create_task(_post(transport, "hog", f"{url}/hold")) for _ in range(10)]
        for _ in range(5):
            neighbour = asyncio.create_task(_post(transport, "neighbour", f"{url}/quick"))
            assert await asyncio.wait_for(neighbour, _LONG_S) == b"{}"
        assert server.held == 3
        server.over.set()
        assert await asyncio.gather(*hog) == [b"{}"] * 10
        await transport.aclose()


async def test_hundreds_of_calls_run_at_once() -> None:
    """aiohttp's own bound is 100."""
    transport = HttpTransport("main", encrypted=False)
    async with _serving() as (server, url):
        calls = [asyncio.create_task(_post(transport, "a", f"{url}/hold")) for _ in range(200)]
        await _until(lambda: server.held == 200)
        server.over.set()
        assert await asyncio.gather(*calls) == [b"{}"] * 200
        await transport.aclose()


async def test_calls_that_fail_or_are_cancelled_give_their_connection_back() -> None:
    transport = HttpTransport("main", encrypted=False, most_calls=1)
    async with _serving() as (_, url):
        for _ in range(3):
            with pytest.raises(AttemptError):
                await asyncio.create_task(_post(transport, "a", f"{url}/broken"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_post(transport, "a", f"{url}/hold"), 0.1)
        assert await asyncio.wait_for(_post(transport, "a", f"{url}/quick"), _LONG_S) == b"{}"
        await transport.aclose()


async def test_a_call_whose_request_is_not_read_leaves_no_connection_behind() -> None:
    """Each left one open with half a megabyte of its request, until the server would have read that."""
    transport = HttpTransport("main", encrypted=False)
    async with _serving() as (server, url):
        calls = [asyncio.create_task(transport.post(f"{url}/hold", {}, (bytes(32 * 2**20),))) for _ in range(3)]
        await _until(lambda: server.held == 3)
        for call in calls:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 3
        await asyncio.sleep(0)
        assert _open_to(url) == 0
        await transport.aclose()


def _open_to(url: str) -> int:
    """How many connections this process has to the server."""
    connections = psutil.Process().net_connections()
    return sum(url.endswith(f":{each.raddr.port}") for each in connections if each.raddr)


async def test_an_answer_to_no_request_is_not_taken_for_the_answer_to_the_next_one() -> None:
    """It was, and so was each later answer for the one to the request after its own, of whichever tenant."""
    transport = HttpTransport("main", encrypted=False)
    async with _serving() as (server, url):
        assert await _post(transport, "a", f"{url}/twice") == b"{}"
        server.over.set()
        await _until(lambda: server.surplus == 1 and _open_to(url) == 0)
        assert await asyncio.wait_for(_post(transport, "b", f"{url}/quick"), _LONG_S) == b"{}"
        await transport.aclose()


async def test_an_answer_that_comes_with_the_end_of_another_is_not_taken_for_the_next_one() -> None:
    transport = HttpTransport("main", encrypted=False)
    async with _serving() as (server, url):
        assert await _post(transport, "a", f"{url}/joined") == b"{}"
        assert server.surplus == 1
        assert await asyncio.wait_for(_post(transport, "b", f"{url}/quick"), _LONG_S) == b"{}"
        await transport.aclose()


async def test_a_connection_that_a_server_closed_is_freed_without_a_collection() -> None:
    def resting() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each).__name__ == "_Idle"}

    gc.collect()
    transport, before = HttpTransport("main", encrypted=False), resting()
    async with _serving() as (_, url):
        with no_collections():
            with pytest.raises(AttemptError):
                await _post(transport, "a", f"{url}/broken")
            await assert_soon(lambda: resting() <= before)
        await transport.aclose()


@pytest.mark.parametrize(
    "case",
    [
        test_a_call_whose_request_is_not_read_leaves_no_connection_behind,
        test_an_answer_to_no_request_is_not_taken_for_the_answer_to_the_next_one,
        test_an_answer_that_comes_with_the_end_of_another_is_not_taken_for_the_next_one,
        test_a_connection_that_a_server_closed_is_freed_without_a_collection,
    ],
)
def test_it_is_so_on_the_event_loop_that_serves(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(case())
