"""Postgres is stopped under load and started again: 503 meanwhile, nothing acknowledged is lost, and it recovers.

On a Citus cluster (`torture/nodes.py`) it is the coordinator, by which every statement goes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

from torture.databases import Servers
from torture.ledger import violations
from torture.models import new_mark
from torture.nodes import Node, find_citus, nodes
from torture.replicas import Replica, process_state
from torture.results import Result
from torture.site import NETWORK_ERRORS, Site, connect

OUTAGES = 3
AWAY_S = 10.0
CLIENTS = 16
LEASE_S = 15.0
_UP_S = 4.0
_RECOVERED_WITHIN_S = 5.0
_MOST_GROWTH_BYTES = 20 * 1024 * 1024
_STOPPED = "Postgres stopped"
REFUSED = "answers 503 with Retry-After"


@dataclass(slots=True)
class Load:
    """What the clients got as answers. `acknowledged` is key -> (session, turn); `good` and `refused` count answers by
    address."""

    away: bool = False
    stop: bool = False
    acknowledged: dict[str, Any] = field(default_factory=dict[str, Any])
    last_good_at: float = 0.0
    good: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    odd: list[str] = field(default_factory=list[str])


async def outages(site: Site) -> Result:
    """On a server of its own, which is really stopped (`immediate`: as if it had crashed) and started again."""
    result = Result(
        f"Postgres stopped {AWAY_S:g} s under load, {OUTAGES} times",
        "503 with Retry-After meanwhile; nothing acknowledged lost; "
        f"recovered within {_RECOVERED_WITHIN_S:g} s; memory flat (+{_MOST_GROWTH_BYTES / 2**20:g} MiB at most)",
    )
    result.expect(_STOPPED, OUTAGES)
    result.expect(REFUSED, OUTAGES * CLIENTS)
    programs = find_citus() if site.servers.is_citus else None
    with nodes(site.folder / f"outage-{uuid4().hex[:6]}", programs) as found:
        url = await Servers(tuple(node.url for node in found)).make_migrated("plimsoll")
        async with site.nursery.running(site.environment(url, turn_lease_s=LEASE_S), name="outage") as replica:
            await _try(site, replica, url, found[0], result)
    return result


async def _try(site: Site, replica: Replica, url: str, server: Node, result: Result) -> None:
    load = Load()
    clients = [asyncio.create_task(client(site, replica.url, load, result)) for _ in range(CLIENTS)]
    await asyncio.sleep(_UP_S)
    resident_before = replica.resident_bytes()
    recovered: list[float] = []
    for _ in range(OUTAGES):
        load.away = True
        await asyncio.to_thread(server.stop, signal.SIGQUIT)
        result.fire(_STOPPED, int(server.pid is None))
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(server.start)
        started_at = monotonic()
        recovered.append(await recovery_s(load, started_at))
        load.away = False
        await asyncio.sleep(_UP_S)
    load.stop = True
    await asyncio.gather(*clients)
    grown = replica.resident_bytes() - resident_before
    await judge(site, url, load, result)
    result.check(max(recovered) <= _RECOVERED_WITHIN_S, f"it recovered after {max(recovered):.1f} s")
    result.check(grown <= _MOST_GROWTH_BYTES, f"memory grew by {grown / 2**20:.1f} MiB")
    result.measured |= {
        "slowest recovery": f"{max(recovered):.2f} s",
        "memory": f"{resident_before / 2**20:.0f} MiB, {grown / 2**20:+.1f} MiB",
    }


async def judge(site: Site, url: str, load: Load, result: Result) -> None:
    """Notes what was answered and is not stored so, and turns that called the model twice."""
    database = await connect(url)
    try:
        await until_still(database)
        rows = await database.fetch("SELECT id, idempotency_key, status, assistant_output FROM turns")
        result.failures += await violations(database)
    finally:
        await database.close()
    stored = {row["idempotency_key"]: row for row in rows}
    lost = [key for key, turn in load.acknowledged.items() if not is_stored(stored.get(key), turn)]
    calls = {mark: n for mark, n in site.models.calls.items() if mark.startswith("outage-") and n > 1}
    result.failures += load.odd
    result.check(not lost, f"{len(lost)} acknowledged turns are lost, {lost[:3]}")
    result.check(not calls, f"{len(calls)} turns called the model twice")
    result.measured |= {"acknowledged turns": f"{len(load.acknowledged):,}", "of these lost": len(lost)}


async def until_still(database: Any) -> None:
    """What could not be settled ends with its lease."""
    deadline = monotonic() + 2 * LEASE_S + 2
    while monotonic() < deadline:
        if not await database.fetchval("SELECT count(*) FROM turns WHERE status = 'running'"):
            return
        await asyncio.sleep(0.2)


def is_stored(row: Any, turn: Any) -> bool:
    return row is not None and (str(row["id"]), row["status"], row["assistant_output"]) == (
        turn["id"],
        "completed",
        turn["assistant_output"],
    )


async def client(site: Site, base_url: str, load: Load, result: Result) -> None:
    """Posts turn after turn, each with its key until it has an end."""
    session: str | None = None
    while not load.stop:
        try:
            session = session or await site.session(base_url)
        except (RuntimeError, *NETWORK_ERRORS):
            await asyncio.sleep(0.2)
            continue
        await _turn(site, f"{base_url}{session}/turns", load, result)


async def _turn(site: Site, url: str, load: Load, result: Result) -> None:
    mark = new_mark("outage")
    while not load.stop:
        try:
            answered = await site.post(url, {"content": f"{mark} and what then?"}, key=mark)
        except NETWORK_ERRORS as error:
            load.odd.append(f"a client got no answer: {type(error).__name__}")
            return
        if answered.status == 201:
            load.acknowledged[mark] = answered.json["turn"]
            load.last_good_at = monotonic()
            load.good[url] += 1
            return
        if answered.code == "worker_lost" or answered.headers.get("x-should-retry") == "false":
            return  # the stored end of a turn that failed: a retry with the key says it again
        if answered.status == 503 and answered.headers.get("Retry-After", "").isdigit():
            result.fire(REFUSED)
            load.refused[url] += 1
        elif answered.code not in ("turn_in_progress", "idempotency_in_flight"):
            load.odd.append(f"a client got {answered.status} {answered.code}")
            return
        await asyncio.sleep(0.25)


async def is_gone(pid: int) -> bool:
    for _ in range(500):
        if process_state(pid) in ("", "Z"):
            return True
        await asyncio.sleep(0.01)
    return False


async def recovery_s(load: Load, since: float) -> float:
    while load.last_good_at < since:
        if monotonic() - since > 60:
            break
        await asyncio.sleep(0.02)
    return max(0.0, load.last_good_at - since) if load.last_good_at >= since else 60.0
