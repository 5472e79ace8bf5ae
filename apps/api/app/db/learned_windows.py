"""Windows that providers stated, by model alias and tenant."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from app.db.database import Transaction
from app.db.sql import insert_row, sql
from app.db.tables import learned_windows


@dataclass(frozen=True, slots=True)
class StatedWindow:
    """A window in tokens that a provider stated to a tenant, in how many turns, since and until when it counts."""

    model_alias: str
    tenant_id: str
    context_window: int
    statements: int
    first_stated_at: datetime
    expires_at: datetime


_ALL = sql(f"""
    SELECT {", ".join(each.name for each in fields(StatedWindow))} FROM learned_windows
    WHERE expires_at > statement_timestamp()
    ORDER BY expires_at DESC LIMIT CAST(:most AS bigint)
    """)

# Another window is a first statement again. The same turn may state one several times; that is one statement.
_STATEMENT = insert_row(
    learned_windows,
    {
        "model_alias": ":model_alias",
        "tenant_id": ":tenant_id",
        "context_window": "CAST(:context_window AS bigint)",
        "last_turn_id": "CAST(:turn_id AS uuid)",
        "expires_at": "statement_timestamp() + make_interval(secs => CAST(:believed_s AS float))",
    },
)
_IS_NEW = (
    "(learned_windows.context_window <> excluded.context_window OR learned_windows.expires_at <= statement_timestamp())"
)
_NOTE = sql(f"""
    {_STATEMENT}
    ON CONFLICT (model_alias, tenant_id) DO UPDATE SET
        statements = CASE
            WHEN {_IS_NEW} THEN 1
            WHEN learned_windows.last_turn_id = excluded.last_turn_id THEN learned_windows.statements
            ELSE learned_windows.statements + 1 END,
        first_stated_at = CASE
            WHEN {_IS_NEW} THEN statement_timestamp() ELSE learned_windows.first_stated_at END,
        context_window = excluded.context_window, last_turn_id = excluded.last_turn_id,
        expires_at = excluded.expires_at
    """)

_EXPIRE = sql("DELETE FROM learned_windows WHERE expires_at <= statement_timestamp()")

_FORGET = sql("DELETE FROM learned_windows WHERE model_alias = :model_alias RETURNING 1")


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
