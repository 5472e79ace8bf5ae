"""A worker that is stopped past its lease and then goes on: afterwards it only adds to its lost turn what that used."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID

from tests.providers.server import Answer, Seen
from torture.crash import SETTLE
from torture.database_proxy import At, Fault, proxied
from torture.ledger import fingerprint, violations
from torture.models import new_mark, reply, reply_text
from torture.replicas import Replica, end
from torture.results import Result
from torture.site import NETWORK_ERRORS, Answered, Site, connect

ROUNDS = 5
AT_ONCE = 10
LEASE_S = 1.0
_PAST_LEASE_S = 0.5
_MOST_TRIES = 3
_ADDED = {"turns", "turn_steps", "turn_context_audit", "prompt_blocks", "usage_records"}
"""The tables with what is added to the lost turn."""
_WOKEN = "stopped past the lease, then continued"
_ON_THE_WAY = "of these, with its end on the way"


async def zombies(site: Site) -> Result:
    """Half of the workers are stopped while the model thinks, half when their end is on its way to Postgres."""
    result = Result(f"{ROUNDS * AT_ONCE} workers stopped past their lease, then continued", "0 stale writes")
    result.expect(_WOKEN, ROUNDS * AT_ONCE)
    result.expect(_ON_THE_WAY, ROUNDS * AT_ONCE // 2)
    stale = 0
    async with (
        site.database() as (url, database),
        site.nursery.running(site.environment(url, turn_lease_s=LEASE_S), name="successor") as successor,
    ):
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as group:
                tries = [
                    group.create_task(_try(site, url, successor, result, late=number % 2 == 1))
                    for number in range(AT_ONCE)
                ]
            for tried in tries:
                stale += await _stale(database, tried.result(), result)
        result.failures += await violations(database)
    result.measured = {"zombies": result.fired.get(_WOKEN, 0), "stale writes (all rows of a session compared)": stale}
    return result


@dataclass(frozen=True, slots=True)
class _Tried:
    """The session, the mark of the message that the zombie was to answer, and the other tables it changed then."""

    session_id: UUID
    mark: str
    changed: list[str]


async def _try(site: Site, url: str, successor: Replica, result: Result, *, late: bool) -> _Tried:
    """On a machine that is busy a lease of a second may end before the fault: then another turn is tried."""
    for _ in range(_MOST_TRIES):
        if tried := await _once(site, url, successor, result, late=late):
            return tried
    raise AssertionError("no turn came as far as its fault")


async def _once(site: Site, url: str, successor: Replica, result: Result, *, late: bool) -> _Tried | None:
    mark = new_mark("zombie")
    session = await site.session(successor.url)
    stopped = asyncio.Event()
    born: list[Replica] = []

    def stop() -> None:
        born[0].send(signal.SIGSTOP)
        stopped.set()

    def think(seen: Seen) -> Answer:
        if not late:
            stop()
        return Answer(reply(seen))

    site.models.plays[mark] = think
    hold_s = LEASE_S + 2 * _PAST_LEASE_S + 1.0
    fault = Fault(At(SETTLE, "before"), stop, hold_s=hold_s, armed=late)
    async with proxied(url, fault) as proxy_url:
        environment = site.environment(proxy_url, turn_lease_s=LEASE_S, db_pool_size=2)
        replica = await site.nursery.start(environment, name="zombie")
        born.append(replica)
        body = {"content": f"{mark} and what then?"}
        asking = asyncio.create_task(site.post(f"{replica.url}{session}/turns", body))
        if not await _came_to(stopped, asking):
            await end(replica)
            return None
        await asyncio.sleep(LEASE_S + _PAST_LEASE_S)
        was_stopped = replica.is_stopped
        following = await _take_over(site, f"{successor.url}{session}/turns", f"next-{mark} and now?")
        result.check(following, "the session was not free after the lease")
        session_id = UUID(session.rsplit("/", 1)[1])
        before = await _all_of(url, session_id)
        replica.send(signal.SIGCONT)
        with contextlib.suppress(*NETWORK_ERRORS):
            answer = await asking
            got = f"{answer.status} {answer.code}"
            result.check(got == "503 worker_lost", f"the zombie's client got {got}")
            if was_stopped:
                result.fire(_WOKEN)
                if late and fault.fired:
                    result.fire(_ON_THE_WAY)
        await end(replica)
    after = await _all_of(url, session_id)
    changed = {table for table in after if before[table] != after[table]}
    added = "usage_records" if late else "turn_steps"  # a call that is stopped before its answer has no usage
    result.check(added in changed, f"nothing was added to {added} of the lost turn")
    return _Tried(session_id, mark, sorted(changed - _ADDED))


async def _came_to(fault: asyncio.Event, asking: asyncio.Task[Answered]) -> bool:
    """Whether the fault fired before the turn was answered."""
    firing = asyncio.create_task(fault.wait())
    await asyncio.wait((firing, asking), timeout=20, return_when=asyncio.FIRST_COMPLETED)
    firing.cancel()
    if not fault.is_set():
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return fault.is_set()


async def _all_of(url: str, session_id: UUID) -> dict[str, tuple[int, str | None]]:
    """On a connection of its own: others try at the same time."""
    database = await connect(url)
    try:
        return await fingerprint(database, session_id)
    finally:
        await database.close()


async def _take_over(site: Site, url: str, content: str) -> bool:
    deadline = monotonic() + 2.0
    while monotonic() < deadline:
        answered = await site.post(url, {"content": content})
        if answered.status == 201:
            return True
        await asyncio.sleep(0.1)
    return False


async def _stale(database: Any, tried: _Tried, result: Result) -> int:
    """How much the zombie could write: tables that changed, and answers of its own."""
    rows = await database.fetch("SELECT status, error FROM turns WHERE session_id = $1 ORDER BY seq", tried.session_id)
    result.check(
        [row["status"] for row in rows] == ["failed", "completed"], f"the turns ended as {[dict(row) for row in rows]}"
    )
    code = rows[0]["error"]["code"] if rows[0]["error"] else None
    result.check(code == "worker_lost", f"the lost turn says {code}")
    written = await database.fetchval(
        "SELECT count(*) FROM messages WHERE session_id = $1 AND role = 'assistant' AND content::text LIKE $2",
        tried.session_id,
        f"%{reply_text(tried.mark)[:24]}%",
    )
    result.check(written == 0, "a zombie's answer was stored")
    result.check(not tried.changed, f"rows changed once the zombie went on, of {tried.changed}")
    return int(written) + len(tried.changed)
