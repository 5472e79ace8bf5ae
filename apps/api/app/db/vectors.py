"""The packed vectors of messages, and the messages that have none yet.

They are made in the order of messages, and replace another model's. So a model that is used again, after another one in
between, may lack some below its newest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.db.database import Transaction
from app.db.driver import Record
from app.db.sql import insert_from, sql
from app.db.tables import message_vectors
from app.domain.types import SessionId

_MISSING = sql("""
    SELECT m.seq, m.name, m.content FROM messages m
    WHERE m.session_id = :session_id AND m.seq > :after_seq AND m.seq <= :through_seq
        AND NOT EXISTS (SELECT FROM message_vectors v
            WHERE v.session_id = :session_id AND v.message_seq = m.seq AND v.model = :model)
        AND m.role IN ('user', 'assistant') AND NOT m.withdrawn
    ORDER BY m.seq LIMIT :limit
    """)

_NEW = insert_from(
    message_vectors,
    "s, unnest(CAST(:seqs AS bigint[]), CAST(:vectors AS bytea[])) AS x(message_seq, vector)",
    {"session_id": "s.id", "model": ":model"},
)
_SAVE = sql(f"""
    WITH s AS (SELECT id FROM sessions WHERE id = :session_id FOR KEY SHARE)
    {_NEW}
    ON CONFLICT (session_id, message_seq) DO UPDATE SET model = excluded.model, vector = excluded.vector
        WHERE message_vectors.model <> excluded.model
    """)

_HAS = sql("SELECT EXISTS (SELECT FROM message_vectors WHERE session_id = :session_id AND model = :model)")

_STORED = sql("""
    SELECT coalesce(string_agg(int8send(message_seq), ''), '') AS seqs, coalesce(string_agg(vector, ''), '') AS vectors
    FROM (
        SELECT message_seq, vector FROM message_vectors
        WHERE session_id = :session_id AND message_seq > :after_seq AND message_seq <= :through_seq
            AND model = :model AND octet_length(vector) = :dimensions
        ORDER BY message_seq LIMIT :limit
    ) AS v
    """)


async def messages_without_vectors(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, *, model: str, limit: int
) -> list[Record]:
    """The oldest messages of a range for which the model has no vector yet: `seq`, `name` and `content`."""
    return await tx.fetch(
        _MISSING, session_id=session_id, after_seq=after_seq, through_seq=through_seq, model=model, limit=limit
    )


async def save_vectors(
    tx: Transaction, session_id: SessionId, model: str, seqs: Sequence[int], vectors: Sequence[bytes]
) -> None:
    """Stores packed vectors of messages. Stores nothing if the session has been erased meanwhile."""
    await tx.execute(_SAVE, session_id=session_id, model=model, seqs=seqs, vectors=vectors)


async def has_vectors(tx: Transaction, session_id: SessionId, model: str) -> bool:
    """Whether a session has any of a model's vectors."""
    return await tx.fetchval(_HAS, session_id=session_id, model=model)


async def stored_vectors(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, *, model: str, dimensions: int, limit: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], bytes]:
    """A model's first `limit` vectors with this number of dimensions for a range of messages: the messages' numbers,
    and the vectors concatenated."""
    row = await tx.fetch_one(
        _STORED,
        session_id=session_id,
        after_seq=after_seq,
        through_seq=through_seq,
        model=model,
        dimensions=dimensions,
        limit=limit,
    )
    return np.frombuffer(row["seqs"], ">i8").astype(np.int64), row["vectors"]
