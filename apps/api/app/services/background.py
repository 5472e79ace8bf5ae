"""The loops that a process runs in the background for as long as it lives, also while the database cannot be reached;
and the erasure of sessions that have not been used for a while."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import thread_time
from typing import Final

from app.core.memory import newer_objects
from app.db.claims import renew_lease
from app.db.database import Database
from app.db.erasure import Idle, count_idle, count_rows, due_sessions, erase, instant_before, next_idle
from app.db.figures import count_open_turns
from app.db.learned import forget_unused_calibrations
from app.db.turns import fail_lost_turns, sessions_with_lost_turns
from app.domain.errors import DatabaseUnavailable, InvalidRequest, SessionBusy
from app.domain.types import SessionId, TenantId
from app.services.learned import UNUSED, load_windows
from app.services.paging import FIRST_ID
from app.services.runtime import Runtime, retried

logger = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3
_FLUSH_S = 2.0
_FLUSHES_PER_LOAD = 15
_FLUSHES_PER_CLEANING = 1800
_AGAIN_AFTER_S = 1.0
_MOST_ERASED = 100
_LOST_A_PAGE = 100
"""Sessions per page. There may be as many as had running turns when a whole deployment was stopped."""
_PROBE_S = 10.0
_REFRESH_S = 30.0
_BEAT_S = 0.02
_BEATS_SHOWN_S = 30.0
_COLLECT_S = 5.0
_FEW_OBJECTS = 200
"""Newer objects, fewer than which are not worth a collection. An error with its frames is about as many."""
_MANY_OBJECTS = 20_000
_MOST_POSTPONED = 60
_COLLECTIONS_PER_WHOLE = 60
_NEVER = 1_000_000
"""Collections of newer objects after which older ones are collected in the middle of work."""


async def keep_going(work: Callable[[Runtime], Awaitable[None]], rt: Runtime) -> None:
    """Runs a loop, and starts it again a second after it failed: without renewed leases, all running turns are lost."""
    while True:
        try:
            await work(rt)
        except Exception:
            logger.exception("background_work_broke: %s", getattr(work, "__name__", work))
        await asyncio.sleep(_AGAIN_AFTER_S)


async def renew_forever(rt: Runtime) -> None:
    """Renews the leases of this process's turns, three times per lease, and stops those that were ended elsewhere."""
    while True:
        await asyncio.sleep(rt.turn_lease_s / _RENEWALS_PER_LEASE)
        await _renew_leases(rt)  # not here: this loop would keep its last turn in memory while it sleeps


async def _renew_leases(rt: Runtime) -> None:
    """Each lease is renewed by itself, so that a node that cannot be reached stops no renewals on other nodes."""
    failed, detail = 0, ""
    for claim, task in rt.leases.held():
        try:
            if not await rt.database.run(renew_lease, claim, rt.turn_lease_s):
                task.cancel()
        except DatabaseUnavailable as error:
            failed, detail = failed + 1, error.detail
    if failed:
        logger.warning("%d leases could not be renewed: %s", failed, detail)


async def sweep_forever(rt: Runtime) -> None:
    """Once per lease, ends the turns of dead workers even if nothing is posted to their sessions, erases the sessions
    that those workers should have erased, and removes pasts that are not read from the cache."""
    while True:
        await asyncio.sleep(rt.turn_lease_s)
        rt.pasts.forget_idle()
        with suppress(DatabaseUnavailable):
            lost = await end_lost_turns(rt.database)
            rt.telemetry.turns_lost(lost)
            if lost:
                logger.warning("%d turns of lost workers were ended", lost)
        with suppress(DatabaseUnavailable):
            await _erase_due_sessions(rt)


async def _erase_due_sessions(rt: Runtime) -> None:
    async with rt.heavy.database.begin() as tx:
        due = await due_sessions(tx, _MOST_ERASED)
        if due:
            await erase(tx, due)
    rt.pasts.forget(*due)
    if due:
        logger.warning("%d sessions that were not to be kept were erased late", len(due))


async def end_lost_turns(database: Database) -> int:
    """Ends all running turns whose lease has expired, session by session; returns how many there were. A session that
    is locked is left to the next sweep, so that it does not keep the turns of others open."""
    lost, after_id = 0, FIRST_ID
    while True:
        sessions = await database.run(sessions_with_lost_turns, after_id, _LOST_A_PAGE)
        for after_id in sessions:
            with suppress(SessionBusy):
                lost += await _end_lost_turns_of(database, after_id)
        if len(sessions) < _LOST_A_PAGE:
            return lost


@retried
async def _end_lost_turns_of(database: Database, session_id: SessionId) -> int:
    async with database.begin(locking=session_id) as tx:
        return await fail_lost_turns(tx, session_id)


async def probe_forever(rt: Runtime) -> None:
    """Probes the database every ten seconds, and logs when it becomes unavailable, with the reason, and available."""
    known = ""
    while True:
        problem = await probe_database(rt)
        if problem and problem != known:
            logger.warning("database_unavailable: %s", problem)
        if known and not problem:
            logger.warning("database_available: it answers again and takes writes")
        known = problem
        await asyncio.sleep(_PROBE_S)


