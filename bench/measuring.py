"""One run: fill, warm up, then rounds of batches in which the two programs take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median_low
from uuid import UUID

from bench import filling
from bench.cases import BARE, SERVICE, SUMMARIZING, Case, Plan
from bench.conversation import Conversation
from bench.cpu import cpu_seconds, postmaster_pid
from bench.figures import Batch
from bench.load import Load, NotTheTurnThatWasMeant, drive, post_turn
from bench.targets import Site, Target, started_counted
from bench.wire import Tally

_COUNTED_CYCLES = 3
_BACKGROUND_S = 0.05
"""What a turn does behind its answer belongs to it."""
_SUMMARIES = "SELECT count(*) FROM session_summaries WHERE session_id = ANY($1::uuid[]) AND origin = 'model'"


@dataclass(frozen=True, slots=True)
class StatementCount:
    """What a turn asks of Postgres: of a plain one the median, of the default the mean of whole cycles."""

    statements: float
    transactions: float
    round_trips: float
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU of a program and of its server in milliseconds; `postgres_ms` is None for a server elsewhere."""

    program_ms: float
    postgres_ms: float | None

    def of_one(self, number: int) -> Spent:
        """Divided by how many there were."""
        return Spent(self.program_ms / number, None if self.postgres_ms is None else self.postgres_ms / number)


class Meter:
    """What a target and its server spend from the meter's making on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._postmaster = postmaster_pid(target.admin.get_server_pid())
        self._before = self._now_s()

    def spent(self) -> Spent:
        """So far."""
        program_s, postgres_s = (now - before for now, before in zip(self._now_s(), self._before, strict=True))
        return Spent(program_s * 1000, postgres_s * 1000 if self._postmaster else None)

    def _now_s(self) -> tuple[float, float]:
        of_server = cpu_seconds(self._postmaster) if self._postmaster else 0.0
        return cpu_seconds(self._target.pid, without_postgres=True), of_server


async def fill_targets(targets: Sequence[Target], plan: Plan, conversation: Conversation) -> None:
    """Every target gets the same sessions of every case. The targets' databases are filled side by side."""
    texts = filling.texts_of(conversation, max(case.length for case in plan.cases))

    async def fill_one(target: Target) -> None:
        for case in plan.cases:
            if case.rounds is None:
                await add_sessions(target, case, texts)
        await filling.settle(target.admin)

    await asyncio.gather(*(fill_one(target) for target in targets))


async def add_sessions(target: Target, case: Case, texts: filling.Texts) -> None:
    """Fills the case's sessions. Whoever makes no summaries has its window slid, from the default's smallest on."""
    session_ids = await _make_sessions(target, case)
    await filling.fill(target.admin, target.pattern_session_id, session_ids, case.length, texts)
    if case.raw_turns is not None or target.name == BARE:
        target.raw_turns[case.name] = case.raw_turns or filling.PROTECTED_TURNS + 1


async def _make_sessions(target: Target, case: Case) -> list[UUID]:
    session_ids = target.sessions[case.name] = [
        await filling.make_session(target.admin, target.pattern_session_id, case.model_alias, case.policy)
        for _ in range(case.sessions)
    ]
    return session_ids


async def measure(targets: Sequence[Target], plan: Plan, advance: Callable[[], None]) -> list[Batch]:
    """All batches of the run; `advance` is called after each. The warm-up round is not among them.

    The order of the targets alternates from round to round, so that neither always runs on the other's heels.
    """
    for case in plan.cases:
        await _warm_up(targets, case, plan.concurrencies_of(case)[-1])
        advance()
    batches: list[Batch] = []
    for number in range(plan.rounds):
        for case in plan.cases:
            for concurrency in plan.concurrencies_of(case):
                for target in targets if number % 2 == 0 else reversed(targets):
                    batches.append(await _batch(target, case, concurrency))
                    advance()
    return batches


