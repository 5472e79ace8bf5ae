"""Two thousand turns behind PgBouncer in transaction mode, with three server connections for three replicas."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.pgbouncer import SERVER_CONNECTIONS, find_pgbouncer, pgbouncer, show
from torture.balancer import REPLICAS, Balancer, fleet
from torture.ledger import violations
from torture.models import new_mark, reply_text
from torture.results import Result
from torture.site import Answered, Site

TURNS = 2_000
_SESSIONS = 100
_SAMPLE_S = 0.05
_WAITED = "samples in which clients waited for a server connection"
_LEAST_TRANSACTIONS = 2 * TURNS


@dataclass(slots=True)
class _Seen:
    """Of PgBouncer's own figures."""

    servers: int = 0
    clients: int = 0
    transactions: int = 0


async def poolers(site: Site) -> Result:
    """A hundred sessions at once, every third turn a stream, every fourth with a key that is sent twice."""
    result = Result(
        f"{TURNS:,} turns behind PgBouncer in transaction mode, {REPLICAS} replicas",
        f"no error, with a pool of {SERVER_CONNECTIONS}",
    )
    program = find_pgbouncer()
    if program is None:
        result.not_tried = "PgBouncer is not installed (Debian: apt-get install pgbouncer)"
        return result
    result.expect(_WAITED, 10)
    async with site.database() as (url, database), pgbouncer(program, url) as address:
        environment = site.environment(address, db_pooler="transaction")
        seen = _Seen()
        watching = asyncio.create_task(_watch(address, seen, result))
        async with fleet(site.nursery, environment, name="pooled") as balancer:
            summaries = site.models.summaries
            await asyncio.gather(*(_talk(site, balancer, number, result) for number in range(_SESSIONS)))
            summaries = site.models.summaries - summaries
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        completed = await database.fetchval("SELECT count(*) FROM turns WHERE status = 'completed'")
        result.failures += await violations(database)
    result.check(completed == TURNS, f"{completed} turns completed")
    result.check(summaries > 0, "no turn had a summary made")
    result.check(len(balancer.served) == REPLICAS, f"the balancer reached {len(balancer.served)} replicas")
    result.check(seen.servers == SERVER_CONNECTIONS, f"the pool had {seen.servers} server connections")
    result.check(seen.transactions >= _LEAST_TRANSACTIONS, f"only {seen.transactions} transactions went through it")
    result.measured = {
        "turns": f"{completed:,} completed, {summaries:,} summaries made",
        "server connections": f"{seen.servers} for {seen.clients} clients",
        "transactions through PgBouncer": f"{seen.transactions:,}",
    }
    return result


async def _talk(site: Site, balancer: Balancer, number: int, result: Result) -> None:
    """One session's turns, one after the other."""
    session = await site.session(balancer.url)
    url = f"{balancer.url}{session}/turns"
    for turn in range(number, number + TURNS // _SESSIONS):
        mark = new_mark("pooled")
        body = {"content": f"{mark} and what then?", "stream": turn % 3 == 0}
        key = mark if turn % 4 == 0 else None
        for _ in range(2 if key else 1):
            answer = await site.post(url, body, key=key)
            result.check(_has_reply(answer, mark), f"a turn got {answer.status} {answer.body[:300]!r}")
        result.check(site.models.calls[mark] == 1, f"the model was asked {site.models.calls[mark]} times")


def _has_reply(answer: Answered, mark: str) -> bool:
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        last, data = answer.last_event()
        return last == "turn.completed" and data["turn"]["assistant_output"] == reply_text(mark)
    return answer.status == 201 and answer.json["turn"]["assistant_output"] == reply_text(mark)


async def _watch(address: str, seen: _Seen, result: Result) -> None:
    """Asks PgBouncer itself, over and over, what goes on in the pool of this database."""
    name = urlsplit(address).path[1:]
    while True:
        for pool in await show(address, "POOLS"):
            if pool["database"] != name:
                continue
            states = ("sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login")
            seen.servers = max(seen.servers, sum(int(pool[state]) for state in states))
            seen.clients = max(seen.clients, int(pool["cl_active"]) + int(pool["cl_waiting"]))
            if int(pool["cl_waiting"]):
                result.fire(_WAITED)
        for database in await show(address, "STATS"):
            if database["database"] == name:
                seen.transactions = int(database["total_xact_count"])
        await asyncio.sleep(_SAMPLE_S)
