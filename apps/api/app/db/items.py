"""A session's messages as items of a conversation: read in pages, and taken back by their owner."""

from __future__ import annotations

from collections.abc import Sequence

from app.db.database import Transaction
from app.db.messages import AS_STORED, message_from_row
from app.db.sql import sql
from app.domain.types import Message, SessionId, TenantId, TurnId


def _page(order: str) -> str:
    return f"""
        SELECT {AS_STORED}
        FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
        JOIN sessions s ON s.id = m.session_id
        WHERE m.session_id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id AND t.status <> 'rejected'
            AND NOT m.withdrawn AND m.seq BETWEEN CAST(:first_seq AS bigint) AND CAST(:last_seq AS bigint)
        ORDER BY m.seq {order} LIMIT CAST(:limit AS integer)
    """


_ASCENDING = sql(_page("ASC"))
_DESCENDING = sql(_page("DESC"))

_OF_TURN = sql(f"""
    SELECT {AS_STORED}
    FROM messages m
    WHERE m.session_id = CAST(:session_id AS uuid) AND m.turn_id = CAST(:turn_id AS uuid) AND NOT m.withdrawn
    ORDER BY m.seq
    """)

_NUMBERED = sql(f"""
    SELECT {AS_STORED}
    FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    JOIN sessions s ON s.id = m.session_id
    WHERE m.session_id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id AND t.status <> 'rejected'
        AND NOT m.withdrawn AND m.seq = ANY(CAST(:seqs AS bigint[]))
    """)

_WITHDRAW = sql("""
    UPDATE messages SET withdrawn = true
    WHERE session_id = CAST(:session_id AS uuid) AND seq = ANY(CAST(:seqs AS bigint[]))
    """)


async def page_of_item_messages(
    tx: Transaction,
    tenant_id: TenantId,
    session_id: SessionId,
    *,
    first_seq: int,
    last_seq: int,
    newest_first: bool,
    limit: int,
) -> list[Message]:
    """Messages by number, both ends included; those of rejected turns and withdrawn ones left out."""
    rows = await tx.fetch(
        _DESCENDING if newest_first else _ASCENDING,
        session_id=session_id,
        tenant_id=tenant_id,
        first_seq=first_seq,
        last_seq=last_seq,
        limit=limit,
    )
    return [message_from_row(row) for row in rows]


async def numbered_messages(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, seqs: Sequence[int]
) -> dict[int, Message]:
    """Messages of a session by their numbers; what is not there, or another tenant's, is left out."""
    rows = await tx.fetch(_NUMBERED, session_id=session_id, tenant_id=tenant_id, seqs=list(seqs))
    return {row["seq"]: message_from_row(row) for row in rows}


async def messages_of_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> list[Message]:
    """A turn's messages in time order. The caller has checked whose session it is."""
    rows = await tx.fetch(_OF_TURN, session_id=session_id, turn_id=turn_id)
    return [message_from_row(row) for row in rows]


async def withdraw_messages(tx: Transaction, session_id: SessionId, seqs: Sequence[int]) -> None:
    """Marks messages as taken back. The caller has checked whose they are."""
    await tx.execute(_WITHDRAW, session_id=session_id, seqs=list(seqs))
