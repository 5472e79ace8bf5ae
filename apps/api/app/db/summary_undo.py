"""Taking the active summary back: its predecessor stands again, and what it had folded is raw again."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.database import Transaction
from app.db.sql import sql
from app.db.tables import OPEN_STATUSES_SQL
from app.domain.types import SessionId, SummaryId, TenantId

# An undo restarts the turn count (contract.md, decision 3); the row's lock keeps out turns and other summaries.
_RESTART_COUNT = sql("""
    UPDATE sessions SET summary_count_after_seq = last_turn_seq, updated_at = clock_timestamp()
    WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id
    """)

_FOUND = sql(f"""
    SELECT x.id, x.status,
        EXISTS (SELECT 1 FROM turns t WHERE t.session_id = x.session_id
            AND t.status IN {OPEN_STATUSES_SQL}) AS turn_open
    FROM session_summaries x
    WHERE x.session_id = CAST(:session_id AS uuid)
        AND CASE WHEN CAST(:summary_id AS uuid) IS NULL THEN x.status = 'active'
            ELSE x.id = CAST(:summary_id AS uuid) END
    """)

_UNDO = sql("""
    UPDATE session_summaries SET status = 'undone'
    WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:summary_id AS uuid) AND status = 'active'
    RETURNING previous_summary_id
    """)

_RESTORE = sql("""
    UPDATE session_summaries SET status = 'active'
    WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:summary_id AS uuid) AND status = 'superseded'
    """)


@dataclass(frozen=True, slots=True)
class FoundSummary:
    """A summary as somebody who wants it gone finds it, under the session's lock.

    `turn_open` says whether a turn of the session runs or waits for tools.
    """

    id: SummaryId
    status: str
    turn_open: bool


async def lock_and_restart_count(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> bool:
    """Lets the turn count begin anew, and holds the session's lock until the end; false when there is no session."""
    return await tx.execute(_RESTART_COUNT, session_id=session_id, tenant_id=tenant_id) > 0


async def find_summary(tx: Transaction, session_id: SessionId, summary_id: SummaryId | None) -> FoundSummary | None:
    """The summary, or the active one; None when there is none. The caller has checked whose session it is."""
    row = await tx.fetchrow(_FOUND, session_id=session_id, summary_id=summary_id)
    return None if row is None else FoundSummary(SummaryId(row["id"]), row["status"], row["turn_open"])


async def undo_active(tx: Transaction, session_id: SessionId, summary_id: SummaryId) -> None:
    """Takes the active summary back and makes its predecessor the active one, where it had one."""
    row = await tx.fetchrow(_UNDO, session_id=session_id, summary_id=summary_id)
    if row is not None and row["previous_summary_id"] is not None:
        await tx.execute(_RESTORE, session_id=session_id, summary_id=row["previous_summary_id"])
