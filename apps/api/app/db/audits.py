"""Audit rows and prompt blocks, as they are read back; `db/turns.py` writes them with the turn they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from app.db.database import Record, Transaction, record_of
from app.db.messages import AS_STORED, message_from_row
from app.db.sql import sql
from app.domain.audit import Audit
from app.domain.trim_log import ACTION_FIELDS, TRIM_LOG_FIELDS, TrimAction
from app.domain.types import REGIONS, JsonObject, SessionId, TenantId, Turn, TurnId, TurnStatus

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


_IN_RANGES = sql(f"""
    SELECT t.id AS turn, t.seq AS turn_seq, t.status, {AS_STORED}
    FROM turns t JOIN messages m ON m.session_id = t.session_id AND m.turn_id = t.id AND NOT m.withdrawn
    WHERE t.session_id = CAST(:session_id AS uuid)
        AND (t.seq BETWEEN CAST(:first_turn AS bigint) AND CAST(:last_turn AS bigint) OR t.id IN (
            SELECT r.turn_id FROM messages r WHERE r.session_id = CAST(:session_id AS uuid)
                AND r.seq BETWEEN CAST(:first_message AS bigint) AND CAST(:last_message AS bigint)))
    ORDER BY t.seq, m.seq
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


async def turns_in_ranges(tx: Transaction, session_id: SessionId, actions: Sequence[TrimAction]) -> tuple[Turn, ...]:
    """The turns that the ranges of a trim log name, and those that have messages in one."""
    found = [action.seqs for action in actions if action.seqs]
    bounds: dict[str, int] = {}
    for noun in ("message", "turn"):
        seqs = [seq for of, first, last in found if of == f"{noun}s" for seq in (first, last)]
        bounds |= {f"first_{noun}": min(seqs, default=0), f"last_{noun}": max(seqs, default=0)}
    rows = await tx.fetch(_IN_RANGES, session_id=session_id, **bounds) if found else []
    return tuple(
        Turn(turn_id, seq, TurnStatus(status), unresolved=False, messages=tuple(map(message_from_row, of_turn)))
        for (turn_id, seq, status), of_turn in groupby(rows, key=itemgetter("turn", "turn_seq", "status"))
    )


def _audit(row: Record) -> Audit:
    """The database gives an object's members back in an order of its own; an answer from it is the first answer to the
    byte."""
    trim_log = _ordered(row["context_trim_log"], TRIM_LOG_FIELDS)
    trim_log["actions"] = [_ordered(action, ACTION_FIELDS) for action in trim_log["actions"]]
    return record_of(Audit, row, regions=_ordered(row["regions"], REGIONS), context_trim_log=trim_log)


def _ordered(members: Mapping[str, Any], names: tuple[str, ...]) -> JsonObject:
    """The named members first, in this order, then the others by name."""
    others = sorted(members.keys() - set(names))
    return {name: members[name] for name in (*names, *others) if name in members}
