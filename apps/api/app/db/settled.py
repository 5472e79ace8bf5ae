"""A session's settled past as columns, read in ranges: one row of aggregates in place of a row for each message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from app.db.database import Transaction, record_of
from app.db.messages import NEWEST_SETTLED, NOT_REJECTED
from app.db.sql import sql
from app.domain.stored import StoredTexts
from app.domain.types import SessionId

_LONGEST_TEXT_BYTES = 16_384
"""Longest text, as JSON, that is aggregated: with longer ones an aggregate could exceed the largest possible value."""

# `m.seq + 0`, because Postgres looks for the minimum of a column in the order of its index, through the whole session.
_SETTLED_THROUGH = sql(f"""
    SELECT coalesce(min(m.seq + 0) - 1, 0) FROM messages m
    WHERE m.session_id = :session_id AND m.turn_id = {NEWEST_SETTLED}
    """)

# The aggregates get their rows in the order of the index (session_id, seq), so that no sort is needed. A message of a
# rejected turn may be between those of a turn that ran again after it.
_TEXTS = sql(f"""
    SELECT coalesce(string_agg(uuid_send(id), ''), '') AS ids,
        coalesce(string_agg(uuid_send(turn_id), ''), '') AS turn_ids,
        coalesce(string_agg(int8send(seq), ''), '') AS seqs,
        coalesce(string_agg(int8send(token_estimate), ''), '') AS tokens,
        coalesce(string_agg(int8send(reasoning_tokens), ''), '') AS reasoning_tokens,
        coalesce(string_agg(int8send(said_at), ''), '') AS said_at,
        coalesce(string_agg(letter, ''), '') AS roles,
        coalesce(array_agg(CASE WHEN letter <> '-' THEN convert_to(text, 'UTF8') END), '{{}}') AS contents
    FROM (
        SELECT id, turn_id, seq, token_estimate, reasoning_tokens, content::text AS text,
            CAST(1000000 * extract(epoch FROM coalesce(said_at, created_at)) AS bigint) AS said_at,
            CASE WHEN role <> 'tool' AND tool_calls IS NULL AND tool_call_id IS NULL AND name IS NULL
                    AND token_encoding = :encoding AND jsonb_typeof(content) = 'string'
                    AND octet_length(content::text) <= {_LONGEST_TEXT_BYTES}
                THEN left(role, 1) ELSE '-' END AS letter
        FROM messages
        WHERE session_id = :session_id AND seq > :after_seq AND seq <= :through_seq AND NOT withdrawn AND {NOT_REJECTED}
        ORDER BY seq LIMIT :limit
    ) AS m
    """)

# The first and the last turn are found by `id >= …` in the order of the key: for `id = …` a planner that assumes one
# row per session may look in the order of turn numbers, through the whole session.
_TURNS = sql("""
    SELECT coalesce(string_agg(uuid_send(id), ''), '') AS ids, coalesce(string_agg(int8send(seq), ''), '') AS seqs,
        coalesce(array_agg(status = 'completed'), '{}') AS completed
    FROM (
        SELECT id, seq, status FROM turns
        WHERE session_id = :session_id
            AND seq >= (SELECT seq FROM turns WHERE session_id = :session_id AND id >= :first_id ORDER BY id LIMIT 1)
            AND seq <= (SELECT seq FROM turns WHERE session_id = :session_id AND id >= :last_id ORDER BY id LIMIT 1)
        ORDER BY seq
    ) AS t
    """)
_ID_BYTES = 16


async def settled_through(tx: Transaction, session_id: SessionId, before_seq: int) -> int:
    """The number of the last message before the newest turn below `before_seq` that has ended and was not rejected; 0
    if there is none. No turn through that message runs again."""
    return await tx.fetchval(_SETTLED_THROUGH, session_id=session_id, before_seq=before_seq)


async def settled_texts(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, encoding: str, limit: int
) -> StoredTexts:
    """The first `limit` messages of a range that are neither withdrawn nor of a rejected turn. Those counted in another
    encoding have no text."""
    row = await tx.fetch_one(
        _TEXTS, session_id=session_id, after_seq=after_seq, through_seq=through_seq, encoding=encoding, limit=limit
    )
    turns = [(turn_id, len(list(run))) for turn_id, run in groupby(_ids(row["turn_ids"]))]
    seqs, completed = await _turns(tx, session_id, [turn_id for turn_id, _ in turns])
    return record_of(
        StoredTexts,
        row,
        seqs=_integers(row["seqs"]),
        tokens=_integers(row["tokens"]),
        reasoning_tokens=_integers(row["reasoning_tokens"]),
        said_at=_integers(row["said_at"]),
        turn_ids=b"".join([turn_id for turn_id, _ in turns]),
        turn_seqs=seqs,
        turn_messages=[messages for _, messages in turns],
        turn_completed=completed,
    )


async def _turns(tx: Transaction, session_id: SessionId, turn_ids: Sequence[bytes]) -> tuple[list[int], list[bool]]:
    if not turn_ids:
        return [], []
    first_id, last_id = UUID(bytes=turn_ids[0]), UUID(bytes=turn_ids[-1])
    row = await tx.fetch_one(_TURNS, session_id=session_id, first_id=first_id, last_id=last_id)
    figures = dict(zip(_ids(row["ids"]), zip(_integers(row["seqs"]), row["completed"], strict=True), strict=True))
    found = [figures[turn_id] for turn_id in turn_ids]
    return [seq for seq, _ in found], [completed for _, completed in found]


def _integers(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(data) // 8}q", data)


def _ids(data: bytes) -> list[bytes]:
    return [data[at : at + _ID_BYTES] for at in range(0, len(data), _ID_BYTES)]
