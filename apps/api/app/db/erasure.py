"""Erasing sessions for good. What belongs to one is derived from the tables, so that a new one can not be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from app.db.database import Record, Transaction
from app.db.sql import metadata, of_session, sql
from app.db.tables import sessions
from app.domain.types import SessionId, SessionRef, TenantId

_OF_A_SESSION = [table for table in reversed(metadata.sorted_tables) if table is sessions or "session_id" in table.c]
_ROWS = {
    table.name: f"{table.name} WHERE {'id' if table is sessions else 'session_id'} = ANY(:session_ids)"
    for table in _OF_A_SESSION
}
# Innermost first. The foreign keys' own cascade would do the same, turn by turn, and not say how much it was.
_ERASE = {name: sql(f"DELETE FROM {rows}") for name, rows in _ROWS.items()}
_COUNT = sql("SELECT " + ", ".join(f"(SELECT count(*) FROM {rows}) AS {name}" for name, rows in _ROWS.items()))

_LOCK = sql("SELECT id FROM sessions WHERE id = :session_id AND tenant_id = :tenant_id FOR UPDATE")
_AGO = sql("SELECT statement_timestamp() - make_interval(secs => :age_s)")

# A claim, a later round, a change and an undo all stamp the session itself.
_IDLE = """sessions.updated_at < :before
    AND NOT EXISTS (SELECT FROM pins WHERE session_id = sessions.id AND updated_at >= :before)
    AND NOT EXISTS (SELECT FROM session_summaries
        WHERE session_id = sessions.id AND created_at >= :before)
    AND (CAST(:tenant_id AS text) IS NULL OR sessions.tenant_id = :tenant_id)"""
_RUNS = "EXISTS (SELECT FROM turns WHERE session_id = sessions.id AND status = 'running')"
_LIVES = """EXISTS (SELECT FROM turns
    WHERE session_id = sessions.id AND status = 'running' AND lease_expires_at >= statement_timestamp())"""
_LOOK_AT_NEXT = sql(f"""
    SELECT id, last_message_seq FROM sessions WHERE {_IDLE} AND id > :after AND NOT {_LIVES}
    ORDER BY id LIMIT :limit
    """)
_IS_DUE = f"erase_after < statement_timestamp() AND NOT {_RUNS}"
_LOOK_AT_DUE = sql(f"SELECT id FROM sessions WHERE {_IS_DUE} ORDER BY id LIMIT :limit")
# Session by session: no node locks rows of another. Of two purges each takes its own, and a session that somebody uses
# just now is no idle one.
_ONE = "SELECT id FROM sessions WHERE id = :session_id"
_LOCK_IDLE = sql(f"{_ONE} AND NOT {_RUNS} AND {_IDLE} FOR UPDATE SKIP LOCKED")
_LOCK_DUE = sql(f"{_ONE} AND {_IS_DUE} FOR UPDATE SKIP LOCKED")
_HOW_MANY = sql(f"""
    SELECT count(*) FILTER (WHERE NOT {_LIVES}) AS idle, count(*) FILTER (WHERE {_LIVES}) AS running
    FROM sessions WHERE {_IDLE}
    """)


@dataclass(frozen=True, slots=True)
class Idle:
    """Which sessions are meant: those of the tenant (of all, where it is None) with no activity since `before`."""

    before: datetime
    tenant_id: TenantId | None


async def lock_session(tx: Transaction, session: SessionRef) -> bool:
    """Keeps all writers out of the tenant's session until the transaction ends; false when there is no such session."""
    return await tx.fetchrow(_LOCK, **of_session(session)) is not None


async def erase(tx: Transaction, session_ids: Sequence[SessionId]) -> dict[str, int]:
    """Erases the sessions and all rows that belong to them; how many, by table. No turn of theirs may be running."""
    return {name: await tx.execute(statement, session_ids=session_ids) for name, statement in _ERASE.items()}


async def due_sessions(tx: Transaction, limit: int) -> list[SessionId]:
    """Sessions that were not to be kept and whose time is over, held until the transaction ends."""
    rows = await tx.fetch(_LOOK_AT_DUE, limit=limit)
    return [row["id"] for row in rows if await tx.fetchrow(_LOCK_DUE, session_id=row["id"])]


async def count_rows(tx: Transaction, session_ids: Sequence[SessionId]) -> dict[str, int]:
    """What `erase` would erase."""
    return dict(cast(Record, await tx.fetchrow(_COUNT, session_ids=session_ids)))


async def instant_before(tx: Transaction, age: timedelta) -> datetime:
    """So long ago, by the database's clock, which is the one that stamped the sessions."""
    return await tx.fetchval(_AGO, age_s=age.total_seconds())


async def count_idle(tx: Transaction, idle: Idle) -> tuple[int, int]:
    """How many sessions are meant, and how many more would be, did they not run a turn."""
    row = cast(Record, await tx.fetchrow(_HOW_MANY, before=idle.before, tenant_id=idle.tenant_id))
    return row["idle"], row["running"]


async def next_idle(
    tx: Transaction, idle: Idle, *, after: UUID, sessions: int, messages: int, lock: bool
) -> list[SessionId]:
    """The next of them in the order of their ids: at most so many sessions, and of those a first one and as many more
    as have so many messages in all. With `lock` they are held until the transaction ends.
    """
    meant = {"before": idle.before, "tenant_id": idle.tenant_id}
    rows = await tx.fetch(_LOOK_AT_NEXT, **meant, after=after, limit=sessions)
    taken: list[SessionId] = []
    for row in rows:
        if lock and await tx.fetchrow(_LOCK_IDLE, **meant, session_id=row["id"]) is None:
            continue
        messages -= row["last_message_seq"]
        if taken and messages < 0:
            break
        taken.append(SessionId(row["id"]))
    return taken
