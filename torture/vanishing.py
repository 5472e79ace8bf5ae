"""Clients that vanish at random points, and cancellations: every turn ends as documented, nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from tests.providers.server import Answer, Seen, Step
from torture.ledger import violations
from torture.models import new_mark, reply, streamed_reply
from torture.replicas import Replica
from torture.results import Result
from torture.site import Site, connect

VANISHING = 200
CANCELLATIONS = 1_000
_AT_ONCE = 40
_ANSWER_AFTER_S = 0.3
_SETTLED_WITHIN_S = 15.0
_VANISHED = "clients that vanished"
_ABORTED = "requests that their client aborted"
_CANCELLED = "turns that a POST cancelled"
_CAME_LATE = "cancellations of a turn that had just ended"
_POOL = 10
_USED_WITHIN_S = 5.0
_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'plimsoll' AND wait_event_type = 'Lock'
"""


async def vanishing(site: Site) -> Result:
    """One replica takes it all; connections are counted before and after."""
    result = Result(
        f"{VANISHING} clients that vanish at random points, {CANCELLATIONS:,} cancellations",
        "every turn ends as documented; pool and server connections back to their start",
    )
    result.expect(_VANISHED, VANISHING)
    result.expect(_ABORTED, CANCELLATIONS // 2)
    result.expect(_CANCELLED, CANCELLATIONS * 3 // 10)
    async with (
        site.database() as (url, database),
        site.nursery.running(site.environment(url, db_pool_size=_POOL, tenant_share=1), name="vanishing") as replica,
    ):
        await _warm(site, replica)
        before = await _open(database, replica)
        await _all(VANISHING, partial(_vanish, site, replica, result))
        await _until_still(database)
        after_vanishing = await _statuses(database)
        # on_disconnect is `finish`: whoever leaves finds the reply later.
        lost = {status: n for status, n in after_vanishing.items() if status != "completed"}
        result.check(not lost, f"turns whose client vanished ended as {lost}")
        await _all(CANCELLATIONS // 2, partial(_abort, site, replica, result))
        await _all(CANCELLATIONS // 2, partial(_cancel, site, replica, result))
        await _until_still(database)
        after = await _back_to(before, database, replica)
        statuses = await _statuses(database)
        result.check(set(statuses) <= {"completed", "cancelled"}, f"turns ended as {statuses}")
        usable = await _usable_pool(site, url, replica)
        result.failures += await violations(database)
    result.check(after[0] <= before[0], f"server connections: {before[0]} before, {after[0]} after")
    result.check(after[1] <= before[1] + 2, f"open sockets of the service: {before[1]} before, {after[1]} after")
    result.check(usable == _POOL, f"of {_POOL} connections of the pool {usable} can be used")
    result.measured = {
        "turns": ", ".join(f"{n:,} {status}" for status, n in sorted(statuses.items())),
        "connections at Postgres": f"{before[0]} before, {after[0]} after",
        "of the pool usable at once": f"{usable} of {_POOL}",
        "sockets of the service": f"{before[1]} before, {after[1]} after",
    }
    return result


async def _all(times: int, do: Callable[[int], Awaitable[None]]) -> None:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            await do(number)

    await asyncio.gather(*(one(number) for number in range(times)))


async def _warm(site: Site, replica: Replica) -> None:
    """Opens every connection that the pool and the provider's client may keep."""

    async def turn(_: int) -> None:
        session = await site.session(replica.url)
        await site.post(f"{replica.url}{session}/turns", {"content": f"{_mark(site)} hello"})

    await _all(_AT_ONCE * 2, turn)


def _mark(site: Site) -> str:
    mark = new_mark("vanish")
    site.models.plays[mark] = _slow
    return mark


def _slow(seen: Seen) -> Step:
    if seen.json.get("stream"):
        return streamed_reply(seen, pause_s=_ANSWER_AFTER_S / 8)
    return Answer(reply(seen), delay_s=_ANSWER_AFTER_S)


async def _vanish(site: Site, replica: Replica, result: Result, number: int) -> None:
    """Sends a turn on a bare socket, and tears it down after a random time, or within the request itself."""
    session = await site.session(replica.url)
    body = orjson.dumps({"content": f"{_mark(site)} hello", "stream": number % 2 == 0})
    head = (
        f"POST {session}/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    _, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    partly = number % 10 == 0
    writer.write(request[: random.randrange(1, len(request))] if partly else request)
    await writer.drain()
    if not partly:
        await asyncio.sleep(random.uniform(0, 1.3 * _ANSWER_AFTER_S))
    writer.transport.abort()
    result.fire(_VANISHED)


async def _abort(site: Site, replica: Replica, result: Result, number: int) -> None:
    """A client whose own task is cancelled while it waits."""
    session = await site.session(replica.url)
    body = {"content": f"{_mark(site)} hello", "stream": number % 2 == 0}
    asking = asyncio.create_task(site.post(f"{replica.url}{session}/turns", body))
    await asyncio.sleep(random.uniform(0, _ANSWER_AFTER_S / 2))
    if asking.cancel():
        result.fire(_ABORTED)
    await asyncio.gather(asking, return_exceptions=True)


async def _cancel(site: Site, replica: Replica, result: Result, _: int) -> None:
    """A running turn is cancelled over the API, by its id, while its own client waits."""
    session = await site.session(replica.url)
    url = f"{replica.url}{session}/turns"
    asking = asyncio.create_task(site.post(url, {"content": f"{_mark(site)} hello"}))
    await asyncio.sleep(random.uniform(0.02, _ANSWER_AFTER_S))
    cancelled = await site.post(f"{url}/{await _id_of_turn(site, url)}/cancel", {})
    told_client = await asking
    if cancelled.status == 200:
        result.fire(_CANCELLED)
        # A waiting client gets this answer, unless the turn had been settled in the very same moment.
        result.check(
            told_client.code in ("turn_cancelled", "worker_lost"),
            f"the client of a cancelled turn got {told_client.status} {told_client.code}",
        )
    else:
        result.fire(_CAME_LATE)
        result.check(cancelled.code == "turn_not_open", f"a cancellation got {cancelled.status} {cancelled.code}")


async def _id_of_turn(site: Site, url: str) -> str:
    """Of the session's first turn, once there is one."""
    async with asyncio.timeout(_SETTLED_WITHIN_S):
        while True:
            async with site.http.get(url) as response:
                items = orjson.loads(await response.read())["items"]
            if items:
                return items[0]["id"]
            await asyncio.sleep(0.02)


async def _open(database: Any, replica: Replica) -> tuple[int, int]:
    connections = await database.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'plimsoll'"
    )
    return int(connections), replica.open_sockets()


async def _back_to(before: tuple[int, int], database: Any, replica: Replica) -> tuple[int, int]:
    deadline = asyncio.get_running_loop().time() + _SETTLED_WITHIN_S
    while True:
        after = await _open(database, replica)
        if (after[0] <= before[0] and after[1] <= before[1]) or asyncio.get_running_loop().time() > deadline:
            return after
        await asyncio.sleep(0.2)


async def _until_still(database: Any) -> None:
    deadline = asyncio.get_running_loop().time() + _SETTLED_WITHIN_S
    while asyncio.get_running_loop().time() < deadline:
        if not await database.fetchval("SELECT count(*) FROM turns WHERE status IN ('pending', 'running')"):
            return
        await asyncio.sleep(0.1)


async def _statuses(database: Any) -> dict[str, int]:
    rows = await database.fetch("SELECT status, count(*) AS n FROM turns GROUP BY status")
    return {row["status"]: row["n"] for row in rows}


async def _usable_pool(site: Site, url: str, replica: Replica) -> int:
    """How many of the pool's connections are in use at once when all wait for one lock: a lost one is missing then."""
    holder, looker = await connect(url), await connect(url)
    waiting = 0
    try:
        async with holder.transaction():
            await holder.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
            posts = [asyncio.create_task(site.post(f"{replica.url}/v1/sessions", {})) for _ in range(2 * _POOL)]
            deadline = asyncio.get_running_loop().time() + _USED_WITHIN_S
            while waiting < _POOL and asyncio.get_running_loop().time() < deadline:
                waiting = await looker.fetchval(_WAITING)
                await asyncio.sleep(0.02)
        await asyncio.gather(*posts)
    finally:
        await holder.close()
        await looker.close()
    return waiting
