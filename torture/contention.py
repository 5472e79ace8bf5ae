"""One session that many clients write to at once, each in another way: no deadlock, no 500, no paid answer lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from time import monotonic
from typing import Any
from uuid import UUID

import aiohttp
import orjson

from app.db.database import Database
from app.domain.types import TenantId
from app.services.limits import set_limits
from torture.balancer import fleet
from torture.ledger import violations
from torture.models import new_mark
from torture.results import Result
from torture.site import Answered, Site

SECONDS = 60.0
POSTERS, PATCHERS, NEIGHBOURS = 8, 3, 4
_DELETED_EVERY_S = 4.0
_STATISTICS_S = 2.0
"""What a server process may keep its figures to itself."""
_LEAST_DONE = {"posts that ran": 100, "changes": 100, "summarizer's calls": 10, "undone summaries": 3, "deletions": 5}
# One of each span, so that several rows of the tenant are locked by every turn.
_LIMITS = {"turns_per_minute": 1e8, "tokens_per_day": 1e9, "usd_per_month": 1e6, "turns_total": 1e8}
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
_COMPLETED = "SELECT count(*) FROM turns WHERE session_id = $1 AND status = 'completed'"


@dataclass(slots=True)
class _Run:
    """`session` is the one that all write to now. `posts` are (session, mark, answer)."""

    site: Site
    url: str
    ends_at: float
    session: str
    deleted: set[str] = field(default_factory=set[str])
    posts: list[tuple[str, str, Answered]] = field(default_factory=list[tuple[str, str, Answered]])
    seen: Counter[str] = field(default_factory=Counter[str])
    done: Counter[str] = field(default_factory=Counter[str])

    async def send(self, method: str, path: str, body: object = None) -> Answered:
        """One request, read whole; counted by its status and code."""
        timeout = aiohttp.ClientTimeout(total=60)
        headers = {"Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        async with self.site.http.request(
            method, f"{self.url}{path}", data=data, headers=headers, timeout=timeout
        ) as response:
            answered = Answered(response.status, response.headers, await response.read())
        self.seen[f"{method} {answered.status} {answered.code or ''}".strip()] += 1
        return answered

    async def post(self, session: str) -> None:
        mark = new_mark("contention")
        answered = await self.send("POST", f"{session}/turns", {"content": f"{mark} " + "and more of it " * 40})
        self.posts.append((session, mark, answered))
        self.done["posts that ran"] += answered.status == 201

    async def change(self) -> None:
        body = {"metadata": {"n": random.random()}}
        self.done["changes"] += (await self.send("PATCH", self.session, body)).status == 200

    async def summarize(self) -> None:
        await self.send("POST", f"{self.session}/summaries")

    async def undo(self) -> None:
        undone = await self.send("POST", f"{self.session}/summaries/active/undo")
        self.done["undone summaries"] += undone.status == 200

    async def delete(self) -> None:
        await asyncio.sleep(_DELETED_EVERY_S)
        if monotonic() + _DELETED_EVERY_S > self.ends_at:
            return  # the last one stays, for its turns to be counted
        old, self.session = self.session, await _new_session(self.site, self.url)
        self.deleted.add(old)
        self.done["deletions"] += (await self.send("DELETE", old)).status == 204

    async def forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while monotonic() < self.ends_at:
            await work()
            await asyncio.sleep(random.uniform(0.0, 0.02))


async def contentions(site: Site) -> Result:
    """Three replicas, so that no lock of a process stands in for the database's."""
    result = Result(
        f"{POSTERS} posters, {PATCHERS} patchers, a summarizer, an undoer and a deleter on one session for {SECONDS:g} "
        f"s, {NEIGHBOURS} posters beside it, all of a tenant with limits; three replicas",
        "0 deadlocks reported by Postgres, 0 answers 500, 0 paid answers lost but of a deleted session",
    )
    for what, times in _LEAST_DONE.items():
        result.expect(what, times)
    async with (
        site.database() as (url, database),
        fleet(site.nursery, site.environment(url), name="contended") as balancer,
    ):
        await _limit_tenant(url)
        summaries_before = site.models.summaries
        session = await _new_session(site, balancer.url)
        run = _Run(site, balancer.url, monotonic() + SECONDS, session)
        beside = [await _new_session(site, balancer.url) for _ in range(NEIGHBOURS)]
        work: list[Callable[[], Awaitable[None]]] = [run.change] * PATCHERS
        work += [run.summarize, run.undo, run.delete]
        work += [lambda: run.post(run.session) for _ in range(POSTERS)]
        work += [lambda own=own: run.post(own) for own in beside]
        await asyncio.gather(*map(run.forever, work))
        run.done["summarizer's calls"] = site.models.summaries - summaries_before
        await asyncio.sleep(_STATISTICS_S)
        result.failures += await violations(database)
        await _judge(run, database, beside, result)
    return result


async def _judge(run: _Run, database: Any, beside: list[str], result: Result) -> None:
    for what, times in run.done.items():
        result.fire(what, times)
    lost = 0
    for session, mark, answered in run.posts:
        paid = run.site.models.calls[mark]
        result.check(paid <= 1, f"{mark} was asked {paid} times")
        lost += bool(paid) and answered.status != 201 and session not in run.deleted
    stored = {
        kept: await database.fetchval(_COMPLETED, UUID(kept.rsplit("/", 1)[1])) for kept in (run.session, *beside)
    }
    paid_in = Counter(session for session, mark, _ in run.posts if run.site.models.calls[mark])
    for kept, turns in stored.items():
        result.check(turns == paid_in[kept], f"{paid_in[kept]} paid answers and {turns} completed turns in {kept}")
    broken = {answer: times for answer, times in run.seen.items() if answer.split(" ")[1].startswith("5")}
    lost_turns = broken.pop("POST 503 worker_lost", 0)  # of a session that was deleted while its turn ran elsewhere
    deadlocks = await database.fetchval(_DEADLOCKS)
    result.check(not broken, f"answers of 5xx: {broken}")
    result.check(lost == 0, f"{lost} paid answers were lost")
    result.check(deadlocks == 0, f"Postgres reports {deadlocks} deadlocks")
    result.measured = {
        "deadlocks": deadlocks,
        "answers 500": sum(times for answer, times in broken.items() if answer.split(" ")[1] == "500"),
        "paid answers": f"{sum(paid_in.values()):,}, {lost} lost",
        "turns a second": round(run.done["posts that ran"] / SECONDS, 1),
        "turns ended by a deletion elsewhere": lost_turns,
        "answers": ", ".join(f"{times:,} {answer}" for answer, times in run.seen.most_common()),
    }


async def _new_session(site: Site, url: str) -> str:
    return await site.session(url, policy={"protected_turns": 1, "mandatory_summary_turn": 3})


async def _limit_tenant(url: str) -> None:
    database = Database(url, pool_size=1)
    try:
        await set_limits(database, TenantId("default"), {name: Decimal(value) for name, value in _LIMITS.items()})
    finally:
        await database.aclose()
