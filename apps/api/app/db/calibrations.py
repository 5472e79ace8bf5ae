"""Ratios of reported to estimated prompt tokens, by alias and encoding."""

from __future__ import annotations

import sqlalchemy as sa

from app.db.database import Transaction
from app.db.sql import compile_sql

_ALL = compile_sql(sa.text("SELECT model_alias, token_encoding, ratios FROM calibrations"))

_LOCKED = compile_sql(
    sa.text(
        """
        INSERT INTO calibrations (model_alias, token_encoding, ratios) VALUES (:model_alias, :token_encoding, '[]')
        ON CONFLICT (model_alias, token_encoding) DO UPDATE SET updated_at = clock_timestamp()
        RETURNING ratios
        """
    )
)

_STORE = compile_sql(
    sa.text(
        """
        UPDATE calibrations SET ratios = CAST(:ratios AS jsonb)
        WHERE model_alias = :model_alias AND token_encoding = :token_encoding
        """
    )
)


async def all_calibrations(tx: Transaction) -> dict[tuple[str, str], tuple[float, ...]]:
    """The ratios of every (alias, encoding), oldest first."""
    rows = await tx.fetch(_ALL)
    return {(row["model_alias"], row["token_encoding"]): tuple(row["ratios"]) for row in rows}


async def lock_calibration(tx: Transaction, model_alias: str, token_encoding: str) -> tuple[float, ...]:
    """The ratios as they stand, held against others until the transaction ends."""
    return tuple(await tx.fetchval(_LOCKED, model_alias=model_alias, token_encoding=token_encoding))


async def store_calibration(tx: Transaction, model_alias: str, token_encoding: str, ratios: tuple[float, ...]) -> None:
    """Replaces the ratios of a locked row."""
    await tx.execute(_STORE, model_alias=model_alias, token_encoding=token_encoding, ratios=ratios)
