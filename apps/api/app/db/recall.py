"""The packed terms of messages, from which a session's index is made, the messages that are chosen with it, and the
packed vectors of messages.

Terms never change. A message that was stored before there were terms has none until a turn packs it. Vectors are made
in the order of messages, and replace another model's: a model that is used again may lack some below its newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from uuid import UUID

import numpy as np

from app.db.database import Fetched, Transaction
from app.db.driver import Record
from app.db.messages import AS_STORED, NOT_REJECTED, SAID_AT, message_from_row
from app.db.sessions import NEWEST_OF_TENANT, OF_TENANT
from app.db.sql import OPEN_STATUSES_SQL, UNANSWERED, by_seq, in_any_case_as_json, insert_from, paged, sql
from app.db.tables import message_vectors
from app.domain.types import STATUS_OF, JsonObject, SessionId, TenantId, Turn, TurnId, TurnStatus

# The aggregates get their rows in the order of the index (session_id, seq), so that no sort is needed.
_TERMS = sql(f"""
    SELECT coalesce(string_agg(int8send(seq), '') FILTER (WHERE terms IS NOT NULL), '') AS seqs,
        coalesce(string_agg(int8send(token_estimate), '') FILTER (WHERE terms IS NOT NULL), '') AS tokens,
        coalesce(string_agg(int8send(day), '') FILTER (WHERE terms IS NOT NULL), '') AS days,
        coalesce(string_agg(terms, ''), '') AS terms, count(*) - count(terms) AS unpacked,
        CASE WHEN count(*) < :limit THEN :after_seq ELSE min(seq) - 1 END AS after_seq
    FROM (
        SELECT * FROM (
            SELECT seq, token_estimate, terms,
                CAST((coalesce(said_at, created_at) AT TIME ZONE 'UTC')::date - DATE '1970-01-01' AS bigint) AS day
            FROM messages
            WHERE session_id = :session_id AND seq > :after_seq AND seq <= :through_seq AND {NOT_REJECTED}
            ORDER BY seq DESC LIMIT :limit
        ) AS newest ORDER BY seq
    ) AS m
    """)

_TERMS_OF_ONE = sql("SELECT terms FROM messages WHERE session_id = :session_id AND seq = :seq")

_SETTLED = sql(f"""
    SELECT coalesce(min(m.seq) - 1, :last_seq) AS settled_seq,
        coalesce((SELECT s.past_version FROM sessions s WHERE s.id = :session_id), 0) AS past_version
    FROM turns t JOIN messages m ON m.session_id = t.session_id AND m.turn_id = t.id
    WHERE t.session_id = :session_id AND t.status IN {OPEN_STATUSES_SQL}
    """)

_UNPACKED = sql("""
    SELECT seq, role, content, name, tool_calls IS NOT NULL AS has_calls FROM messages
    WHERE session_id = :session_id AND seq > :after_seq AND seq <= :through_seq AND terms IS NULL
    ORDER BY seq LIMIT :limit
    """)

_PACK = sql("""
    UPDATE messages SET terms = x.terms
    FROM unnest(CAST(:seqs AS bigint[]), CAST(:terms AS bytea[])) AS x(seq, terms)
    WHERE messages.session_id = :session_id AND messages.seq = x.seq AND messages.terms IS NULL
    """)

# Messages are read only by a list of keys, so that no plan scans the session. Nearly all turns are completed. The
# others are few, have an index of their own, and are looked up once: looking up the turn of every message would take
# three times as long as reading the messages.
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
    FROM {by_seq("messages", "m")}
    WHERE NOT m.withdrawn
    ORDER BY m.seq
    """)

_TO_LOOK_THROUGH = sql(f"""
    SELECT id, last_message_seq FROM sessions
    WHERE {OF_TENANT} AND id <= :first ORDER BY {NEWEST_OF_TENANT} LIMIT :limit
    """)

_FOUND_COLUMNS = f"""m.session_id, m.id AS message_id, m.turn_id, m.seq, m.role, m.content, m.name,
            {SAID_AT} AS said_at"""
# The turn is looked up by `:session_id`: with the column of `m` Citus refuses the statement.
_FOUND = paged(
    f"""
    SELECT {_FOUND_COLUMNS},
        (SELECT t.seq FROM turns t WHERE t.session_id = :session_id AND t.id = m.turn_id) AS turn_seq
    FROM {by_seq("messages", "m")}
    WHERE NOT m.withdrawn AND {NOT_REJECTED}
    ORDER BY array_position(:seqs, m.seq) LIMIT :limit
    """,
    ("content",),
)

