"""A session's past as a whole: what its newest messages are, and turns that were had elsewhere and are added."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.db import tables
from app.db.database import Transaction, record_of
from app.db.messages import AS_STORED, SLICE_MESSAGES, UNGIVEN, message_from_row
from app.db.sessions import ON_ITS_NODE
from app.db.sql import CLOCK, insert_from, json_rows, sql
from app.domain.stored import NewHistory
from app.domain.types import Message, SessionId, TenantId, TurnId, TurnStatus

# A statement of its own: one that waits for the lock sees what else it reads as it was before it waited.
_LOCK = sql("SELECT 1 FROM sessions WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id FOR NO KEY UPDATE")

_NEWEST = sql("""
    SELECT s.last_message_seq, s.last_turn_seq, t.id AS turn_id, t.status, t.request_sha256
    FROM sessions s LEFT JOIN LATERAL (
        SELECT id, status, request_sha256 FROM turns
        WHERE session_id = s.id AND status <> 'rejected' ORDER BY seq DESC LIMIT 1
    ) t ON true
    WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id
    """)

_TAIL = sql(f"""
    SELECT {AS_STORED}
    FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    WHERE m.session_id = CAST(:session_id AS uuid) AND t.status <> 'rejected' AND NOT m.withdrawn
    ORDER BY m.seq DESC LIMIT CAST(:limit AS integer)
    """)

# `seq` of the rows counts from 1 within what is added; the session's counters are raised under its lock.
_TURNS = insert_from(
    tables.turns,
    f"s, {CLOCK}, {json_rows(tables.turns, 'turns')}, {ON_ITS_NODE}",
    {
        "session_id": "sessions.id",
        "seq": "s.turns_before + x.seq",
        "completed_at": "CASE WHEN x.status <> 'awaiting_tools' THEN clock.at END",
        "created_at": "clock.at",
    },
    without=("fence",),
)
_MESSAGES = insert_from(
    tables.messages,
    f"s, {CLOCK}, {json_rows(tables.messages, 'messages')}, {ON_ITS_NODE}",
    {"session_id": "sessions.id", "seq": "s.messages_before + x.seq", "created_at": "clock.at"},
    without=UNGIVEN,
)
_APPEND = sql(f"""
    WITH s AS (
        UPDATE sessions
        SET last_turn_seq = last_turn_seq + CAST(:turn_count AS bigint),
            last_message_seq = last_message_seq + CAST(:message_count AS bigint), updated_at = statement_timestamp()
        WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id
        RETURNING id, last_turn_seq - CAST(:turn_count AS bigint) AS turns_before,
            last_message_seq - CAST(:message_count AS bigint) AS messages_before
    ), t AS (
        {_TURNS}
    ), m AS (
        {_MESSAGES}
    )
    SELECT id FROM s
    """)


@dataclass(frozen=True, slots=True)
class Newest:
    """Where a session stands: the last numbers given out, and its newest turn that was not rejected, if any."""

    last_message_seq: int
    last_turn_seq: int
    turn_id: TurnId | None
    status: TurnStatus | None
    request_sha256: str | None


async def newest_of(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, *, lock: bool = False
) -> Newest | None:
    """Where the tenant's session stands, or None. `lock` holds the session's row until the transaction ends."""
    if lock:
        await tx.execute(_LOCK, session_id=session_id, tenant_id=tenant_id)
    row = await tx.fetchrow(_NEWEST, session_id=session_id, tenant_id=tenant_id)
    if row is None:
        return None
    return record_of(Newest, row, status=TurnStatus(row["status"]) if row["status"] else None)


async def newest_messages(tx: Transaction, session_id: SessionId, limit: int) -> list[Message]:
    """The newest messages in time order, those of rejected turns left out. Many keep nobody else waiting."""
    rows = await tx.fetch(_TAIL, session_id=session_id, limit=limit)
    rows.reverse()
    messages: list[Message] = []
    for at in range(0, len(rows), SLICE_MESSAGES):
        messages += map(message_from_row, rows[at : at + SLICE_MESSAGES])
        await asyncio.sleep(0)
    return messages


async def append_history(tx: Transaction, tenant_id: TenantId, session_id: SessionId, new: NewHistory) -> bool:
    """Adds turns at the session's end under its lock; false when there is no such session.

    Raises `UniqueViolated` when one of them is open and the session has an open turn.
    """
    row = await tx.fetchrow(
        _APPEND,
        session_id=session_id,
        tenant_id=tenant_id,
        turn_count=new.turn_count,
        message_count=new.message_count,
        turns=new.turns,
        messages=new.messages,
    )
    return row is not None
