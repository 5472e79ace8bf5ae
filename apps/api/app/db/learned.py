"""What was learned from calls: sums of estimated and of reported prompt tokens by tenant, alias and encoding, and
windows that providers stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from app.db.database import Transaction
from app.db.sql import binds, insert_row, json_rows, sql
from app.db.tables import calibrations, learned_windows
from app.domain.frozen import frozen, names_of

Key: TypeAlias = tuple[str, str, str]
"""Tenant, alias, encoding."""
CalibrationSums: TypeAlias = tuple[float, float, float, int]
"""Estimated and actual tokens, squared errors, observed tokens."""

_KEY = ("tenant_id", "model_alias", "token_encoding")
_COLUMNS = tuple(str(column.name) for column in calibrations.columns if column.name != "updated_at")
_LISTED = ", ".join(_COLUMNS)
_ROWS = json_rows(calibrations, "rows")
_RECENT = sql(f"SELECT {_LISTED} FROM calibrations ORDER BY updated_at DESC LIMIT :most")

# In the order of their keys, so that two processes that merge the same rows wait for each other and never deadlock.
_NEW = insert_row(calibrations, {name: f"x.{name}" for name in _KEY}, f"{_ROWS} ORDER BY 1, 2, 3")
_LOCKED = sql(f"""
    {_NEW} ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET updated_at = statement_timestamp() RETURNING {_LISTED}
    """)
_STORE = sql(f"""
    UPDATE calibrations c SET {", ".join(f"{name} = x.{name}" for name in _COLUMNS if name not in _KEY)}
    FROM {_ROWS} WHERE {" AND ".join(f"c.{name} = x.{name}" for name in _KEY)}
    """)
_FORGET = sql("DELETE FROM calibrations WHERE updated_at < statement_timestamp() - make_interval(secs => :unused_s)")


async def recent_calibrations(tx: Transaction, most: int) -> dict[Key, CalibrationSums]:
    """The calibrations that changed last, `most` at most, the newest first."""
    return _by_key(await tx.fetch(_RECENT, most=most))


async def lock_calibrations(tx: Transaction, keys: Sequence[Key]) -> dict[Key, CalibrationSums]:
    """The current sums of the keys, locked until the transaction ends; those of new keys are zero."""
    return _by_key(await tx.fetch(_LOCKED, rows=[dict(zip(_KEY, key, strict=True)) for key in keys]))


async def store_calibrations(tx: Transaction, sums_of: Mapping[Key, CalibrationSums]) -> None:
    rows = [dict(zip(_COLUMNS, (*key, *sums), strict=True)) for key, sums in sums_of.items()]
    await tx.execute(_STORE, rows=rows)


async def forget_unused_calibrations(tx: Transaction, unused_s: float) -> None:
    """Deletes the calibrations into which nothing was merged for this many seconds."""
    await tx.execute(_FORGET, unused_s=unused_s)


def _by_key(rows: Sequence[Any]) -> dict[Key, CalibrationSums]:
    return {(row[0], row[1], row[2]): (row[3], row[4], row[5], row[6]) for row in rows}


@frozen
class StatedWindow:
    """A window in tokens that a provider stated to a tenant: in how many turns, since when, and until when it holds."""

    model_alias: str
    tenant_id: str
    context_window: int
    statements: int
    first_stated_at: datetime
    expires_at: datetime


_WINDOWS = sql(f"""
    SELECT {", ".join(names_of(StatedWindow))} FROM learned_windows
    WHERE expires_at > statement_timestamp()
    ORDER BY expires_at DESC LIMIT :most
    """)

# A different window restarts the count of statements. Several statements in the same turn count as one.
_STATEMENT = insert_row(
    learned_windows,
    {
        **binds("model_alias", "tenant_id", "context_window"),
        "last_turn_id": ":turn_id",
        "expires_at": "statement_timestamp() + make_interval(secs => :believed_s)",
    },
)
_IS_NEW = (
    "(learned_windows.context_window <> excluded.context_window OR learned_windows.expires_at <= statement_timestamp())"
)
_NOTE_WINDOW = sql(f"""
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

_EXPIRE_WINDOWS = sql("DELETE FROM learned_windows WHERE expires_at <= statement_timestamp()")

_FORGET_WINDOWS = sql("DELETE FROM learned_windows WHERE model_alias = :model_alias")


async def stated_windows(tx: Transaction, most: int) -> list[StatedWindow]:
    """The stated windows that have not expired, the last stated first, `most` at most."""
    return await tx.fetch_records(StatedWindow, _WINDOWS, most=most)


async def note_window(
    tx: Transaction, model_alias: str, tenant_id: str, turn_id: UUID, context_window: int, believed_s: float
) -> None:
    """Stores a window that a provider stated in a turn, for `believed_s` seconds, and deletes expired ones."""
    await tx.execute(_EXPIRE_WINDOWS)
    await tx.execute(
        _NOTE_WINDOW,
        model_alias=model_alias,
        tenant_id=tenant_id,
        turn_id=turn_id,
        context_window=context_window,
        believed_s=believed_s,
    )


async def forget_windows(tx: Transaction, model_alias: str) -> int:
    """Deletes all stated windows of an alias; returns to how many tenants one was stated."""
    return await tx.execute(_FORGET_WINDOWS, model_alias=model_alias)
