"""Audit rows and prompt blocks, as they are read back; `db/turns.py` writes them with the turn they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.db.database import Record, Transaction, record_of
from app.db.sql import sql
from app.domain.audit import Audit
from app.domain.types import REGIONS, JsonObject, SessionId, TenantId, TurnId

_TRIM_LOG_MEMBERS = ("max_context_tokens", "estimated_tokens_before", "estimated_tokens_after", "actions")
_ACTION_MEMBERS = ("kind", "target", "reason", "tokens_removed_est")

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
) -> Audit | None:
    """The last audit of a turn, or of one of its rounds."""
    row = await tx.fetchrow(_GET, tenant_id=tenant_id, session_id=session_id, turn_id=turn_id, round=round_number)
    return _audit(row) if row else None


async def blocks_by_sha256(tx: Transaction, session_id: SessionId, sha256s: tuple[str, ...]) -> dict[str, str]:
    """The texts of prompt blocks, by their address."""
    rows = await tx.fetch(_BLOCKS, session_id=session_id, sha256s=list(sha256s))
    return {row["sha256"]: row["content"] for row in rows}


def _audit(row: Record) -> Audit:
    """The database gives an object's members back in an order of its own; an answer from it is the first answer to the
    byte."""
    trim_log = _ordered(row["context_trim_log"], _TRIM_LOG_MEMBERS)
    trim_log["actions"] = [_ordered(action, _ACTION_MEMBERS) for action in trim_log["actions"]]
    return record_of(Audit, row, regions=_ordered(row["regions"], REGIONS), context_trim_log=trim_log)


def _ordered(members: Mapping[str, Any], names: tuple[str, ...]) -> JsonObject:
    """The named members first, in this order, then the others by name."""
    others = sorted(members.keys() - set(names))
    return {name: members[name] for name in (*names, *others) if name in members}
