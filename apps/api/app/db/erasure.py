"""Erasing sessions for good. What belongs to one is derived from the tables, so that a new one can not be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app.db.database import Record, Transaction
from app.db.sql import Statement, compile_sql, metadata, sql
from app.db.tables import pins, session_summaries, sessions, turns
from app.domain.types import SessionId, TenantId

_IDS = sa.bindparam("session_ids", type_=postgresql.ARRAY(postgresql.UUID(as_uuid=True)))


def _rows_of(table: sa.Table) -> sa.ColumnElement[bool]:
    return (sessions.c.id if table is sessions else table.c.session_id) == sa.any_(_IDS)


_OF_A_SESSION = [table for table in metadata.sorted_tables if table is sessions or "session_id" in table.c]
# Innermost first. The foreign keys' own cascade would do the same, turn by turn, and not say how much it was.
_ERASE: dict[str, Statement] = {
    table.name: compile_sql(sa.delete(table).where(_rows_of(table))) for table in reversed(_OF_A_SESSION)
}
_COUNT = compile_sql(
    sa.select(
        *(
            sa.select(sa.func.count()).select_from(table).where(_rows_of(table)).scalar_subquery().label(table.name)
            for table in reversed(_OF_A_SESSION)
        )
    )
)

_LOCK = compile_sql(
    sa.select(sessions.c.id)
    .where(sessions.c.id == sa.bindparam("session_id"), sessions.c.tenant_id == sa.bindparam("tenant_id"))
    .with_for_update()
)

_BEFORE = sa.bindparam("before", type_=sa.DateTime(timezone=True))
_TENANT = sa.bindparam("tenant_id", type_=sa.Text)
_AGO = sql("SELECT statement_timestamp() - make_interval(secs => CAST(:age_s AS float))")


def _has(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.session_id == sessions.c.id, *conditions)


# A claim, a later round, a change and an undo all stamp the session itself.
_IDLE = sa.and_(
    sessions.c.updated_at < _BEFORE,
    ~_has(pins, pins.c.updated_at >= _BEFORE),
    ~_has(session_summaries, session_summaries.c.created_at >= _BEFORE),
    sa.or_(sa.cast(_TENANT, sa.Text).is_(None), sessions.c.tenant_id == sa.cast(_TENANT, sa.Text)),
)
_RUNNING = turns.c.status == sa.literal_column("'running'")
_RUNS = _has(turns, _RUNNING)
_LIVES = _has(turns, _RUNNING, turns.c.lease_expires_at >= sa.func.statement_timestamp())
_NEXT = (
    sa.select(sessions.c.id, sessions.c.last_message_seq)
    .where(_IDLE, sessions.c.id > sa.bindparam("after", type_=postgresql.UUID(as_uuid=True)))
    .order_by(sessions.c.id)
    .limit(sa.bindparam("limit", type_=sa.BigInteger))
)
_LOOK_AT_NEXT = compile_sql(_NEXT.where(~_LIVES))
_DUE = (
    sa.select(sessions.c.id)
    .where(sessions.c.erase_after < sa.func.statement_timestamp(), ~_RUNS)
    .order_by(sessions.c.id)
    .limit(sa.bindparam("limit", type_=sa.BigInteger))
)
_LOOK_AT_DUE = compile_sql(_DUE)
# Session by session: no node locks rows of another. Of two purges each takes its own, and a session that somebody uses
# just now is no idle one.
_ONE = sa.select(sessions.c.id).where(sessions.c.id == sa.bindparam("session_id"), ~_RUNS)
_LOCK_IDLE = compile_sql(_ONE.where(_IDLE).with_for_update(skip_locked=True))
_LOCK_DUE = compile_sql(
    _ONE.where(sessions.c.erase_after < sa.func.statement_timestamp()).with_for_update(skip_locked=True)
)
_HOW_MANY = compile_sql(
    sa.select(
        sa.func.count().filter(~_LIVES).label("idle"),
        sa.func.count().filter(_LIVES).label("running"),
    ).where(_IDLE)
)


@dataclass(frozen=True, slots=True)
class Idle:
    """Which sessions are meant: those of the tenant (of all, where it is None) with no activity since `before`."""

    before: datetime
    tenant_id: TenantId | None


async def lock_session(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> bool:
    """Keeps all writers out of the tenant's session until the transaction ends; false when there is no such session."""
    return await tx.fetchrow(_LOCK, session_id=session_id, tenant_id=tenant_id) is not None


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
