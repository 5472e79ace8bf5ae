"""One run: fill, warm up, then rounds of batches in which the two programs take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

from bench import filling
from bench.cpu import cpu_seconds, postmaster_pid
from bench.figures import Batch
from bench.load import drive, post_turn
from bench.targets import Site, Target, started_counted
from bench.wire import Tally

SESSIONS_PER_LENGTH = 16
COUNTED_TURNS = 21
_COUNTED_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    lengths: tuple[int, ...]
    concurrencies: tuple[int, ...]
    rounds: int
    provider_latency_ms: float


@dataclass(frozen=True, slots=True)
class StatementCount:
    """What one plain turn asks of Postgres: medians over some turns, and the texts of the last one's statements."""

    statements: int
    transactions: int
    round_trips: int
    texts: tuple[str, ...]


async def fill_targets(targets: Sequence[Target], plan: Plan) -> None:
    """Every target gets the same number of sessions of every length. The targets' databases are filled side by side."""

    async def fill_one(target: Target) -> None:
        for length in plan.lengths:
            session_ids = [
                await filling.make_session(target.admin, target.pattern_session_id) for _ in range(SESSIONS_PER_LENGTH)
            ]
            await filling.fill(target.admin, target.pattern_session_id, session_ids, length)
            target.sessions[length] = session_ids
        await filling.settle(target.admin)

    await asyncio.gather(*(fill_one(target) for target in targets))


async def measure(targets: Sequence[Target], plan: Plan, advance: Callable[[], None]) -> list[Batch]:
    """All batches of the run; `advance` is called after each. The warm-up round is not among them.

    The order of the targets alternates from round to round, so that neither always runs on the other's heels.
    """
    for target in targets:
        for length in plan.lengths:
            for concurrency in plan.concurrencies:
                await _batch(target, length, concurrency)
                advance()
    batches: list[Batch] = []
    for number in range(plan.rounds):
        for length in plan.lengths:
            for concurrency in plan.concurrencies:
                for target in targets if number % 2 == 0 else reversed(targets):
                    batches.append(await _batch(target, length, concurrency))
                    advance()
    return batches


async def count_statements(site: Site, name: str) -> StatementCount:
    """Runs a second process of the program behind the counting proxy and takes some plain turns, one at a time."""
    tally = Tally()
    counts: list[tuple[int, int, int]] = []
    texts: tuple[str, ...] = ()
    async with started_counted(site, name, tally) as target:
        session_id = await filling.make_session(target.admin, target.pattern_session_id)
        await filling.fill(target.admin, target.pattern_session_id, [session_id], _COUNTED_LENGTH)
        for number in range(COUNTED_TURNS):
            if number % filling.PLAIN_TURNS == 0:
                await filling.put_back(target.admin, [session_id], _COUNTED_LENGTH)
            tally.clear()
            await post_turn(target.client, session_id)
            await asyncio.sleep(0.02)  # a pool may clean its connection after the answer; that belongs to the turn
            counts.append((len(tally.statements), tally.transactions, tally.round_trips))
            texts = tuple(tally.statements)
    statements, transactions, round_trips = (median_low(figures) for figures in zip(*counts, strict=True))
    return StatementCount(statements, transactions, round_trips, texts)


async def _batch(target: Target, length: int, concurrency: int) -> Batch:
    session_ids = target.sessions[length]
    postmaster = postmaster_pid(target.admin.get_server_pid())
    postgres_before = cpu_seconds(postmaster) if postmaster else None
    before = cpu_seconds(target.pid, without_postgres=True)
    load = await drive(target.client, session_ids, filling.PLAIN_TURNS, concurrency)
    after = cpu_seconds(target.pid, without_postgres=True)
    turns = len(load.latencies_ms)
    postgres_cpu_ms = None
    if postmaster and postgres_before is not None:
        postgres_cpu_ms = (cpu_seconds(postmaster) - postgres_before) * 1000 / turns
    await filling.put_back(target.admin, session_ids, length)
    return Batch(
        target=target.name,
        length=length,
        concurrency=concurrency,
        turns=turns,
        wall_s=load.wall_s,
        cpu_ms=(after - before) * 1000 / turns,
        postgres_cpu_ms=postgres_cpu_ms,
        latencies_ms=load.latencies_ms,
    )
