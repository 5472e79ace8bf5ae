"""Statements on `pins`. The tenant is checked by the join to the session, in the same statement."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from app.db.database import Record, Transaction
from app.db.sql import compile_sql
from app.db.tables import pins, sessions
from app.domain.types import Pin, SessionId, TenantId

_NAME = sa.bindparam("name", type_=sa.Text)
_SESSION_ID = sa.bindparam("session_id", type_=sessions.c.id.type)
_OWN_SESSION = sa.select(sessions.c.id).where(
    sessions.c.id == _SESSION_ID, sessions.c.tenant_id == sa.bindparam("tenant_id", type_=sa.Text)
)
_PIN_COLUMNS = (pins.c.name, pins.c.content, pins.c.relevance, pins.c.source)

# The row is made from the session's own row, so a session of another tenant yields none.
_PUT_SOURCE = (
    sa.select(
        sessions.c.id,
        _NAME,
        sa.bindparam("content", type_=sa.Text),
        sa.bindparam("relevance", type_=sa.Float),
        sa.bindparam("source", type_=sa.Text),
    )
    .where(sessions.c.id == _SESSION_ID, sessions.c.tenant_id == sa.bindparam("tenant_id", type_=sa.Text))
    .with_for_update(read=True, key_share=True)
)
_INSERT = insert(pins).from_select(["session_id", "name", "content", "relevance", "source"], _PUT_SOURCE)
_PUT = compile_sql(
    _INSERT.on_conflict_do_update(
        index_elements=[pins.c.session_id, pins.c.name],
        set_={
            "content": _INSERT.excluded.content,
            "relevance": _INSERT.excluded.relevance,
            "source": _INSERT.excluded.source,
            "updated_at": sa.text("clock_timestamp()"),
        },
    ).returning(*_PIN_COLUMNS)
)
_OURS = pins.c.session_id.in_(_OWN_SESSION)
_GET = compile_sql(sa.select(*_PIN_COLUMNS).where(_OURS, pins.c.name == _NAME))
_LIST = compile_sql(
    sa.select(*_PIN_COLUMNS)
    .where(_OURS, pins.c.name > sa.bindparam("after", type_=sa.Text))
    .order_by(pins.c.name)
    .limit(sa.bindparam("limit", type_=sa.BigInteger))
)
_DELETE = compile_sql(sa.delete(pins).where(_OURS, pins.c.name == _NAME))


async def put_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, pin: Pin) -> Pin | None:
    """Stores the pin or replaces the one of its name; None when the tenant has no such session."""
    row = await tx.fetchrow(
        _PUT,
        tenant_id=tenant_id,
        session_id=session_id,
        name=pin.name,
        content=pin.content,
        relevance=pin.relevance,
        source=pin.source,
    )
    return None if row is None else pin_of(row)


async def get_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, name: str) -> Pin | None:
    """The pin of that name, or None."""
    row = await tx.fetchrow(_GET, tenant_id=tenant_id, session_id=session_id, name=name)
    return None if row is None else pin_of(row)


async def list_pins(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, *, after: str, limit: int
) -> list[Pin]:
    """The session's pins by name, from the first one above `after`."""
    rows = await tx.fetch(_LIST, tenant_id=tenant_id, session_id=session_id, after=after, limit=limit)
    return [pin_of(row) for row in rows]


async def delete_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, name: str) -> bool:
    """Takes the pin away. False when there was none."""
    return await tx.execute(_DELETE, tenant_id=tenant_id, session_id=session_id, name=name) > 0


def pin_of(row: Record) -> Pin:
    """A row with the columns of `pins` as the domain's value."""
    return Pin(name=row["name"], content=row["content"], relevance=row["relevance"], source=row["source"])
