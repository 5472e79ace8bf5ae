"""Idempotency keys: many duplicates of each, across a restart and a day later, and each turn runs once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal

from uuid_utils.compat import uuid7

from app.db.database import Database
from app.domain.types import TenantId
from app.services.keys import create_key
from tests.providers.server import Answer
from torture.ledger import violations
from torture.models import Play, new_mark, reply
from torture.replicas import Replica, end
from torture.results import Result
from torture.site import NETWORK_ERRORS, Answered, Site

KEYS = 500
DUPLICATES = 8
_AT_ONCE = 64
_TOGETHER = 50
_IN_FLIGHT_S = 0.5
"""How long the model takes where duplicates arrive together, so that they meet their first in flight on any machine."""
_DUPLICATE = "duplicates answered from the store"
_IN_FLIGHT = "duplicates answered that the first is in flight"
_CUT = "duplicates that met the restart"
_LATE = "duplicates sent a day later"
# In an UPDATE Citus takes nothing of a column that goes by the session's time zone.
_A_DAY_LATER = """
    UPDATE turns SET created_at = (created_at AT TIME ZONE 'UTC' - interval '25 hours') AT TIME ZONE 'UTC',
        completed_at = (completed_at AT TIME ZONE 'UTC' - interval '25 hours') AT TIME ZONE 'UTC'