async def probe_database(rt: Runtime) -> str:
    """Measures whether the database answers in time and accepts writes, and which turns are open in it. Returns why it
    is unavailable, or nothing."""
    found, problem = None, ""
    try:
        async with rt.database.promptly():
            if await rt.database.is_read_only():
                problem = "The database is read-only now."
            else:
                found = await rt.database.run(count_open_turns)
    except DatabaseUnavailable as error:
        # What the server or the system said: the probe has no values of clients that a message could quote.
        cause = error.__cause__
        said = getattr(cause, "strerror", None) or str(cause or "")
        problem = f"{error.detail} ({said})" if said else error.detail
    rt.telemetry.database.probed(found)
    return problem


async def calibrate_forever(rt: Runtime) -> None:
    """Loads the calibrations, at the start and every half minute; merges new observations every two seconds; and
    deletes unused rows once an hour."""
    flushes = 0
    while True:
        with suppress(DatabaseUnavailable):
            if flushes % _FLUSHES_PER_CLEANING == 0:
                await rt.database.run(forget_unused_calibrations, UNUSED.total_seconds())
            if flushes % _FLUSHES_PER_LOAD == 0:
                await rt.calibrations.load(rt.database)
            await rt.calibrations.flush(rt.database)
        flushes += 1
        await asyncio.sleep(_FLUSH_S)


async def refresh_forever(rt: Runtime) -> None:
    """Loads the windows that any process has learned, at the start and every half minute."""
    while True:
        with suppress(DatabaseUnavailable):  # the windows known so far stay in use
            await load_windows(rt.database, rt.catalogue)
        await asyncio.sleep(_REFRESH_S)


async def beat_forever(rt: Runtime) -> None:
    """Measures, fifty times a second, for how long one piece of work blocked the event loop, at most the CPU time of
    its thread: a busy machine is no blocked loop. The metric shows the longest of the last half to whole minute."""
    loop = asyncio.get_running_loop()
    longest_s, longest_before_s, renewed = 0.0, 0.0, loop.time()
    while True:
        due, used_s = loop.time() + _BEAT_S, thread_time()
        await asyncio.sleep(_BEAT_S)
        now = loop.time()
        if now - renewed > _BEATS_SHOWN_S:
            longest_s, longest_before_s, renewed = 0.0, longest_s, now
        longest_s = max(longest_s, min(now - due, thread_time() - used_s))
        rt.telemetry.event_loop_lag(max(longest_s, longest_before_s))


async def collect_forever(_rt: Runtime, every_s: float = _COLLECT_S) -> None:
    """Collects the garbage that is referenced in circles, between two pieces of work: automatic collections of all but
    the newest objects come in the middle of the work that makes many, 26 ms of them with a list of 10,000 messages.
    While there are many newer objects, which such work has and frees, it waits for up to `_MOST_POSTPONED` times. Only
    every `_COLLECTIONS_PER_WHOLE` times it looks again at what earlier ones left, which cached sessions are no part of.
    """
    gc.set_threshold(gc.get_threshold()[0], _NEVER, _NEVER)
    postponed = collected = 0
    while True:
        await asyncio.sleep(every_s)
        newest, collections, _ = gc.get_count()
        if not collections and newest < _FEW_OBJECTS:
            continue
        if newer_objects() > _MANY_OBJECTS and postponed < _MOST_POSTPONED:
            postponed += 1
            continue
        collected += 1
        gc.collect(1 if collected % _COLLECTIONS_PER_WHOLE else 2)
        postponed = 0


LOOPS: Final[Sequence[Callable[[Runtime], Awaitable[None]]]] = (
    renew_forever,
    sweep_forever,
    refresh_forever,
    calibrate_forever,
    probe_forever,
    beat_forever,
    collect_forever,
)

SHORTEST_AGE = timedelta(hours=24)
"""Least age that can be purged: an idempotency key is erased with its session, and is promised for this long."""
BATCH_SESSIONS = 100
BATCH_MESSAGES = 20_000
"""Most messages of a batch, unless a single session has more: a transaction erases them in about a second."""


@dataclass(slots=True)
class Purged:
    """The progress of a purge, in sessions. `rows` counts, by table, the rows that were erased or would be.
    `kept_running` sessions were old enough but ran a turn when the purge began."""

    sessions: int
    kept_running: int
    done: int = 0
    rows: Counter[str] = field(default_factory=Counter[str])


async def purge(
    database: Database,
    older_than: timedelta,
    tenant_id: TenantId | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[Purged], object] = lambda _: None,
) -> Purged:
    """Erases sessions whose last activity is older than `older_than`, of one tenant or of all; `dry_run` only counts.

    Activity is what changes a session: a turn or a round of one, a change, a pin, a summary. Each batch is its own
    transaction, after which `progress` is called. A session with a running turn is kept; turns of dead workers are
    ended first, except with `dry_run`. Raises `InvalidRequest` for an age under a day, `DatabaseUnavailable`.
    """
    if older_than < SHORTEST_AGE:
        raise InvalidRequest("Nothing younger than 24 hours is purged: idempotency keys are kept that long.", ("age",))
    if not dry_run:
        await end_lost_turns(database)
    async with database.autocommit() as tx:
        idle = Idle(await instant_before(tx, older_than), tenant_id)
        purged = Purged(*await count_idle(tx, idle))
    progress(purged)
    after, most = FIRST_ID, {"sessions": BATCH_SESSIONS, "messages": BATCH_MESSAGES}
    while True:
        async with database.begin() as tx:
            batch = await next_idle(tx, idle, after=after, **most, lock=not dry_run)
            found = await (count_rows if dry_run else erase)(tx, batch) if batch else {}
        if not batch:
            return purged
        after = batch[-1]
        purged.rows.update(found)
        purged.done += len(batch)
        progress(purged)
