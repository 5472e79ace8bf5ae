"""A limit of twenty turns, and five hundred posts at once over three replicas: twenty model calls, then 429."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal
from typing import Any

from app.db.database import Database
from app.domain.types import TenantId
from app.services.limits import set_limits
from torture.balancer import Balancer, fleet
from torture.ledger import violations
from torture.models import new_mark
from torture.results import Result
from torture.site import Answered, Site

POSTS = 500
ALLOWED = 20
_ANSWER_AFTER_S = 0.1
_REFUSED = "posts over a limit"


async def limits(site: Site) -> Result:
    """Twice: to as many sessions of a tenant that has the limit, and to one session that has it."""
    result = Result(
        f"{POSTS} posts at once on a limit of {ALLOWED} turns, of a tenant and of a session, three replicas",
        f"at most {ALLOWED} model calls, then 429 limit_exceeded",
    )
    result.expect(_REFUSED, 2 * (POSTS - ALLOWED))
    site.models.delay_s = _ANSWER_AFTER_S
    try:
        async with (
            site.database() as (url, database),
            fleet(site.nursery, site.environment(url), name="limited") as balancer,
        ):
            own = await site.session(balancer.url, limits={"turns_total": ALLOWED}, policy={"summarize_when": "never"})
            calls = {"of a session": await _post_all(site, balancer, [own] * POSTS, result)}
            sessions = [await site.session(balancer.url) for _ in range(POSTS)]
            before = await _stored(database)
            await _limit_tenant(url)
            calls["of a tenant"] = await _post_all(site, balancer, sessions, result)
            stored = {"of a session": before, "of a tenant": await _stored(database) - before}
            result.failures += await violations(database)
    finally:
        site.models.delay_s = 0.0
    for whose, asked in calls.items():
        result.check(0 < asked <= ALLOWED, f"{asked} model calls on a limit {whose}")
        result.check(stored[whose] == asked, f"{stored[whose]} turns are stored on a limit {whose}, of {asked} calls")
    result.measured = {f"model calls on a limit {whose}": asked for whose, asked in calls.items()}
    result.measured["answers 429 limit_exceeded"] = f"{result.fired.get(_REFUSED, 0):,}"
    return result


async def _limit_tenant(url: str) -> None:
    database = Database(url, pool_size=1)
    try:
        await set_limits(database, TenantId("default"), {"turns_total": Decimal(ALLOWED)})
    finally:
        await database.aclose()


async def _stored(database: Any) -> int:
    return await database.fetchval("SELECT count(*) FROM turns")


async def _post_all(site: Site, balancer: Balancer, sessions: list[str], result: Result) -> int:
    """Posts one turn each, at once; how many reached the model."""
    marks = [new_mark("limit") for _ in sessions]

    async def post(session: str, mark: str) -> None:
        while True:
            answer = await site.post(f"{balancer.url}{session}/turns", {"content": f"{mark} one more"})
            if not _is_to_retry(answer):
                break
            await asyncio.sleep(random.uniform(0.2, 1.0))
        if answer.status != 201:
            result.check(
                (answer.status, answer.code) == (429, "limit_exceeded"), f"a post got {answer.status} {answer.code}"
            )
            result.fire(_REFUSED)

    await asyncio.gather(*map(post, sessions, marks))
    return sum(site.models.calls[mark] for mark in marks)


def _is_to_retry(answer: Answered) -> bool:
    """Where another turn runs in the session, or turns that run hold the room: some of it may come back."""
    if answer.code == "turn_in_progress":
        return True
    return answer.code == "limit_exceeded" and answer.headers.get("Retry-After") == "1"
