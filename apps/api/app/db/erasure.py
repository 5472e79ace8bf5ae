"""Erases sessions for good. The rows of a session are derived from the tables, so that no new table is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from app.db.database import Transaction
from app.db.sql import Statement, metadata, sql
from app.db.tables import sessions
from app.domain.frozen import frozen, values_of
from app.domain.types import SessionId, TenantId

_OF_A_SESSION = [table for table in reversed(metadata.sorted_tables) if table is sessions or "session_id" in table.c]
_ROWS = {
    table.name: f"{table.name} WHERE {'id' if table is sessions else 'session_id'} = ANY(:session_ids)"
    for table in _OF_A_SESSION
}
# Innermost tables first. The foreign keys' cascade would do the same turn by turn, but not report the number of rows.
_ERASE = {name: sql(f"DELETE FROM {rows}") for name, rows in _ROWS.items()}
_COUNT = sql("SELECT " + ", ".join(f"(SELECT count(*) FROM {rows}) AS {name}" for name, rows in _ROWS.items()))

_AGO = sql("SELECT statement_timestamp() - make_interval(secs => :age_s)")

# A claim, a later round, a change and an undo all set `updated_at` of the session itself.
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
_LOOK_AT_DUE = sql(f"SELECT id FROM sessions WHERE {_IS_DUE} ORDER BY erase_after LIMIT :limit")
# One session at a time, so that no node locks rows of another. Locked sessions are skipped: two purges take different
# ones, and a session that is in use now is not idle. What holds is asked after that, because a statement that locks a
# row reads other tables as they were before: it misses a turn or a pin that was committed meanwhile.
_ONE = "SELECT id FROM sessions WHERE id = :session_id"
_LOCK_UNUSED = sql(f"{_ONE} FOR UPDATE SKIP LOCKED")
_IS_STILL_IDLE = sql(f"{_ONE} AND NOT {_RUNS} AND {_IDLE}")
_IS_STILL_DUE = sql(f"{_ONE} AND {_IS_DUE}")
_HOW_MANY = sql(f"""
    SELECT count(*) FILTER (WHERE NOT {_LIVES}) AS idle, count(*) FILTER (WHERE {_LIVES}) AS running
    FROM sessions WHERE {_IDLE}
    """)


@frozen
class Idle:
    """Selects the sessions of the tenant (of all tenants, if it is None) without activity since `before`."""

    before: datetime
    tenant_id: TenantId | None


async def erase(tx: Transaction, session_ids: Sequence[SessionId]) -> dict[str, int]:
    """Erases the sessions and all their rows; returns how many, by table. None of their turns may be running."""
    return {name: await tx.execute(statement, session_ids=session_ids) for name, statement in _ERASE.items()}


async def due_sessions(tx: Transaction, limit: int) -> list[SessionId]:
    """Sessions whose `erase_after` has passed and that run no turn, locked until the transaction ends."""
    rows = await tx.fetch(_LOOK_AT_DUE, limit=limit)
    return [row["id"] for row in rows if await _locked(tx, row["id"], _IS_STILL_DUE)]


async def _locked(tx: Transaction, session_id: UUID, still: Statement, **meant: object) -> bool:
    """Whether the session was locked and is still as the statement selects it."""
    if await tx.fetchrow(_LOCK_UNUSED, session_id=session_id) is None:
        return False
    return await tx.fetchrow(still, session_id=session_id, **meant) is not None


async def count_rows(tx: Transaction, session_ids: Sequence[SessionId]) -> dict[str, int]:
    """How many rows `erase` would erase, by table."""
    return dict(await tx.fetch_one(_COUNT, session_ids=session_ids))


async def instant_before(tx: Transaction, age: timedelta) -> datetime:
    """The time `age` ago by the database's clock, which also set the times of the sessions."""
    return await tx.fetchval(_AGO, age_s=age.total_seconds())


async def count_idle(tx: Transaction, idle: Idle) -> tuple[int, int]:
    """How many sessions are selected, and how many more would be if they were not running a turn."""
    row = await tx.fetch_one(_HOW_MANY, **values_of(idle))
    return row["idle"], row["running"]


async def next_idle(
    tx: Transaction, idle: Idle, *, after: UUID, sessions: int, messages: int, lock: bool
) -> list[SessionId]:
    """The next selected sessions in the order of their ids: at most `sessions`, and after the first only as many as
    have at most `messages` messages in all; with `lock` they are locked, without those that are locked elsewhere."""
    meant = values_of(idle)
    taken: list[SessionId] = []
    while not taken and (rows := await tx.fetch(_LOOK_AT_NEXT, **meant, after=after, limit=sessions)):
        after = rows[-1]["id"]
        for row in rows:
            if lock and not await _locked(tx, row["id"], _IS_STILL_IDLE, **meant):
                continue
            messages -= row["last_message_seq"]
            if taken and messages < 0:
                break
            taken.append(SessionId(row["id"]))
    return taken
