"""Statements on `pins`. The tenant is checked by the join to the session, in the same statement."""

from __future__ import annotations

from app.db.database import Transaction
from app.db.sql import given, insert_row, sql
from app.db.tables import pins
from app.domain.stored import names_of, values_of
from app.domain.types import Pin, SessionId, TenantId

_COLUMNS = ", ".join(f"pins.{name}" for name in names_of(Pin))

# The row is made from the session's own row, so a session of another tenant yields none.
_NEW = insert_row(
    pins,
    {"session_id": "s.id", **given(pins, "name", "content", "relevance", "source")},
    "sessions s WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id FOR KEY SHARE",
)
_PUT = sql(f"""
    {_NEW}
    ON CONFLICT (session_id, name) DO UPDATE SET content = excluded.content, relevance = excluded.relevance,
        source = excluded.source, updated_at = excluded.updated_at
    RETURNING {_COLUMNS}
    """)
_OURS = """
    pins.session_id IN (SELECT id FROM sessions WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id)
"""
_GET = sql(f"SELECT {_COLUMNS} FROM pins WHERE {_OURS} AND name = :name")
_LIST = sql(f"""
    SELECT {_COLUMNS} FROM pins WHERE {_OURS} AND name > :after ORDER BY name LIMIT CAST(:limit AS bigint)
    """)
_DELETE = sql(f"DELETE FROM pins WHERE {_OURS} AND name = :name")


async def put_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, pin: Pin) -> Pin | None:
    """Stores the pin or replaces the one of its name; None when the tenant has no such session."""
    return await tx.fetch_record(Pin, _PUT, tenant_id=tenant_id, session_id=session_id, **values_of(pin))


async def get_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, name: str) -> Pin | None:
    return await tx.fetch_record(Pin, _GET, tenant_id=tenant_id, session_id=session_id, name=name)


async def list_pins(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, *, after: str, limit: int
) -> list[Pin]:
    """The session's pins by name, from the first one above `after`."""
    return await tx.fetch_records(Pin, _LIST, tenant_id=tenant_id, session_id=session_id, after=after, limit=limit)


async def delete_pin(tx: Transaction, tenant_id: TenantId, session_id: SessionId, name: str) -> bool:
    """Takes the pin away. False when there was none."""
    return await tx.execute(_DELETE, tenant_id=tenant_id, session_id=session_id, name=name) > 0
