"""Retention: erases sessions that have not been used for a while, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from app.db.database import Database
from app.db.erasure import Idle, count_idle, count_rows, erase, instant_before, next_idle
from app.domain.errors import InvalidRequest
from app.domain.types import SessionId, TenantId
from app.services.upkeep.background import end_lost_turns

SHORTEST_AGE = timedelta(hours=24)
"""An idempotency key goes with its session, and is promised for so long."""
BATCH_SESSIONS = 100
BATCH_MESSAGES = 20_000
"""Of a batch, unless one session alone has more: what a transaction erases within about a second."""
_FIRST_ID = UUID(int=0)


@dataclass(slots=True)
class Purged:
    """How far a purge is, in sessions; `rows` are those that were erased, by table, or that would be.

    `kept_running` sessions were old enough and ran a turn when the purge began.
    """

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
    """Erases sessions whose last activity is older, of one tenant or of all; with `dry_run` it only counts.

    Activity is what changes a session: a turn or a round of one, a change, a pin, a summary; reading is none. Each
    batch is a transaction of its own, after which `progress` is called, so that an interruption loses nothing
    and can begin again. A session with a running turn is left alone; turns of dead workers are ended before. Raises
    `InvalidRequest` for an age under a day, `DatabaseUnavailable`.
    """
    if older_than < SHORTEST_AGE:
        raise InvalidRequest("Nothing younger than 24 hours is purged: idempotency keys are kept that long.", ("age",))
    if not dry_run:
        await end_lost_turns(database)
    async with database.autocommit() as tx:
        idle = Idle(await instant_before(tx, older_than), tenant_id)
        purged = Purged(*await count_idle(tx, idle))
    progress(purged)
    after = _FIRST_ID
    while batch := await _next_batch(database, idle, after, purged.rows, dry_run=dry_run):
        after = batch[-1]
        purged.done += len(batch)
        progress(purged)
    return purged


async def _next_batch(
    database: Database, idle: Idle, after: UUID, rows: Counter[str], *, dry_run: bool
) -> list[SessionId]:
    async with database.begin() as tx:
        batch = await next_idle(
            tx, idle, after=after, sessions=BATCH_SESSIONS, messages=BATCH_MESSAGES, lock=not dry_run
        )
        found = await (count_rows if dry_run else erase)(tx, batch) if batch else {}
    rows.update(found)
    return batch
