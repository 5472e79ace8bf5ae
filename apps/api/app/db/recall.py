"""Postings of messages that left the window: which term stands in which message, and how much it says there.

Every read is by (session, term) and takes the newest postings of a term up to a bound, so that what a turn pays does
not grow with the session, whatever its users say over and over. Postings are an index, made from messages that stay as
they are: one of a message that is in the window again (an undone summary) is only not looked at. What is not indexed
yet, in a session that was forked, imported or older than this table, is caught up with when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from app.db.database import Record, Transaction
from app.db.messages import message_from_row
from app.db.sql import sql
from app.domain.evicted import Evicted, Hit
from app.domain.types import SessionId, Turn, TurnId, TurnStatus

# Every table is read by key in a LATERAL with a LIMIT, which no plan can turn into a scan of the session: a join the
# planner is free to order reads all its messages to find a few.
_FIND = sql("""
    WITH p AS MATERIALIZED (
        SELECT q.term, x.message_seq, x.weight
        FROM unnest(CAST(:terms AS text[])) AS q(term)
        CROSS JOIN LATERAL (
            SELECT mt.message_seq, mt.weight FROM message_terms mt
            WHERE mt.session_id = CAST(:session_id AS uuid) AND mt.term = q.term
                AND mt.message_seq <= CAST(:last_seq AS bigint)
            ORDER BY mt.message_seq DESC LIMIT CAST(:most_postings AS integer)
        ) AS x
    ), f AS MATERIALIZED (
        -- A list that is full was cut; its density holds for what came before.
        SELECT term, CASE WHEN count(*) < CAST(:most_postings AS bigint) THEN count(*)
            ELSE count(*) * CAST(:last_seq AS bigint) / (CAST(:last_seq AS bigint) - min(message_seq) + 1)
            END AS seen_in
        FROM p GROUP BY term
    ), r AS MATERIALIZED (
        SELECT term, CASE WHEN seen_in > CAST(:most_seen_share AS float) * CAST(:last_seq AS bigint)
                AND CAST(:last_seq AS bigint) >= CAST(:least_messages AS integer) THEN 0.0
            ELSE ln(CAST(1 + (CAST(:last_seq AS bigint) - seen_in + 0.5) / (seen_in + 0.5) AS float)) END AS rarity
        FROM f
    ), h AS MATERIALIZED (
        SELECT p.message_seq AS seq, sum(r.rarity * p.weight) AS score, sum(r.rarity) AS coverage
        FROM p JOIN r USING (term) WHERE r.rarity > 0 GROUP BY p.message_seq
        ORDER BY score DESC, seq DESC LIMIT CAST(:most_hits AS integer)
    ), near AS MATERIALIZED (
        SELECT DISTINCT h.seq + at.offset_by AS seq
        FROM h
        CROSS JOIN LATERAL (
            SELECT CASE WHEN m.role = 'tool' OR m.tool_calls IS NOT NULL THEN CAST(:group_reach AS integer)
                ELSE CAST(:reach AS integer) END AS far
            FROM messages m WHERE m.session_id = CAST(:session_id AS uuid) AND m.seq = h.seq LIMIT 1
        ) AS hit
        CROSS JOIN LATERAL generate_series(-hit.far, hit.far) AS at(offset_by)
    )
    SELECT m.*, t.turn_seq, t.status, h.score, h.coverage,
        CASE WHEN row_number() OVER (ORDER BY m.seq) = 1 THEN (SELECT jsonb_object_agg(term, seen_in) FROM f) END
            AS seen_in
    FROM near
    CROSS JOIN LATERAL (
        SELECT x.id, x.turn_id, x.seq, x.role, x.content, x.tool_calls, x.tool_call_id, x.reasoning,
            x.reasoning_blocks, x.reasoning_tokens,
            CASE WHEN x.token_encoding = :encoding THEN x.token_estimate ELSE (
                SELECT c.token_estimate FROM message_token_counts c
                WHERE c.session_id = CAST(:session_id AS uuid) AND c.message_id = x.id
                    AND c.token_encoding = :encoding) END AS tokens
        FROM messages x
        WHERE x.session_id = CAST(:session_id AS uuid) AND x.seq = near.seq
            AND x.seq <= CAST(:last_seq AS bigint) AND NOT x.withdrawn
            AND x.token_estimate <= CAST(:most_tokens AS bigint) LIMIT 1
    ) AS m
    CROSS JOIN LATERAL (
        SELECT y.seq AS turn_seq, y.status FROM turns y
        WHERE y.session_id = CAST(:session_id AS uuid) AND y.id = m.turn_id AND y.status <> 'rejected' LIMIT 1
    ) AS t
    LEFT JOIN h ON h.seq = m.seq
    ORDER BY m.seq
    """)

# By compare-and-set on how far the index goes, so that two writers can not both believe that they extend it.
_ADD = sql("""
    WITH s AS (
        UPDATE sessions SET recall_indexed_seq = CAST(:last_seq AS bigint)
        WHERE id = CAST(:session_id AS uuid) AND recall_indexed_seq = CAST(:after_seq AS bigint)
        RETURNING id
    )
    INSERT INTO message_terms (session_id, term, message_seq, weight)
    SELECT s.id, x.term, x.seq, x.weight
    FROM s, unnest(CAST(:terms AS text[]), CAST(:seqs AS bigint[]), CAST(:weights AS real[]))
        AS x(term, seq, weight)
    ON CONFLICT DO NOTHING
    """)


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """What bounds a search: postings read of a term, messages whose neighbourhood is read, and how far that reaches
    around a message, or around one of a tool group. A term that more than `most_seen_share` of at least
    `least_messages` messages have tells nothing apart."""

    most_postings: int
    most_hits: int
    reach: int
    group_reach: int
    most_seen_share: float
    least_messages: int


async def find_evicted(
    tx: Transaction,
    session_id: SessionId,
    terms: tuple[str, ...],
    *,
    last_seq: int,
    encoding: str,
    most_tokens: int,
    bounds: SearchBounds,
) -> Evicted:
    """What matches the terms among messages through `last_seq`, with its neighbours, of at most `most_tokens` each.

    A message without a count in `encoding` has `UNCOUNTED` tokens. A tool group longer than the bounds reach may come
    in part, and is then not recalled.
    """
    rows = await tx.fetch(
        _FIND,
        session_id=session_id,
        terms=list(terms),
        last_seq=last_seq,
        encoding=encoding,
        most_tokens=most_tokens,
        most_postings=bounds.most_postings,
        most_hits=bounds.most_hits,
        reach=bounds.reach,
        group_reach=bounds.group_reach,
        most_seen_share=bounds.most_seen_share,
        least_messages=bounds.least_messages,
    )
    if not rows:
        return Evicted(terms, messages=last_seq)
    hits = tuple(Hit(row["seq"], row["score"], row["coverage"]) for row in rows if row["score"] is not None)
    turns = tuple(_turn(list(group)) for _, group in groupby(rows, key=lambda row: row["turn_id"]))
    return Evicted(terms, turns, hits, last_seq, rows[0]["seen_in"])


async def add_postings(
    tx: Transaction,
    session_id: SessionId,
    postings: Mapping[int, Mapping[str, float]],
    *,
    after_seq: int,
    last_seq: int,
) -> None:
    """Extends the index, which goes as far as `after_seq`, to `last_seq` by the weighed terms of messages by `seq`.

    Nothing is written when it has been extended meanwhile.
    """
    flat: Sequence[tuple[str, int, float]] = [
        (term, seq, weight) for seq, weighed in postings.items() for term, weight in weighed.items()
    ]
    await tx.execute(
        _ADD,
        session_id=session_id,
        after_seq=after_seq,
        last_seq=last_seq,
        terms=[term for term, _, _ in flat],
        seqs=[seq for _, seq, _ in flat],
        weights=[weight for _, _, weight in flat],
    )


def _turn(rows: Sequence[Record]) -> Turn:
    first: Any = rows[0]
    messages = tuple(message_from_row(row) for row in rows)
    return Turn(TurnId(first["turn_id"]), first["turn_seq"], TurnStatus(first["status"]), False, messages)
