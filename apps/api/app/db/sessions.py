"""Statements on `sessions`. Every one names the tenant: another tenant's session is no session.

The order in which rows are locked, which is what keeps writers of a session from waiting for each other in a circle.

1. The session's row, by whoever writes anything of the session, in its transaction's first statement that locks. Those
   who decide on what is stored, or end a turn, take it `FOR NO KEY UPDATE` (an UPDATE of it does the same); who only
   adds rows that no decision depends on (pins, counts) takes it `FOR KEY SHARE`; who erases takes it `FOR UPDATE`.
2. The turn's row, and other rows of the session.
3. The tenant's usage rows, by span; then the session's. Nothing is waited for after them.

A foreign key's own `FOR KEY SHARE` is no substitute for the first step: it comes at the end of a statement, and where
the row was changed between its look and its lock it waits for whoever changes it next, whatever lock that one holds.

Nobody waits for rows of two sessions, but for who erases several: it skips those that are locked. Renewing leases takes
rows of many turns and skips likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import cast
from uuid import UUID

import sqlalchemy as sa

from app.db.database import Record, Transaction
from app.db.sql import compile_sql, sql
from app.db.tables import sessions
from app.domain.types import Session, SessionId, SessionState, TenantId

_COLUMNS = tuple(sessions.c[field.name] for field in fields(Session))
STATE_COLUMNS = tuple(column.name for column in fields(SessionState))
_OURS = (sessions.c.id == sa.bindparam("session_id")) & (sessions.c.tenant_id == sa.bindparam("tenant_id"))
CHANGEABLE = ("model_alias", "mode", "agent_role", "room_goal", "instructions", "policy", "metadata", "limits")
"""Fields of a session that a request may set."""
_SET = {name: sa.bindparam(f"new_{name}", type_=sessions.c[name].type) for name in CHANGEABLE}

_INSERT = compile_sql(
    sa.insert(sessions)
    .values(id=sa.bindparam("session_id"), tenant_id=sa.bindparam("new_tenant_id"), **_SET)
    .returning(*_COLUMNS)
)
_GET = compile_sql(sa.select(*_COLUMNS).where(_OURS))
_GET_LOCKED = compile_sql(sa.select(*_COLUMNS).where(_OURS).with_for_update(key_share=True))
_LIST = compile_sql(
    sa.select(*_COLUMNS)
    .where(sessions.c.tenant_id == sa.bindparam("tenant_id"), sessions.c.id < sa.bindparam("before"))
    .order_by(sessions.c.id.desc())
    .limit(sa.bindparam("limit", type_=sa.BigInteger))
)
_LIST_OF = compile_sql(
    sa.select(*_COLUMNS)
    .where(
        sessions.c.tenant_id == sa.bindparam("tenant_id"),
        sessions.c.id == sa.any_(sa.bindparam("session_ids", type_=sa.ARRAY(sa.UUID(as_uuid=True)))),
    )
    .order_by(sessions.c.id.desc())
)
_UPDATE = compile_sql(
    sa.update(sessions).where(_OURS).values(**_SET, updated_at=sa.text("clock_timestamp()")).returning(*_COLUMNS)
)

_EXISTS = compile_sql(sa.select(sessions.c.id).where(_OURS))
_PROMPT_VIEW = compile_sql(
    sa.select(
        *_COLUMNS,
        *(sessions.c[name] for name in STATE_COLUMNS if sessions.c[name] not in set(_COLUMNS)),
        sessions.c.last_turn_seq,
        sessions.c.last_message_seq,
    ).where(_OURS)
)

# Held to the end of the transaction, so that of two requests with one key the second finds what the first made. No
# unique index does it: sessions can be distributed by their id alone.
_LOCK_KEY = sql(
    "SELECT pg_advisory_xact_lock(hashtextextended(CAST(:tenant_id || ' ' || :idempotency_key AS text), 0))"
)
_BY_KEY = compile_sql(
    sa.select(sessions.c.id)
    .where(
        sessions.c.tenant_id == sa.bindparam("tenant_id"), sessions.c.idempotency_key == sa.bindparam("idempotency_key")
    )
    .order_by(sessions.c.id)
    .limit(sa.literal_column("1", sa.Integer))
)
_KEEP_KEY = compile_sql(
    sa.update(sessions).where(_OURS).values(idempotency_key=sa.bindparam("new_idempotency_key", type_=sa.Text))
)

_ERASE_LATER = sql("""
    UPDATE sessions SET erase_after = clock_timestamp() + make_interval(secs => CAST(:seconds AS float))
    WHERE id = CAST(:session_id AS uuid)
    """)


def locked_session(condition: str = "true") -> str:
    """A CTE `locked` with the session's id as `locked_id`: the row of `:session_id`, held to the transaction's end.

    A statement that joins it to what it writes locks nothing before it. It has no row where `condition` does not hold.
    """
    return f"""
        locked AS (
            SELECT id AS locked_id FROM sessions
            WHERE id = CAST(:session_id AS uuid) AND {condition} FOR NO KEY UPDATE
        )
    """


async def insert_session(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, values: Mapping[str, object]
) -> Session:
    """Stores a new session with a value for each of `CHANGEABLE`, and gives it back with the database's instants."""
    row = await tx.fetchrow(
        _INSERT,
        session_id=session_id,
        new_tenant_id=tenant_id,
        **{f"new_{name}": values[name] for name in CHANGEABLE},
    )
    return Session(**cast(Record, row))  # an INSERT … RETURNING gives its row or raises


