"""Packed terms of messages as they are read for a session's index, and the messages that are chosen by it.

They stand in the row of their message and never change. A message that was stored before its terms were has none until
a turn packs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from app.db.database import Record, Transaction
from app.db.messages import message_from_row
from app.db.sql import sql
from app.db.table_parts import OPEN_STATUSES_SQL
from app.domain.types import SessionId, Turn, TurnId, TurnStatus

# The aggregates get their rows in the order of the index (session_id, seq), which costs no sort.
_TERMS = sql("""
    SELECT coalesce(string_agg(int8send(seq), '') FILTER (WHERE terms IS NOT NULL), '') AS seqs,
        coalesce(string_agg(int8send(token_estimate), '') FILTER (WHERE terms IS NOT NULL), '') AS tokens,
        coalesce(string_agg(terms, ''), '') AS terms, count(*) - count(terms) AS unpacked
    FROM (
        SELECT seq, token_estimate, terms FROM messages
        WHERE session_id = CAST(:session_id AS uuid) AND seq > CAST(:after_seq AS bigint)
            AND seq <= CAST(:through_seq AS bigint)
        ORDER BY seq
    ) AS m
    """)

_SETTLED = sql(f"""
    SELECT coalesce(min(m.seq) - 1, CAST(:last_seq AS bigint))
    FROM turns t JOIN messages m ON m.session_id = t.session_id AND m.turn_id = t.id
    WHERE t.session_id = CAST(:session_id AS uuid) AND t.status IN {OPEN_STATUSES_SQL}
    """)

_UNPACKED = sql("""
    SELECT seq, role, content, tool_calls IS NOT NULL AS has_calls FROM messages
    WHERE session_id = CAST(:session_id AS uuid) AND seq <= CAST(:through_seq AS bigint) AND terms IS NULL
    ORDER BY seq LIMIT CAST(:limit AS integer)
    """)

_PACK = sql("""
    UPDATE messages SET terms = x.terms
    FROM unnest(CAST(:seqs AS bigint[]), CAST(:terms AS bytea[])) AS x(seq, terms)
    WHERE messages.session_id = CAST(:session_id AS uuid) AND messages.seq = x.seq AND messages.terms IS NULL
    """)

# Every table is read by key in a LATERAL with a LIMIT, which no plan can turn into a scan of the session: a join the
# planner is free to order reads all its messages to find a few.
_CHOSEN = sql("""
    SELECT m.id, m.turn_id, m.seq, m.role, m.content, m.tool_calls, m.tool_call_id, m.reasoning,
        m.reasoning_blocks, m.reasoning_tokens, t.seq AS turn_seq, t.status,
        CASE WHEN m.token_encoding = :encoding THEN m.token_estimate ELSE (
            SELECT c.token_estimate FROM message_token_counts c
            WHERE c.session_id = CAST(:session_id AS uuid) AND c.message_id = m.id
                AND c.token_encoding = :encoding) END AS tokens
    FROM unnest(CAST(:seqs AS bigint[])) AS wanted(seq)
    CROSS JOIN LATERAL (
        SELECT * FROM messages x WHERE x.session_id = CAST(:session_id AS uuid) AND x.seq = wanted.seq
            AND NOT x.withdrawn LIMIT 1
    ) AS m
    CROSS JOIN LATERAL (
        SELECT y.seq, y.status FROM turns y
        WHERE y.session_id = CAST(:session_id AS uuid) AND y.id = m.turn_id AND y.status <> 'rejected' LIMIT 1
    ) AS t
    ORDER BY m.seq
    """)


@dataclass(frozen=True, slots=True)
class StoredTerms:
    """The packed terms of a range of messages in order, one after the other; their numbers and token counts, 8 bytes
    each, highest first; and how many of the range have none."""

    seqs: bytes
    tokens: bytes
    terms: bytes
    unpacked: int


async def stored_terms(tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int) -> StoredTerms:
    """What a session's messages after a number, through another, are found by."""
    row = await tx.fetchrow(_TERMS, session_id=session_id, after_seq=after_seq, through_seq=through_seq)
    return StoredTerms(**(row or {}))


async def settled_seq(tx: Transaction, session_id: SessionId, last_seq: int) -> int:
    """The number through which no message can come any more: `last_seq`, the last given out, or that before the open
    turn's first message."""
    return await tx.fetchval(_SETTLED, session_id=session_id, last_seq=last_seq)


async def unpacked_messages(tx: Transaction, session_id: SessionId, through_seq: int, limit: int) -> list[Record]:
    """The oldest messages without packed terms through a number: `seq`, `role`, `content` and `has_calls`."""
    return await tx.fetch(_UNPACKED, session_id=session_id, through_seq=through_seq, limit=limit)


async def save_terms(tx: Transaction, session_id: SessionId, seqs: Sequence[int], terms: Sequence[bytes]) -> None:
    """Stores the packed terms of messages that have none."""
    await tx.execute(_PACK, session_id=session_id, seqs=seqs, terms=terms)


async def turns_with(tx: Transaction, session_id: SessionId, seqs: Sequence[int], encoding: str) -> tuple[Turn, ...]:
    """The messages of these numbers, turn by turn, without those of rejected turns and those taken back.

    A message without a count in `encoding` has `UNCOUNTED` tokens.
    """
    rows = await tx.fetch(_CHOSEN, session_id=session_id, seqs=list(seqs), encoding=encoding)
    return tuple(_turn(list(group)) for _, group in groupby(rows, key=lambda row: row["turn_id"]))


def _turn(rows: Sequence[Record]) -> Turn:
    first = rows[0]
    messages = tuple(message_from_row(row) for row in rows)
    return Turn(TurnId(first["turn_id"]), first["turn_seq"], TurnStatus(first["status"]), False, messages)
