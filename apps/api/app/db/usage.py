"""What model calls used and cost, by session: one row a call, summaries marked as such."""

from __future__ import annotations

from collections.abc import Sequence

from app.db.database import Transaction
from app.db.sql import insert_from, json_rows, sql
from app.db.tables import usage_records
from app.domain.types import JsonObject, SessionId, SessionUsage, TurnId

_INSERT = sql(
    insert_from(
        usage_records,
        json_rows(usage_records, "usages"),
        {"session_id": "CAST(:session_id AS uuid)", "turn_id": "CAST(:turn_id AS uuid)"},
        without=("created_at",),
    )
)

_TOTALS = sql("""
    SELECT model_alias, purpose, count(*) AS calls, CAST(sum(prompt_tokens) AS bigint) AS prompt_tokens,
        CAST(sum(cached_prompt_tokens) AS bigint) AS cached_prompt_tokens,
        CAST(sum(cache_write_prompt_tokens) AS bigint) AS cache_write_prompt_tokens,
        CAST(sum(completion_tokens) AS bigint) AS completion_tokens,
        CAST(sum(cost_usd) AS float) AS cost_usd
    FROM usage_records WHERE session_id = CAST(:session_id AS uuid)
    GROUP BY model_alias, purpose ORDER BY model_alias, purpose
    """)


async def add_usages(
    tx: Transaction, session_id: SessionId, turn_id: TurnId | None, usages: Sequence[JsonObject]
) -> None:
    """Stores calls that belong to a turn, or to nobody's; a turn's own calls are stored as it is settled."""
    await tx.execute(_INSERT, session_id=session_id, turn_id=turn_id, usages=usages)


async def usage_totals(tx: Transaction, session_id: SessionId) -> list[SessionUsage]:
    """Sums by alias and purpose. The caller has checked whose session it is."""
    return [SessionUsage(**row) for row in await tx.fetch(_TOTALS, session_id=session_id)]
