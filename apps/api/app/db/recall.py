"""Packed terms of messages as they are read for a session's index, and the messages that are chosen by it.

They stand in the row of their message and never change. A message that was stored before its terms were has none until
a turn packs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from uuid import UUID

from app.db.database import Record, Transaction
from app.db.messages import AS_STORED, message_from_row
from app.db.sql import OPEN_STATUSES_SQL, UNANSWERED, sql
from app.domain.types import SessionId, TenantId, Turn, TurnId, TurnStatus

# The aggregates get their rows in the order of the index (session_id, seq), which costs no sort.
_TERMS = sql("""
    SELECT coalesce(string_agg(int8send(seq), '') FILTER (WHERE terms IS NOT NULL), '') AS seqs,
        coalesce(string_agg(int8send(token_estimate), '') FILTER (WHERE terms IS NOT NULL), '') AS tokens,
        coalesce(string_agg(int8send(day), '') FILTER (WHERE terms IS NOT NULL), '') AS days,
        coalesce(string_agg(terms, ''), '') AS terms, count(*) - count(terms) AS unpacked
    FROM (
        SELECT seq, token_estimate, terms,
            CAST((coalesce(said_at, created_at) AT TIME ZONE 'UTC')::date - DATE '1970-01-01' AS bigint) AS day
        FROM messages
        WHERE session_id = :session_id AND seq > :after_seq AND seq <= :through_seq AND turn_id <> ALL(ARRAY(
                SELECT id FROM turns WHERE session_id = :session_id AND status = 'rejected'))
        ORDER BY seq
    ) AS m
    """)

_SETTLED = sql(f"""
    SELECT coalesce(min(m.seq) - 1, :last_seq)
    FROM turns t JOIN messages m ON m.session_id = t.session_id AND m.turn_id = t.id
    WHERE t.session_id = :session_id AND t.status IN {OPEN_STATUSES_SQL}
    """)

_UNPACKED = sql("""
    SELECT seq, role, content, name, tool_calls IS NOT NULL AS has_calls FROM messages
    WHERE session_id = :session_id AND seq <= :through_seq AND terms IS NULL
    ORDER BY seq LIMIT :limit
    """)

_PACK = sql("""
    UPDATE messages SET terms = x.terms
    FROM unnest(CAST(:seqs AS bigint[]), CAST(:terms AS bytea[])) AS x(seq, terms)
    WHERE messages.session_id = :session_id AND messages.seq = x.seq AND messages.terms IS NULL
    """)

# By a list of keys alone, which no plan turns into a scan of the session. Nearly all turns have completed: those that
# have not are few, in an index of their own, and looked up once; to look up every message's turn costs three times what
# the messages do.
_CHOSEN = sql(f"""
    SELECT {AS_STORED},
        CASE WHEN m.turn_id IN (
            SELECT o.id FROM turns o
            WHERE o.session_id = :session_id AND o.status IN {UNANSWERED}
        ) THEN (
            SELECT t.status FROM turns t WHERE t.session_id = :session_id AND t.id = m.turn_id
                AND t.status IN {UNANSWERED}
        ) ELSE 'completed' END AS status,
        CASE WHEN m.token_encoding = :encoding THEN m.token_estimate ELSE (
            SELECT c.token_estimate FROM message_token_counts c
            WHERE c.session_id = :session_id AND c.message_id = m.id
                AND c.token_encoding = :encoding) END AS counted
    FROM messages m
    WHERE m.session_id = :session_id AND m.seq = ANY(:seqs) AND NOT m.withdrawn
    ORDER BY m.seq
    """)


_TO_LOOK_THROUGH = sql("""
    SELECT id, last_message_seq FROM sessions
    WHERE tenant_id = :tenant_id AND id <= :first ORDER BY id DESC LIMIT :limit
    """)

# As JSON, a text differs from itself in quotes, backslashes and line ends only, which no word has.
_WITH_WORDS = sql("""
    SELECT f.session_id, f.message_id, f.turn_id, t.seq AS turn_seq, f.seq, f.role, f.content, f.name, f.said_at
    FROM (
        SELECT m.session_id, m.id AS message_id, m.turn_id, m.seq, m.role, m.content, m.name,
            coalesce(m.said_at, m.created_at) AS said_at,
            row_number() OVER (PARTITION BY m.session_id ORDER BY m.seq DESC) AS place
        FROM unnest(CAST(:session_ids AS uuid[]), CAST(:after_seqs AS bigint[])) AS s(id, after_seq)
        JOIN messages m ON m.session_id = s.id AND m.seq > s.after_seq AND NOT m.withdrawn
        WHERE (
            SELECT bool_and(strpos(lower(coalesce(m.name || ': ', '') || CAST(m.content AS text)), word) > 0)
            FROM unnest(CAST(:words AS text[])) AS word
        )
    ) f
    JOIN turns t ON t.session_id = f.session_id AND t.id = f.turn_id
    WHERE f.place <= :most_of_each
    ORDER BY f.session_id DESC, f.seq DESC
    """)


@dataclass(frozen=True, slots=True)
class StoredTerms:
    """The packed terms of a range of messages in order, one after the other; their numbers, token counts and the days
    on which they were said, from 1970-01-01 in UTC, 8 bytes each, highest first; how many of the range have none."""

    seqs: bytes
    tokens: bytes
    days: bytes
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
    """The oldest messages without packed terms through a number: `seq`, `role`, `content`, `name` and `has_calls`."""
    return await tx.fetch(_UNPACKED, session_id=session_id, through_seq=through_seq, limit=limit)


async def save_terms(tx: Transaction, session_id: SessionId, seqs: Sequence[int], terms: Sequence[bytes]) -> None:
    """Stores the packed terms of messages that have none."""
    await tx.execute(_PACK, session_id=session_id, seqs=seqs, terms=terms)


async def turns_with(tx: Transaction, session_id: SessionId, seqs: Sequence[int], encoding: str) -> tuple[Turn, ...]:
    """The messages of these numbers, turn by turn, without those of rejected turns and those taken back.

    A message without a count in `encoding` has `UNCOUNTED` tokens. Of a turn it is known only whether it is over
    without an answer: any other counts as completed, and its number is 0; nothing that comes back depends on them.
    """
    rows = await tx.fetch(_CHOSEN, session_id=session_id, seqs=list(seqs), encoding=encoding)
    sendable = [row for row in rows if row["status"] != TurnStatus.REJECTED]
    return tuple(_turn(turn_id, list(group)) for turn_id, group in groupby(sendable, key=itemgetter("turn_id")))


async def sessions_with_messages(
    tx: Transaction, tenant_id: TenantId, *, first: UUID, limit: int
) -> list[tuple[SessionId, int]]:
    """The tenant's sessions from the one of an id on, newest first, each with its last message's number."""
    rows = await tx.fetch(_TO_LOOK_THROUGH, tenant_id=tenant_id, first=first, limit=limit)
    return [(SessionId(row["id"]), row["last_message_seq"]) for row in rows]


async def messages_with_words(
    tx: Transaction, after_seqs: Mapping[SessionId, int], words: Sequence[str], *, most_of_each: int
) -> list[Record]:
    """The newest messages of sessions, after a number in each, that have all of the words, which are lower case. The
    caller has checked whose sessions they are."""
    return await tx.fetch(
        _WITH_WORDS,
        session_ids=list(after_seqs),
        after_seqs=list(after_seqs.values()),
        words=list(words),
        most_of_each=most_of_each,
    )


def _turn(turn_id: UUID, rows: Sequence[Record]) -> Turn:
    messages = tuple(message_from_row(row, (row["counted"], row["reasoning_tokens"])) for row in rows)
    return Turn(TurnId(turn_id), 0, TurnStatus(rows[0]["status"]), unresolved=False, messages=messages)
