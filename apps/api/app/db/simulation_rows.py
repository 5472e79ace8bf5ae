"""Reads a whole session in batches of turns: its messages, what was sent, and what was used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate, groupby

from app.db.audits import whole_refs
from app.db.database import Transaction, record_of
from app.db.driver import Record
from app.db.messages import AS_STORED, MESSAGE_BYTES, SLICE_BYTES, STEP_FAILED, message_from_row
from app.db.sql import sql
from app.db.turns import WHOLE_REQUEST
from app.domain.frozen import names_of
from app.domain.stored import StoredMessage, StoredTurn
from app.domain.types import JsonObject, Pin, SessionId, TurnStatus

# A call looks through the rounds before it: 16 of them take as long as a short turn.
_WITHIN = sql("""
    SELECT coalesce(min(w.seq) FILTER (WHERE w.work > CAST(:most_work AS bigint)) - 1, :through_seq) AS seq,
        coalesce(CAST(max(w.work) FILTER (WHERE (w.work > :most_work) IS NOT TRUE) AS bigint), 0) AS work
    FROM (
        SELECT t.seq, sum(greatest(c.calls, 1) + c.calls * c.calls / 16) OVER (ORDER BY t.seq) AS work
        FROM turns t
        CROSS JOIN LATERAL (
            SELECT count(*) AS calls FROM messages m
            WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'assistant' AND NOT m.withdrawn
        ) c
        WHERE t.session_id = :session_id AND t.seq <= :through_seq
    ) w
    """)

_TURNS = sql(f"""
    SELECT t.id, t.seq, t.status, t.model_alias, {WHOLE_REQUEST}, t.completion_tokens, t.cost_usd, t.created_at,
        t.assistant_output IS NULL AS without_output,
        EXISTS (SELECT FROM turn_steps st WHERE st.session_id = t.session_id AND st.turn_id = t.id AND {STEP_FAILED})
            AS step_failed,
        a.calls, a.wire_tokens, a.input_tokens, a.summary, a.prune, a.trims
    FROM turns t
    CROSS JOIN LATERAL (
        SELECT count(x.prompt_sha256) AS calls,
            CAST(sum(x.estimated_wire_tokens) FILTER (WHERE x.prompt_sha256 IS NOT NULL) AS bigint) AS wire_tokens,
            CAST(sum(x.estimated_input_tokens_after_prune) FILTER (WHERE x.prompt_sha256 IS NOT NULL) AS bigint)
                AS input_tokens,
            coalesce(bool_or(x.summary_triggered), false) AS summary,
            coalesce(bool_or(x.prune_triggered), false) AS prune,
            jsonb_agg(jsonb_build_array(x.context_trim_log -> 'actions', x.prompt_refs) ORDER BY x.round, x.attempt)
                FILTER (WHERE x.prompt_sha256 IS NOT NULL AND x.context_trim_log -> 'actions' <> '[]') AS trims
        FROM turn_context_audit x WHERE x.session_id = t.session_id AND x.turn_id = t.id
    ) a
    WHERE t.session_id = :session_id AND t.seq > :after_seq AND t.seq <= :through_seq
    ORDER BY t.seq LIMIT :limit
    """)

_SIZES = sql(f"""
    SELECT m.turn_id, CAST(sum({MESSAGE_BYTES}) AS bigint) AS size_bytes FROM messages m
    WHERE m.session_id = :session_id AND m.turn_id = ANY(:turn_ids) AND NOT m.withdrawn GROUP BY m.turn_id
    """)

_MESSAGES = sql(f"""
    SELECT {AS_STORED}, m.token_encoding,
        (SELECT jsonb_object_agg(c.token_encoding, jsonb_build_array(c.token_estimate, c.reasoning_tokens))
         FROM message_token_counts c
         WHERE c.session_id = m.session_id AND c.message_id = m.id) AS counts
    FROM messages m
    WHERE m.session_id = :session_id AND m.turn_id = ANY(:turn_ids) AND NOT m.withdrawn
    ORDER BY m.turn_id, m.seq
    """)

_ALIASES = sql("""
    SELECT DISTINCT model_alias FROM turns WHERE session_id = :session_id AND seq <= :through_seq ORDER BY model_alias
    """)

_PINS = sql(f"""
    SELECT {", ".join(names_of(Pin))}, created_at FROM pins WHERE session_id = :session_id ORDER BY created_at, name
    """)

_TOTALS = sql("""
    SELECT
        ARRAY(SELECT created_at FROM session_summaries
              WHERE session_id = :session_id AND created_by_turn_id IS NULL ORDER BY created_at) AS later_summaries,
        folded.*, used.*
    FROM (
        SELECT count(DISTINCT m.turn_id) AS folded_turns, count(*) AS folded_messages
        FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
        WHERE m.session_id = :session_id AND t.status <> 'rejected' AND m.seq <= (
            SELECT x.to_message_seq FROM session_summaries x
            WHERE x.session_id = :session_id AND x.status = 'active')
    ) folded, (
        SELECT CAST(coalesce(sum(u.prompt_tokens), 0) AS bigint) AS prompt_tokens,
            CAST(coalesce(sum(u.completion_tokens), 0) AS bigint) AS completion_tokens
        FROM usage_records u LEFT JOIN turns t ON t.session_id = u.session_id AND t.id = u.turn_id
        WHERE u.session_id = :session_id AND u.purpose = 'summary' AND coalesce(t.seq, 0) <= :through_seq
    ) used
    """)


async def turns_within(
    tx: Transaction, session_id: SessionId, through_seq: int, most_work: int | None
) -> tuple[int, int]:
    """The last turn through `through_seq` up to which deciding all turns once is at most `most_work`, and how much it
    is: 1 for a short turn, and more for one of many calls."""
    row = await tx.fetch_one(_WITHIN, session_id=session_id, through_seq=through_seq, most_work=most_work)
    return row["seq"], row["work"]


async def stored_turns(
    tx: Transaction, session_id: SessionId, after_seq: int, through_seq: int, *, limit: int
) -> list[StoredTurn]:
    """The next turns in time order: at most `limit`, and fewer if their messages have more than `SLICE_BYTES`. Rows are
    converted in a thread: a turn may have tens of thousands of messages, or long logs of many calls."""
    rows = await tx.fetch(_TURNS, session_id=session_id, after_seq=after_seq, through_seq=through_seq, limit=limit)
    sized = await tx.fetch(_SIZES, session_id=session_id, turn_ids=[row["id"] for row in rows])
    size_of = {row["turn_id"]: row["size_bytes"] for row in sized}
    bytes_through = accumulate(size_of.get(row["id"], 0) for row in rows)
    rows = rows[: max(1, sum(size_bytes <= SLICE_BYTES for size_bytes in bytes_through))]
    messages = await tx.fetch(_MESSAGES, session_id=session_id, turn_ids=[row["id"] for row in rows])

    def converted() -> list[StoredTurn]:
        by_turn = {
            turn_id: tuple(map(_stored_message, of_turn))
            for turn_id, of_turn in groupby(messages, key=lambda row: row["turn_id"])
        }
        return [_stored_turn(row, by_turn.get(row["id"], ())) for row in rows]

    return await asyncio.to_thread(converted)


async def stored_aliases(tx: Transaction, session_id: SessionId, through_seq: int) -> list[str]:
    return [row["model_alias"] for row in await tx.fetch(_ALIASES, session_id=session_id, through_seq=through_seq)]


async def dated_pins(tx: Transaction, session_id: SessionId) -> list[tuple[datetime, Pin]]:
    return [(row["created_at"], record_of(Pin, row)) for row in await tx.fetch(_PINS, session_id=session_id)]


async def stored_totals(tx: Transaction, session_id: SessionId, through_seq: int) -> JsonObject:
    """What the session's rows say besides its turns: `later_summaries`, when summaries were made for which no call
    waited (in the background or on request); the turns and messages that the active summary replaces, without rejected
    turns; and the tokens of summarizer calls through a turn."""
    return dict(await tx.fetch_one(_TOTALS, session_id=session_id, through_seq=through_seq))


def _stored_message(row: Record) -> StoredMessage:
    message = message_from_row(row)
    found: Mapping[str, tuple[int, int]] = row["counts"] or {}
    counts = {encoding: (tokens, of_reasoning) for encoding, (tokens, of_reasoning) in found.items()}
    return StoredMessage(message, counts | {row["token_encoding"]: (message.tokens, message.reasoning_tokens)})


def _stored_turn(row: Record, messages: Sequence[StoredMessage]) -> StoredTurn:
    status = TurnStatus(row["status"])
    return record_of(
        StoredTurn,
        row,
        status=status,
        unresolved=status is not TurnStatus.COMPLETED or row["without_output"] or row["step_failed"],
        messages=tuple(messages),
        cost_usd=None if row["cost_usd"] is None else float(row["cost_usd"]),
        trims=tuple((actions, whole_refs(refs)) for actions, refs in row["trims"] or ()),
    )
