"""Audit rows and prompt blocks, as they are read back; `db/turns.py` writes them with the turn they belong to."""

from __future__ import annotations

from app.db.database import Transaction
from app.db.sql import sql
from app.domain.types import JsonObject, SessionId, TenantId, TurnId

_GET = sql("""
    SELECT a.* FROM turn_context_audit a JOIN sessions s ON s.id = a.session_id
    WHERE a.session_id = CAST(:session_id AS uuid) AND a.turn_id = CAST(:turn_id AS uuid)
        AND s.tenant_id = :tenant_id
        AND (CAST(:round AS integer) IS NULL OR a.round = CAST(:round AS integer))
    ORDER BY a.round DESC, a.attempt DESC LIMIT 1
    """)

_BLOCKS = sql("""
    SELECT sha256, content FROM prompt_blocks
    WHERE session_id = CAST(:session_id AS uuid) AND sha256 = ANY(CAST(:sha256s AS text[]))
    """)


async def get_audit(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, round_number: int | None
) -> JsonObject | None:
    """The last audit row of a turn, or of one of its rounds, by column name."""
    row = await tx.fetchrow(_GET, tenant_id=tenant_id, session_id=session_id, turn_id=turn_id, round=round_number)
    return dict(row) if row else None


async def blocks_by_sha256(tx: Transaction, session_id: SessionId, sha256s: tuple[str, ...]) -> dict[str, str]:
    """The texts of prompt blocks, by their address."""
    rows = await tx.fetch(_BLOCKS, session_id=session_id, sha256s=list(sha256s))
    return {row["sha256"]: row["content"] for row in rows}
