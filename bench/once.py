"""What a run measures once and not in rounds: first turns of a cold process, forks, stored bytes, resident memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from bench import filling
from bench.cases import SERVICE, Case, default_case, window_case
from bench.cpu import of_tree
from bench.load import drive, post_turn
from bench.measuring import Meter, Spent, add_sessions, take_batch
from bench.targets import Site, Target, started

FORKS = 5
PRESETS = ("guarded", "post_turn", "rolling", "allocated", "turn_atomic")
_MEMORY_LENGTH = 20
_STORED = """
WITH taken AS (SELECT t.session_id, t.id FROM turns AS t WHERE t.session_id = ANY($1::uuid[]) AND t.seq > $2::bigint)
SELECT (SELECT count(*) FROM taken) AS turns,
       (SELECT sum(pg_column_size(a.*)) FROM turn_context_audit AS a JOIN taken ON taken.session_id = a.session_id
           AND taken.id = a.turn_id) AS audit,
       (SELECT sum(pg_column_size(m.terms)) FROM messages AS m JOIN taken ON taken.session_id = m.session_id
           AND taken.id = m.turn_id) AS terms
"""


@dataclass(frozen=True, slots=True)
class Cold:
    """The first turn of a session in a process that has not seen it, and the next one; CPU of the service in ms."""

    messages: int
    first_ms: float
    next_ms: float


@dataclass(frozen=True, slots=True)
class Fork:
    """Copies of a session of so many turns: wall time and CPU of one, and CPU of the next turns in source and copy."""

    turns: int
    wall_s: float
    spent: Spent
    next_in_source: Spent
    next_in_fork: Spent


@dataclass(frozen=True, slots=True)
class Simulated:
    """A session of so many turns under every preset: wall time of the answer."""

    turns: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes a turn, as the server stores them: the audit row, and both messages' packed terms."""

    audit: float
    terms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes of the service's processes after so many turns."""

    turns: int
    sessions: int
    resident_mb: float


async def cold_turns(target: Target, site: Site, messages: int) -> Cold:
    """The first two turns of sessions with so many raw messages that the process, warm by others, has not seen."""
    case = window_case(messages)
    await add_sessions(target, case, filling.texts_of(site.conversation, case.length))
    await filling.settle(target.admin)
    costs: list[float] = []
    for _ in range(2):
        _, spent = await take_batch(target, case, concurrency=1, turns=1)
        costs.append(spent.program_ms / case.sessions)
    return Cold(case.size, *costs)


async def forks(target: Target, site: Site, turns: int) -> Fork:
    """Copies a session of so many turns some times, one after the other."""
    case = replace(default_case(turns), sessions=1)
    await add_sessions(target, case, filling.texts_of(site.conversation, turns))
    await filling.settle(target.admin)
    await take_batch(target, case, concurrency=1)
    source = target.sessions[case.name][0]
    copies: list[UUID] = []
    loop = asyncio.get_running_loop()
    meter, started_at = Meter(target), loop.time()
    for _ in range(FORKS):
        async with target.client.post(f"/v1/sessions/{source}/fork", json={}) as response:
            copies.append(UUID(orjson.loads(await response.read())["id"]))
    wall_s, of_copying = (loop.time() - started_at) / FORKS, meter.spent().of_one(FORKS)
    next_turns: list[Spent] = []
    for session_ids in ([source] * FORKS, copies):
        meter = Meter(target)
        for session_id in session_ids:
            await post_turn(target.client, session_id, next(target.texts))
        next_turns.append(meter.spent().of_one(FORKS))
    return Fork(case.length, wall_s, of_copying, *next_turns)


async def simulated(target: Target, site: Site, turns: int) -> Simulated:
    """A session of so many turns computed under every preset, twice: the first time starts a process."""
    case = replace(default_case(turns), sessions=1)
    await add_sessions(target, case, filling.texts_of(site.conversation, turns))
    await filling.settle(target.admin)
    url = f"/v1/sessions/{target.sessions[case.name][0]}/simulate"
    loop = asyncio.get_running_loop()
    wall_s = 0.0
    for _ in range(2):
        started_at = loop.time()
        async with target.client.post(url, json={"policies": PRESETS, "max_turns": turns}) as response:
            answer = orjson.loads(await response.read())
        wall_s = loop.time() - started_at
        assert len(answer["policies"]) == len(PRESETS), answer
        assert not answer["truncated"], answer
    return Simulated(turns, wall_s)


async def stored(target: Target, case: Case) -> Stored:
    """Of the turns that the run has taken in the case's sessions."""
    row: Any = await target.admin.fetchrow(_STORED, target.sessions[case.name], case.length)
    return Stored(float(row["audit"]) / row["turns"], float(row["terms"]) / row["turns"])


async def memory(site: Site, turns: int, sessions: int, concurrency: int) -> Memory:
    """A service of its own takes so many turns over sessions that have some already."""
    case = replace(default_case(_MEMORY_LENGTH), sessions=sessions)
    async with started(site, SERVICE) as target:
        await add_sessions(target, case, filling.texts_of(site.conversation, case.length))
        await filling.settle(target.admin)
        session_ids = target.sessions[case.name]
        await drive(target.client, session_ids, target.texts, turns // len(session_ids), concurrency)
        resident = of_tree(target.pid, lambda process: process.memory_info().rss)
    return Memory(turns, len(session_ids), resident / 1024 / 1024)