"""


class _Service:
    """One address whose process is replaced in the middle."""

    def __init__(self, site: Site, environment: dict[str, str], replica: Replica) -> None:
        self.site = site
        self.environment = environment
        self.replica = replica
        self.cut = 0

    async def restart(self) -> None:
        """Ends the process in order and starts another on its port."""
        self.replica.send(signal.SIGTERM)
        await self.replica.ended(40)
        self.replica = await self.site.nursery.start(self.environment, name="keys", port=self.replica.port)

    async def post(self, path: str, body: object, key: str, token: str) -> Answered:
        """Posts until somebody answers."""
        while True:
            with contextlib.suppress(*NETWORK_ERRORS):
                return await self.site.post(f"{self.replica.url}{path}", body, key=key, token=token)
            self.cut += 1
            await asyncio.sleep(0.2)


async def keys(site: Site) -> Result:
    """Two tenants use the same keys. Duplicates come in any order, many while the first is in flight."""
    result = Result(
        f"{KEYS} idempotency keys, {DUPLICATES} duplicates each, across a restart",
        f"{KEYS} turns, {KEYS} model calls, identical replays; another body 422, in flight 409; "
        "keys are per tenant and kept for 24 h or longer",
    )
    result.expect(_DUPLICATE, KEYS * DUPLICATES)
    result.expect(_IN_FLIGHT, 10)
    result.expect(_CUT, 1)
    result.expect(_LATE, KEYS)
    async with site.database() as (url, database):
        tokens = [await api_key(url, tenant) for tenant in ("acme", "globex")]
        environment = site.environment(url)
        service = _Service(site, environment, await site.nursery.start(environment, name="keys"))
        marks = [new_mark("keys") for _ in range(KEYS)]
        answered: dict[str, list[Answered]] = {mark: [] for mark in marks}
        posts = [(mark, number) for number in range(1 + DUPLICATES) for mark in marks]
        first, second = posts[: len(posts) // 2], posts[len(posts) // 2 :]
        random.shuffle(first)
        together = {mark: place for place, mark in enumerate(marks[:_TOGETHER])}
        site.models.plays |= dict.fromkeys(together, _slow(_IN_FLIGHT_S))
        first.sort(key=lambda post: together.get(post[0], _TOGETHER))
        sessions = await _sessions(site, service.replica, tokens[0], marks)
        site.models.delay_s = 0.05
        await _post_all(service, sessions, tokens[0], first, answered, result)
        restarting = asyncio.create_task(service.restart())
        await _post_all(service, sessions, tokens[0], second, answered, result)
        await restarting
        site.models.delay_s = 0.0
        result.fire(_CUT, service.cut)
        for mark in marks:
            _compare(mark, answered[mark], site.models.calls[mark], result)
        await _refusals(service, sessions, tokens, marks[0], result)
        await database.execute(_A_DAY_LATER)
        await service.restart()
        await _repeat_late(service, sessions, tokens[0], answered, result)
        turns = await database.fetchval("SELECT count(*) FROM turns WHERE idempotency_key = ANY($1::text[])", marks)
        calls = sum(site.models.calls[mark] for mark in marks)
        result.failures += await violations(database)
        await end(service.replica)
    # The other tenant's use of the first key made one turn, and one call, more.
    result.check((turns, calls) == (KEYS + 1, KEYS + 1), f"{turns} turns and {calls} calls with the other tenant's one")
    result.measured = {
        "keys": KEYS,
        "turns": turns - 1,
        "model calls": calls - 1,
        "identical replays": result.fired.get(_DUPLICATE, 0),
        "replays 25 hours later": result.fired.get(_LATE, 0),
    }
    return result


async def api_key(url: str, tenant: str) -> str:
    """A new key of the tenant."""
    database = Database(url, pool_size=1)
    try:
        return (await create_key(database, uuid7, TenantId(tenant), "torture"))[1]
    finally:
        await database.aclose()


def _slow(delay_s: float) -> Play:
    return lambda seen: Answer(reply(seen), delay_s=delay_s)


async def _sessions(site: Site, replica: Replica, token: str, marks: list[str]) -> dict[str, str]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def make(mark: str) -> tuple[str, str]:
        async with free:
            return mark, await site.session(replica.url, token)

    return dict(await asyncio.gather(*map(make, marks)))


async def _post_all(
    service: _Service,
    sessions: dict[str, str],
    token: str,
    posts: list[tuple[str, int]],
    answered: dict[str, list[Answered]],
    result: Result,
) -> None:
    free = asyncio.Semaphore(_AT_ONCE)

    async def post(mark: str) -> None:
        async with free:
            while True:
                answer = await service.post(f"{sessions[mark]}/turns", {"content": f"{mark} pay 10"}, mark, token)
                if answer.status not in (409, 503):
                    break
                if answer.code == "idempotency_in_flight":
                    result.fire(_IN_FLIGHT)
                result.check("Retry-After" in answer.headers, f"a {answer.status} {answer.code} without Retry-After")
                await asyncio.sleep(0.05)
            answered[mark].append(answer)

    await asyncio.gather(*(post(mark) for mark, _ in posts))


def _compare(mark: str, answers: list[Answered], calls: int, result: Result) -> None:
    bodies = {answered.body for answered in answers}
    result.check({answered.status for answered in answers} == {201}, f"{mark}: {[a.status for a in answers]}")
    result.check(len(bodies) == 1, f"{mark}: {len(bodies)} different answers")
    result.check(calls == 1, f"{mark}: {calls} model calls")
    if len(bodies) == 1:
        result.fire(_DUPLICATE, len(answers) - 1)


async def _repeat_late(
    service: _Service, sessions: dict[str, str], token: str, answered: dict[str, list[Answered]], result: Result
) -> None:
    """The turns are a day older: each key still gives its own turn."""
    late: dict[str, list[Answered]] = {mark: [] for mark in answered}
    await _post_all(service, sessions, token, [(mark, 0) for mark in answered], late, result)
    for mark, (first, *_) in answered.items():
        again = late[mark][0]
        same = again.status == 201 and again.json["turn"]["id"] == first.json["turn"]["id"]
        result.check(same, f"{mark}: a day later it gave {again.status} {again.code}")
        result.fire(_LATE, int(same))


async def _refusals(service: _Service, sessions: dict[str, str], tokens: list[str], mark: str, result: Result) -> None:
    """Another body, a first request still in flight, and another tenant with the same key."""
    other = await service.post(f"{sessions[mark]}/turns", {"content": f"{mark} pay 20"}, mark, tokens[0])
    result.check(
        (other.status, other.code) == (422, "idempotency_key_reused"), f"other body: {other.status} {other.code}"
    )
    slow = new_mark("slow")
    service.site.models.plays[slow] = _slow(1.0)
    path, body = f"{sessions[mark]}/turns", {"content": f"{slow} pay 30"}
    first = asyncio.create_task(service.post(path, body, slow, tokens[0]))
    await asyncio.sleep(0.4)
    again = await service.post(path, body, slow, tokens[0])
    answer = (again.status, again.code, "Retry-After" in again.headers)
    result.check(answer == (409, "idempotency_in_flight", True), f"in flight: {answer}")
    result.check((await first).status == 201, "the first of two in flight failed")
    theirs = await service.site.session(service.replica.url, tokens[1])
    own = await service.post(f"{theirs}/turns", {"content": f"{mark} pay 99"}, mark, tokens[1])
    result.check(own.status == 201, f"another tenant's same key: {own.status} {own.code}")
    foreign = await service.post(path, {"content": f"{mark} pay 10"}, mark, tokens[1])
    result.check((foreign.status, foreign.code) == (404, "session_not_found"), f"another tenant: {foreign.status}")
