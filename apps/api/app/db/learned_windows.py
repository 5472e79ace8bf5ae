"""Windows that providers stated, by model alias and tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.db.database import Transaction
from app.db.sql import sql

_ALL = sql("""
    SELECT model_alias, tenant_id, context_window, statements, first_stated_at, expires_at FROM learned_windows
    WHERE expires_at > clock_timestamp()
    ORDER BY expires_at DESC LIMIT CAST(:most AS bigint)
    """)

# Another window is a first statement again. The same turn may state one several times; that is one statement.
_NOTE = sql("""
    INSERT INTO learned_windows AS w (model_alias, tenant_id, context_window, last_turn_id, expires_at)
    VALUES (:model_alias, :tenant_id, CAST(:context_window AS bigint), CAST(:turn_id AS uuid),
        clock_timestamp() + make_interval(secs => CAST(:believed_s AS float)))
    ON CONFLICT (model_alias, tenant_id) DO UPDATE SET
        statements = CASE
            WHEN w.context_window <> excluded.context_window OR w.expires_at <= clock_timestamp() THEN 1
            WHEN w.last_turn_id = excluded.last_turn_id THEN w.statements
            ELSE w.statements + 1 END,
        first_stated_at = CASE
            WHEN w.context_window <> excluded.context_window OR w.expires_at <= clock_timestamp()
            THEN clock_timestamp() ELSE w.first_stated_at END,
        context_window = excluded.context_window, last_turn_id = excluded.last_turn_id,
        expires_at = excluded.expires_at
    """)

_EXPIRE = sql("DELETE FROM learned_windows WHERE expires_at <= clock_timestamp()")

_FORGET = sql("DELETE FROM learned_windows WHERE model_alias = :model_alias RETURNING 1")


@dataclass(frozen=True, slots=True)
class StatedWindow:
    """A window in tokens that a provider stated to a tenant, in how many turns, since and until when it counts."""

    model_alias: str
    tenant_id: str
    context_window: int
    statements: int
    first_stated_at: datetime
    expires_at: datetime


async def stated_windows(tx: Transaction, most: int) -> list[StatedWindow]:
    """Those that still count, the last stated first, `most` at most."""
    return [StatedWindow(*row.values()) for row in await tx.fetch(_ALL, most=most)]


async def note_window(
    tx: Transaction, model_alias: str, tenant_id: str, turn_id: UUID, context_window: int, believed_s: float
) -> None:
    """Notes what a provider stated in a turn, for so many seconds, and deletes what has expired."""
    await tx.execute(_EXPIRE)
    await tx.execute(
        _NOTE,
        model_alias=model_alias,
        tenant_id=tenant_id,
        turn_id=turn_id,
        context_window=context_window,
        believed_s=believed_s,
    )


async def forget_windows(tx: Transaction, model_alias: str) -> int:
    """Deletes everything that was stated of an alias; how many tenants it was stated to."""
    return len(await tx.fetch(_FORGET, model_alias=model_alias))