# What an excerpt shows, as JSON: not the data of an image, in which any short word occurs. A subquery over the parts
# would be the text itself, but no node of a Citus cluster would run it beside its messages.
_SHOWN = """CASE WHEN jsonb_typeof(m.content) = 'array'
                THEN jsonb_path_query_array(m.content, '$[*] ? (@.type == "text").text')
                    || jsonb_path_query_array(m.content, '$[*].type ? (@ != "text")')
                ELSE m.content END"""
# `ALL` looks for no further word after one that a message lacks. Conditions are checked in the order of their costs, so
# only the turns of messages with the words are looked up.
_WITH_WORDS = paged(
    f"""
    SELECT f.session_id, f.message_id, f.turn_id, t.seq AS turn_seq, f.seq, f.role, f.content, f.name, f.said_at
    FROM (
        SELECT {_FOUND_COLUMNS},
            row_number() OVER (PARTITION BY m.session_id ORDER BY m.seq DESC) AS place
        FROM unnest(CAST(:session_ids AS uuid[]), CAST(:after_seqs AS bigint[])) AS s(id, after_seq)
        JOIN messages m ON m.session_id = s.id AND m.seq > s.after_seq AND NOT m.withdrawn
        WHERE coalesce(CAST(to_jsonb(m.name || ': ') AS text), '') || CAST({_SHOWN} AS text)
            ~ ALL (CAST(:patterns AS text[]))
            AND (SELECT t.status FROM turns t WHERE t.session_id = m.session_id AND t.id = m.turn_id) <> 'rejected'
    ) f
    JOIN turns t ON t.session_id = f.session_id AND t.id = f.turn_id
    WHERE f.place <= :most_of_each AND (f.session_id, f.seq) < (CAST(:before_id AS uuid), CAST(:before_seq AS bigint))
    ORDER BY f.session_id DESC, f.seq DESC LIMIT :limit
    """,
    ("content",),
)


async def stored_terms(tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, limit: int) -> Record:
    """The packed `terms` of a session's last `limit` messages through `through_seq`, concatenated in order, and the
    number `after_seq` after which they are. `seqs`, `tokens` and `days` (on which they were said, since 1970-01-01 in
    UTC) have 8 bytes each, big-endian. `unpacked` counts the messages without terms."""
    return await tx.fetch_one(_TERMS, session_id=session_id, after_seq=after_seq, through_seq=through_seq, limit=limit)


async def terms_at(tx: Transaction, session_id: SessionId, seq: int) -> bytes | None:
    """The packed terms of the message with this number; None if it has none, or there is none."""
    return await tx.fetchval(_TERMS_OF_ONE, session_id=session_id, seq=seq)


async def settled_seq(tx: Transaction, session_id: SessionId, last_seq: int) -> tuple[int, int]:
    """The number through which no message can be added any more: the one before the open turn's first message, or
    without an open turn `last_seq`, the last assigned number. And the version of the past, which changes if messages
    through that number are no longer to be found."""
    row = await tx.fetch_one(_SETTLED, session_id=session_id, last_seq=last_seq)
    return row["settled_seq"], row["past_version"]


async def unpacked_messages(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, limit: int
) -> list[Record]:
    """The oldest messages of a range without packed terms: `seq`, `role`, `content`, `name` and `has_calls`."""
    return await tx.fetch(_UNPACKED, session_id=session_id, after_seq=after_seq, through_seq=through_seq, limit=limit)


async def save_terms(tx: Transaction, session_id: SessionId, seqs: Sequence[int], terms: Sequence[bytes]) -> None:
    """Stores the packed terms of messages that have none."""
    await tx.execute(_PACK, session_id=session_id, seqs=seqs, terms=terms)


async def turns_with(tx: Transaction, session_id: SessionId, seqs: Sequence[int], encoding: str) -> tuple[Turn, ...]:
    """The messages with these numbers, turn by turn, without withdrawn ones and those of rejected turns. A message
    without a count in `encoding` has `UNCOUNTED` tokens. As recall does not depend on them, the status of a turn is its
    own only if it ended without an answer, else `completed`, and its number is 0."""
    rows = await tx.fetch(_CHOSEN, session_id=session_id, seqs=list(seqs), encoding=encoding)
    rejected = TurnStatus.REJECTED.value
    sendable = [row for row in rows if row["status"] != rejected]
    return tuple([_turn(turn_id, list(group)) for turn_id, group in groupby(sendable, key=itemgetter("turn_id"))])


async def sessions_with_messages(
    tx: Transaction, tenant_id: TenantId, *, first: UUID, limit: int
) -> list[tuple[SessionId, int]]:
    """The tenant's sessions with ids up to `first`, newest first, each with the number of its last message."""
    rows = await tx.fetch(_TO_LOOK_THROUGH, tenant_id=tenant_id, first=first, limit=limit)
    return [(SessionId(row["id"]), row["last_message_seq"]) for row in rows]


