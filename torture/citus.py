"""A Citus cluster under load: its shards move, and a worker node dies and comes back (`outage` has the coordinator)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from torture.balancer import REPLICAS, fleet
from torture.databases import Servers
from torture.nodes import Node, find_citus, nodes
from torture.outage import CLIENTS, LEASE_S, REFUSED, Load, client, judge
from torture.results import Result
from torture.site import Site, connect

AWAY_S = 8.0
_UP_S = 4.0
_RECOVERED_WITHIN_S = 30.0
_MOVED = "shards moved to another node"
_DIED = "a worker node died"
_ELSEWHERE = "turns on the other node meanwhile"
_NODE_OF = """
    SELECT s.id, p.nodeport FROM (SELECT id FROM sessions) s
    JOIN pg_dist_shard_placement p ON p.shardid = get_shard_id_for_distribution_column('sessions', s.id)
"""
_SHARDS_AT = "SELECT count(*) FROM pg_dist_shard_placement WHERE nodeport = $1"


async def clusters(site: Site) -> Result:
    """On three nodes of its own, with three replicas before them."""
    result = Result(
        f"a Citus cluster under load: shards move, a worker node is away {AWAY_S:g} s; {REPLICAS} replicas",
        "nothing acknowledged lost; sessions on the other node are not refused once; "
        f"recovered within {_RECOVERED_WITHIN_S:g} s",
    )
    programs = find_citus()
    if programs is None:
        result.not_tried = "no Postgres on this machine has Citus"
        return result
    for fault, times in ((_MOVED, 2), (_DIED, 1), (_ELSEWHERE, CLIENTS), (REFUSED, CLIENTS)):
        result.expect(fault, times)
    with nodes(site.folder / f"citus-{uuid4().hex[:6]}", programs) as found:
        url = await Servers(tuple(node.url for node in found)).make_migrated("plimsoll")
        async with fleet(site.nursery, site.environment(url, turn_lease_s=LEASE_S), name="citus") as balancer:
            load = Load()
            clients = [asyncio.create_task(client(site, balancer.url, load, result)) for _ in range(CLIENTS)]
            await asyncio.sleep(_UP_S)
            await _move(url, found[2], result)
            recovered = await _worker_dies(url, found, load, result)
            load.stop = True
            await asyncio.gather(*clients)
        await judge(site, url, load, result)
        result.check(recovered <= _RECOVERED_WITHIN_S, f"it recovered after {recovered:.1f} s")
        result.measured["slowest recovery"] = f"{recovered:.2f} s"
    return result


async def _move(url: str, node: Node, result: Result) -> None:
    """All shards of a node to the others, and back to where they balance."""
    database = await connect(url)
    try:
        before = await database.fetchval(_SHARDS_AT, node.port)
        await database.execute(f"SELECT citus_drain_node('127.0.0.1', {node.port}, 'force_logical')")
        drained = await database.fetchval(_SHARDS_AT, node.port)
        await database.execute(f"SELECT citus_set_node_property('127.0.0.1', {node.port}, 'shouldhaveshards', true)")
        await database.execute("SELECT rebalance_table_shards(shard_transfer_mode => 'force_logical')")
        back = await database.fetchval(_SHARDS_AT, node.port)
    finally:
        await database.close()
    result.fire(_MOVED, before - drained)
    result.check(back > drained, f"{back} shards are on the node after the rebalance")


async def _worker_dies(url: str, found: Sequence[Node], load: Load, result: Result) -> float:
    """Whoever is on the other worker does not notice; how long it took the dead one's sessions to go on."""
    where = await _nodes_of_sessions(url)
    node = found[2]
    await asyncio.to_thread(node.stop, signal.SIGQUIT)
    result.fire(_DIED, int(node.pid is None))
    await asyncio.sleep(0.5)  # what was on its way when it died
    good, refused = load.good.copy(), load.refused.copy()
    await asyncio.sleep(AWAY_S)
    good, refused = load.good - good, load.refused - refused
    result.fire(_ELSEWHERE, _count(good, where, found[1].port))
    result.check(not (n := _count(refused, where, found[1].port)), f"{n} turns on the other node were refused")
    result.check(not (n := _count(good, where, node.port)), f"{n} turns were answered of a node that is away")
    result.measured["turns while a worker was away"] = f"{sum(good.values())}, {sum(refused.values())} refused"
    started_at = monotonic()
    await asyncio.to_thread(node.start)
    back = {session for session, port in where.items() if port == node.port}
    before = load.good.copy()
    while not any(_session(address) in back for address in load.good - before):
        if monotonic() - started_at > 60:
            break
        await asyncio.sleep(0.05)
    return monotonic() - started_at


async def _nodes_of_sessions(url: str) -> dict[UUID, int]:
    database: Any = await connect(url)
    try:
        return {row["id"]: row["nodeport"] for row in await database.fetch(_NODE_OF)}
    finally:
        await database.close()


def _count(answers: Counter[str], where: dict[UUID, int], port: int) -> int:
    return sum(number for address, number in answers.items() if where.get(_session(address)) == port)


def _session(address: str) -> UUID:
    return UUID(address.split("/")[-2])
