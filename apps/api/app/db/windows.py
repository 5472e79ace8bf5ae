"""Windows that providers stated, by model alias."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from app.db.database import Transaction
from app.db.sql import compile_sql

_ALL = compile_sql(
    sa.text("SELECT model_alias, context_window, expires_at FROM learned_windows WHERE expires_at > clock_timestamp()")
)


@dataclass(frozen=True, slots=True)
class LearnedWindowRow:
    """A window in tokens and when it stops being believed."""

    model_alias: str
    context_window: int
    expires_at: datetime


async def learned_windows(tx: Transaction) -> list[LearnedWindowRow]:
    """All windows that are still believed."""
    rows = await tx.fetch(_ALL)
    return [LearnedWindowRow(row["model_alias"], row["context_window"], row["expires_at"]) for row in rows]


_LEARN = compile_sql(
    sa.text(
        """
        INSERT INTO learned_windows (model_alias, context_window, learned_at, expires_at)
        VALUES (:model_alias, CAST(:context_window AS bigint), clock_timestamp(),
            clock_timestamp() + make_interval(secs => CAST(:believed_s AS float)))
        ON CONFLICT (model_alias) DO UPDATE SET context_window = excluded.context_window,
            learned_at = excluded.learned_at, expires_at = excluded.expires_at
        """
    )
)


async def learn_window(tx: Transaction, model_alias: str, context_window: int, believed_s: float) -> None:
    """Keeps what a provider stated, in place of what it stated before; believed for so many seconds."""
    await tx.execute(_LEARN, model_alias=model_alias, context_window=context_window, believed_s=believed_s)
