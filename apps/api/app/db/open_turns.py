"""How many turns are open, and for how long: what operators watch, over all sessions."""

from __future__ import annotations

from collections.abc import Mapping

from app.db.database import Transaction
from app.db.sql import sql
from app.db.table_parts import OPEN_STATUSES_SQL
from app.domain.types import OpenTurnCount, TurnStatus

# Reads the index of open turns, and of the table those rows only.
_OPEN = sql(f"""
    SELECT status, count(*) AS turns,
        CAST(extract(epoch FROM clock_timestamp() - min(created_at)) AS float) AS oldest_s
    FROM turns WHERE status IN {OPEN_STATUSES_SQL}
    GROUP BY status
    """)


async def count_open_turns(tx: Transaction) -> Mapping[TurnStatus, OpenTurnCount]:
    """What is open now, by status; a status that no turn has is not in it."""
    rows = await tx.fetch(_OPEN)
    return {TurnStatus(row["status"]): OpenTurnCount(row["turns"], max(0.0, row["oldest_s"])) for row in rows}