async def count_statements(site: Site, name: str, case: Case) -> StatementCount:
    """Runs a second process of the program behind the counting proxy and takes some turns, one at a time."""
    tally = Tally()
    counts: list[tuple[int, int, int]] = []
    texts: tuple[str, ...] = ()
    async with started_counted(site, name, tally) as target:
        alone = replace(case, sessions=1)
        await add_sessions(target, alone, filling.texts_of(site.conversation, case.length))
        await take_batch(target, alone, concurrency=1)  # the process reads what it keeps from then on
        for _ in range(_COUNTED_CYCLES):
            await _prepare(target, alone)
            for _ in range(case.turns):
                tally.clear()
                await post_turn(target.client, target.sessions[case.name][0], next(target.texts))
                await asyncio.sleep(_BACKGROUND_S)  # a pool may clean its connection after the answer
                counts.append((len(tally.statements), tally.transactions, tally.round_trips))
                texts = tuple(tally.statements)
    of_all = mean if case.raw_turns is None else median_low
    statements, transactions, round_trips = (float(of_all(figures)) for figures in zip(*counts, strict=True))
    return StatementCount(statements, transactions, round_trips, texts)


async def _warm_up(targets: Sequence[Target], case: Case, concurrency: int) -> None:
    """A batch of each that does not count. From it follows, where the service makes its own summaries, how many raw
    turns give the bare handler a prompt as large as the service's."""
    tokens: dict[str, float] = {}
    for target in targets:
        load, _ = await take_batch(target, case, concurrency)
        tokens[target.name] = load.mean_prompt_tokens()
    for target in targets:
        if case.summarizes and target.name == BARE and SERVICE in tokens:
            of_a_turn = await target.admin.fetchval(
                "SELECT 2 * avg(token_estimate + 4)::float FROM messages WHERE session_id = ANY($1) AND seq > $2",
                target.sessions[case.name],
                2 * case.length,
            )
            missing = round((tokens[SERVICE] - tokens[BARE]) / of_a_turn)
            target.raw_turns[case.name] = max(1, target.raw_turns[case.name] + missing)


async def _prepare(target: Target, case: Case) -> None:
    """Slides the window of the case's sessions, or makes new ones and takes the rounds before."""
    raw_turns = target.raw_turns.get(case.name)
    if case.rounds is not None:
        session_ids = await _make_sessions(target, case)
        await drive(target.client, session_ids, target.texts, case.rounds, 1, case.options, target.open_calls)
    elif raw_turns is not None:
        await filling.slide(target.admin, target.sessions[case.name], raw_turns)


async def take_batch(target: Target, case: Case, concurrency: int, turns: int | None = None) -> tuple[Load, Spent]:
    """A batch, or `turns` turns of each of its sessions.

    Raises `NotTheTurnThatWasMeant` where turns made summaries that were to make none, or too few, or ended where they
    were to go on.
    """
    await _prepare(target, case)
    session_ids = target.sessions[case.name]
    made_before = await target.admin.fetchval(_SUMMARIES, session_ids)
    meter = Meter(target)
    load = await drive(
        target.client, session_ids, target.texts, turns or case.turns, concurrency, case.options, target.open_calls
    )
    await asyncio.sleep(_BACKGROUND_S)
    spent = meter.spent()
    made = await target.admin.fetchval(_SUMMARIES, session_ids) - made_before
    least, most = summaries_of_a_batch(target.name, case)
    if not least <= made <= most or (any(turn.compressed for turn in load.answered) and not most):
        raise NotTheTurnThatWasMeant(f"{case.name}: {made} summaries, not {least} to {most}")
    if any((turn.open_call is None) is (case.rounds is not None) for turn in load.answered):
        raise NotTheTurnThatWasMeant(f"{case.name}: rounds that call no tool, or turns that call one")
    return load, spent


def summaries_of_a_batch(target: str, case: Case) -> tuple[int, int]:
    """The least and the most stored summaries that a batch of the case makes: one a session, but for those that are
    made behind the last answers of a batch."""
    if target not in SUMMARIZING or not case.summarizes:
        return 0, 0
    return case.sessions // 2, 3 * case.sessions // 2


async def _batch(target: Target, case: Case, concurrency: int) -> Batch:
    load, spent = await take_batch(target, case, concurrency)
    turns = len(load.answered)
    of_turn = spent.of_one(turns)
    return Batch(
        target=target.name,
        case=case.name,
        concurrency=concurrency,
        turns=turns,
        wall_s=load.wall_s,
        cpu_ms=of_turn.program_ms,
        postgres_cpu_ms=of_turn.postgres_ms,
        latencies_ms=tuple(turn.latency_ms for turn in load.answered),
        prompt_tokens=load.mean_prompt_tokens(),
        recalled=sum(turn.recalled for turn in load.answered) / turns,
    )