async def get_session(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, *, lock: bool = False
) -> Session | None:
    """The tenant's session, or None. `lock` holds the row until the transaction ends."""
    row = await tx.fetchrow(_GET_LOCKED if lock else _GET, session_id=session_id, tenant_id=tenant_id)
    return None if row is None else Session(**row)


async def session_exists(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> bool:
    """Whether the tenant has such a session."""
    return await tx.fetchrow(_EXISTS, session_id=session_id, tenant_id=tenant_id) is not None


async def get_prompt_view(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> Record | None:
    """The session's row with the counters that a prompt depends on, without a lock."""
    return await tx.fetchrow(_PROMPT_VIEW, session_id=session_id, tenant_id=tenant_id)


def state_of(row: Record) -> SessionState:
    """What a prompt depends on, of a row that has the columns of `STATE_COLUMNS`."""
    return SessionState(**{name: row[name] for name in STATE_COLUMNS})


async def session_of_key(tx: Transaction, tenant_id: TenantId, idempotency_key: str) -> SessionId | None:
    """The session that a request with this key made. Until the transaction ends nobody else looks the key up."""
    await tx.fetchrow(_LOCK_KEY, tenant_id=tenant_id, idempotency_key=idempotency_key)
    row = await tx.fetchrow(_BY_KEY, tenant_id=tenant_id, idempotency_key=idempotency_key)
    return None if row is None else SessionId(row["id"])


async def keep_key(tx: Transaction, tenant_id: TenantId, session_id: SessionId, idempotency_key: str) -> None:
    """Notes the key of the request that made the session."""
    await tx.execute(_KEEP_KEY, session_id=session_id, tenant_id=tenant_id, new_idempotency_key=idempotency_key)


async def list_sessions(tx: Transaction, tenant_id: TenantId, *, before: UUID, limit: int) -> list[Session]:
    """The tenant's sessions with an id below `before`, newest first."""
    return [Session(**row) for row in await tx.fetch(_LIST, tenant_id=tenant_id, before=before, limit=limit)]


async def sessions_of(tx: Transaction, tenant_id: TenantId, session_ids: Sequence[SessionId]) -> list[Session]:
    """Those of the sessions that are the tenant's, newest first."""
    rows = await tx.fetch(_LIST_OF, tenant_id=tenant_id, session_ids=list(session_ids))
    return [Session(**row) for row in rows]


async def update_session(tx: Transaction, tenant_id: TenantId, session: Session) -> Session | None:
    """Writes the session's changeable fields; None when it is gone."""
    new = {f"new_{name}": getattr(session, name) for name in CHANGEABLE}
    row = await tx.fetchrow(_UPDATE, session_id=session.id, tenant_id=tenant_id, **new)
    return None if row is None else Session(**row)


async def erase_later(tx: Transaction, session_id: SessionId, seconds: float) -> None:
    """Has the session erased after so long, should nobody have done it before."""
    await tx.execute(_ERASE_LATER, session_id=session_id, seconds=seconds)