async def found_messages(
    tx: Transaction, session_id: SessionId, seqs: Sequence[int], limit: int
) -> Fetched[JsonObject]:
    """The messages with these numbers, in this order, without withdrawn ones and those of rejected turns."""
    return await tx.fetch_page(JsonObject, _FOUND, limit, session_id=session_id, seqs=list(seqs))


async def messages_with_words(
    tx: Transaction,
    after_seqs: Mapping[SessionId, int],
    words: Sequence[str],
    before: tuple[UUID, int],
    limit: int,
    *,
    most_of_each: int,
) -> Fetched[JsonObject]:
    """The newest messages of each session, after its given number, that contain all of the words, in any case: those
    below `before` by session and number, highest first."""
    return await tx.fetch_page(
        JsonObject,
        _WITH_WORDS,
        limit,
        session_ids=list(after_seqs),
        after_seqs=list(after_seqs.values()),
        patterns=[in_any_case_as_json(word) for word in words],
        before_id=before[0],
        before_seq=before[1],
        most_of_each=most_of_each,
    )


def _turn(turn_id: UUID, rows: Sequence[Record]) -> Turn:
    messages = tuple([message_from_row(row, (row["counted"], row["reasoning_tokens"])) for row in rows])
    return Turn(TurnId(turn_id), 0, STATUS_OF[rows[0]["status"]], False, messages)  # by name it takes longer


_WITHOUT_VECTORS = sql("""
    SELECT m.seq, m.name, m.content FROM messages m
    WHERE m.session_id = :session_id AND m.seq > :after_seq AND m.seq <= :through_seq
        AND NOT EXISTS (SELECT FROM message_vectors v
            WHERE v.session_id = :session_id AND v.message_seq = m.seq AND v.model = :model)
        AND m.role IN ('user', 'assistant') AND NOT m.withdrawn
    ORDER BY m.seq LIMIT :limit
    """)

_NEW_VECTORS = insert_from(
    message_vectors,
    "s, unnest(CAST(:seqs AS bigint[]), CAST(:vectors AS bytea[])) AS x(message_seq, vector)",
    {"session_id": "s.id", "model": ":model"},
)
_SAVE_VECTORS = sql(f"""
    WITH s AS (SELECT id FROM sessions WHERE id = :session_id FOR KEY SHARE)
    {_NEW_VECTORS}
    ON CONFLICT (session_id, message_seq) DO UPDATE SET model = excluded.model, vector = excluded.vector
        WHERE message_vectors.model <> excluded.model
    """)

_HAS_VECTORS = sql("SELECT EXISTS (SELECT FROM message_vectors WHERE session_id = :session_id AND model = :model)")

_STORED_VECTORS = sql("""
    SELECT coalesce(string_agg(int8send(message_seq), ''), '') AS seqs, coalesce(string_agg(vector, ''), '') AS vectors
    FROM (
        SELECT message_seq, vector FROM message_vectors
        WHERE session_id = :session_id AND message_seq > :after_seq AND message_seq <= :through_seq
            AND model = :model AND octet_length(vector) = :dimensions
        ORDER BY message_seq DESC LIMIT :limit
    ) AS v
    """)


async def messages_without_vectors(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, *, model: str, limit: int
) -> list[Record]:
    """The oldest messages of a range for which the model has no vector yet: `seq`, `name` and `content`."""
    return await tx.fetch(
        _WITHOUT_VECTORS, session_id=session_id, after_seq=after_seq, through_seq=through_seq, model=model, limit=limit
    )


async def save_vectors(
    tx: Transaction, session_id: SessionId, model: str, seqs: Sequence[int], vectors: Sequence[bytes]
) -> None:
    """Stores packed vectors of messages. Stores nothing if the session has been erased meanwhile."""
    await tx.execute(_SAVE_VECTORS, session_id=session_id, model=model, seqs=seqs, vectors=vectors)


async def has_vectors(tx: Transaction, session_id: SessionId, model: str) -> bool:
    return await tx.fetchval(_HAS_VECTORS, session_id=session_id, model=model)


async def stored_vectors(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, *, model: str, dimensions: int, limit: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], bytes]:
    """A model's last `limit` vectors with this number of dimensions for a range of messages: the messages' numbers,
    and the vectors concatenated."""
    row = await tx.fetch_one(
        _STORED_VECTORS,
        session_id=session_id,
        after_seq=after_seq,
        through_seq=through_seq,
        model=model,
        dimensions=dimensions,
        limit=limit,
    )
    newest_first = np.frombuffer(row["vectors"], np.int8).reshape(-1, dimensions)
    return np.frombuffer(row["seqs"], ">i8")[::-1].astype(np.int64), newest_first[::-1].tobytes()
