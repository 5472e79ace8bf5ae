"""CalibrationSums of estimated and of reported prompt tokens, by tenant, alias and encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from app.db.database import Transaction
from app.db.sql import insert_row, sql
from app.db.tables import calibrations

Key: TypeAlias = tuple[str, str, str]
"""Tenant, alias, encoding."""
CalibrationSums: TypeAlias = tuple[float, float, float, int]
"""Estimated and actual tokens, squared errors, observed tokens."""

_COLUMNS = "tenant_id, model_alias, token_encoding, estimated_tokens, actual_tokens, squared_errors, observed_tokens"

_RECENT = sql(f"SELECT {_COLUMNS} FROM calibrations ORDER BY updated_at DESC LIMIT CAST(:most AS bigint)")

# In the order of their keys, so that two processes that merge the same rows wait for each other and never deadlock.
_NEW = insert_row(
    calibrations,
    {"tenant_id": "x.tenant", "model_alias": "x.alias", "token_encoding": "x.encoding"},
    """unnest(CAST(:tenants AS text[]), CAST(:aliases AS text[]), CAST(:encodings AS text[]))
        AS x(tenant, alias, encoding) ORDER BY 1, 2, 3""",
)
_LOCKED = sql(f"""
    {_NEW}
    ON CONFLICT (tenant_id, model_alias, token_encoding) DO UPDATE SET updated_at = statement_timestamp()
    RETURNING {_COLUMNS}
    """)

_STORE = sql("""
    UPDATE calibrations c SET estimated_tokens = x.estimated, actual_tokens = x.actual,
        squared_errors = x.squared_errors, observed_tokens = x.observed
    FROM unnest(CAST(:tenants AS text[]), CAST(:aliases AS text[]), CAST(:encodings AS text[]),
        CAST(:estimated AS float[]), CAST(:actual AS float[]), CAST(:squared_errors AS float[]),
        CAST(:observed AS bigint[])) AS x(tenant_id, model_alias, token_encoding, estimated, actual,
        squared_errors, observed)
    WHERE (c.tenant_id, c.model_alias, c.token_encoding) = (x.tenant_id, x.model_alias, x.token_encoding)
    """)

_FORGET = sql("""
    DELETE FROM calibrations
    WHERE updated_at < statement_timestamp() - make_interval(secs => CAST(:unused_s AS float))
    """)


async def recent_calibrations(tx: Transaction, most: int) -> dict[Key, CalibrationSums]:
    """Those that changed last, `most` at most, the newest first."""
    return _by_key(await tx.fetch(_RECENT, most=most))


async def lock_calibrations(tx: Transaction, keys: Sequence[Key]) -> dict[Key, CalibrationSums]:
    """Those of the keys as they stand, held against others until the transaction ends; new ones are all zero."""
    return _by_key(await tx.fetch(_LOCKED, **_key_columns(keys)))


async def store_calibrations(tx: Transaction, sums_of: Mapping[Key, CalibrationSums]) -> None:
    """Replaces the sums of locked rows."""
    sums = zip(*sums_of.values(), strict=True)
    names = ("estimated", "actual", "squared_errors", "observed")
    columns = {name: list(values) for name, values in zip(names, sums, strict=True)}
    await tx.execute(_STORE, **_key_columns(list(sums_of)), **columns)


async def forget_unused_calibrations(tx: Transaction, unused_s: float) -> None:
    """Deletes those that nothing was merged into for so many seconds."""
    await tx.execute(_FORGET, unused_s=unused_s)


def _key_columns(keys: Sequence[Key]) -> dict[str, list[str]]:
    tenants, aliases, encodings = zip(*keys, strict=True)
    return {"tenants": list(tenants), "aliases": list(aliases), "encodings": list(encodings)}


def _by_key(rows: Sequence[Any]) -> dict[Key, CalibrationSums]:
    return {(row[0], row[1], row[2]): (row[3], row[4], row[5], row[6]) for row in rows}
