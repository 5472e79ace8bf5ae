"""Sessions with a long past, written straight into the tables, and the summary that stands before their raw window.

One real turn is taken over HTTP first; its rows are the pattern for every filled turn, so the rows are what the program
under test writes itself, down to the last column, but for the texts, which are the conversation's, with their counts
and packed terms. A filled session stands right after a summary: turn `length` was the one that made it, it covers all
but the last four turns before that one, and older summaries are superseded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from app.engine.recall.index import packed_terms
from bench.conversation import SUMMARY_FACTS, SUMMARY_TEXT, Conversation
from bench.tokens import count_tokens

MANDATORY_SUMMARY_TURN = 8
PROTECTED_TURNS = 4
DIFFERENT_TURNS = 2_048
"""So many turns are different ones in filled sessions; longer ones say the same again."""
# SQL is put together from these names and from the catalog's; values are always parameters.
TABLES = ("turns", "messages", "turn_steps", "turn_context_audit", "usage_records", "session_summaries", "sessions")

# In the order of time, as the service's own ids are, on every version of the server.
MAKE_ID = """
CREATE OR REPLACE FUNCTION bench_id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT CAST(encode(set_byte(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(CAST(extract(epoch FROM at) * 1000 AS bigint)) FROM 3) FROM 1 FOR 6),
        6, 112), 'hex') AS uuid)
$$
"""
STAGE = """
CREATE TEMPORARY TABLE stage AS
SELECT t.seq, s.session_id, bench_id(t.at) AS turn_id, bench_id(t.at) AS user_id,
       bench_id(t.at + interval '1 s') AS assistant_id, v.user_text, v.user_tokens, v.user_terms, v.assistant_text,
       v.assistant_tokens, v.assistant_terms, t.at
  FROM (SELECT seq, clock_timestamp() - make_interval(secs => 30 * ($2::bigint - seq) + 5) AS at
          FROM generate_series(1, $2::bigint) AS seq) AS t
 CROSS JOIN unnest($1::uuid[]) WITH ORDINALITY AS s(session_id, place)
  JOIN unnest($3::text[], $4::bigint[], $5::bytea[], $6::text[], $7::bigint[], $8::bytea[]) WITH ORDINALITY
       AS v(user_text, user_tokens, user_terms, assistant_text, assistant_tokens, assistant_terms, number)
       ON v.number = 1 + (t.seq + 61 * s.place) % $9::bigint
 ORDER BY t.seq
"""
SUMMARIES = """
INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text, key_facts,
       open_questions, decisions, action_items, status, origin, model_alias, token_estimate, token_encoding,
       prompt_tokens, completion_tokens, created_by_turn_id, created_at)
SELECT bench_id(maker.at), last.session_id, first.user_id, last.assistant_id, 2 * last.seq, $2,
       (SELECT jsonb_agg(jsonb_build_object('text', fact, 'message_ids', jsonb_build_array(last.user_id)))
          FROM unnest($3::text[]) AS fact),
       '[]', '[]', '[]', CASE WHEN last.seq = $1::bigint THEN 'active' ELSE 'superseded' END, 'model', $6, $4::bigint,
       'o200k_base', 2000, $4::bigint, maker.turn_id, maker.at
  FROM stage AS last
  JOIN stage AS first ON first.session_id = last.session_id AND first.seq = 1
  JOIN stage AS maker ON maker.session_id = last.session_id AND maker.seq = last.seq + $5::bigint
 WHERE last.seq % 8 = $1::bigint % 8 AND last.seq <= $1::bigint
 ORDER BY last.seq
"""
# With an id of its own, as a new summary has: a process of the service does not read one again that it has cached.
SLIDE = """
WITH boundary AS (
    SELECT session_id, m.id, seq FROM messages AS m JOIN sessions ON sessions.id = session_id
     WHERE session_id = ANY($1::uuid[]) AND seq = last_message_seq - 2 * $2::bigint
), counted AS (
    UPDATE sessions SET summary_count_after_seq = last_turn_seq - 1 WHERE id = ANY($1::uuid[])
)
UPDATE session_summaries AS s
   SET id = bench_id(clock_timestamp()), to_message_id = boundary.id, to_message_seq = boundary.seq
  FROM boundary WHERE s.session_id = boundary.session_id AND s.status = 'active'
"""
# What a filled row takes from the stage; every other column is the probe turn's own.
TURN_COLUMNS = {
    "id": "stage.turn_id",
    "session_id": "stage.session_id",
    "seq": "stage.seq",
    "user_input": "stage.user_text",
    "assistant_output": "stage.assistant_text",
    "created_at": "stage.at",
    "completed_at": "stage.at",
}
MESSAGE_COLUMNS = {
    "id": "CASE pattern.role WHEN 'user' THEN stage.user_id ELSE stage.assistant_id END",
    "session_id": "stage.session_id",
    "turn_id": "stage.turn_id",
    "seq": "2 * stage.seq - CASE pattern.role WHEN 'user' THEN 1 ELSE 0 END",
    "content": "to_jsonb(CASE pattern.role WHEN 'user' THEN stage.user_text ELSE stage.assistant_text END)",
    "token_estimate": "CASE pattern.role WHEN 'user' THEN stage.user_tokens ELSE stage.assistant_tokens END",
    "terms": "CASE pattern.role WHEN 'user' THEN stage.user_terms ELSE stage.assistant_terms END",
    "created_at": "stage.at",
}
OTHER_COLUMNS = {"id": "bench_id(stage.at)", "session_id": "stage.session_id", "turn_id": "stage.turn_id"}


@dataclass(frozen=True, slots=True)
class Texts:
    """The turns that sessions are filled with, by column: texts, counts and packed terms of both messages."""

    columns: tuple[Sequence[str], Sequence[int], Sequence[bytes], Sequence[str], Sequence[int], Sequence[bytes]]


def texts_of(conversation: Conversation, turns: int) -> Texts:
    """The first turns of a conversation, as many as are different ones."""
    asked = [conversation.question(number) for number in range(min(turns, DIFFERENT_TURNS))]
    answered = [conversation.answer(text) for text in asked]
    return Texts(
        (
            asked,
            [count_tokens(text) for text in asked],
            [packed_terms("user", text) for text in asked],
            answered,
            [count_tokens(text) for text in answered],
            [packed_terms("assistant", text) for text in answered],
        )
    )


def summarized_turns(length: int) -> int:
    """The last turn that the active summary covers in a session of `length` turns."""
    return length - 1 - PROTECTED_TURNS


async def prepare(connection: Any) -> None:
    """Before the first fill of a database."""
    await connection.execute(MAKE_ID)


async def make_session(
    connection: Any,
    pattern_session_id: UUID,
    model_alias: str | None = None,
    policy: Mapping[str, object] | None = None,
) -> UUID:
    """A new session equal to the pattern's, without a past, with a model and a policy of its own where one is given."""
    session_id = UUID(str(uuid7()))
    own = {
        "id": "$2::uuid",
        "model_alias": "coalesce($3::text, pattern.model_alias)",
        "policy": "coalesce($4::jsonb, pattern.policy)",
        "last_turn_seq": "0",
        "last_message_seq": "0",
        "summary_count_after_seq": "0",
    }
    columns = await _columns(connection, "sessions")
    values = [own.get(column, f"pattern.{column}") for column in columns]
    await connection.execute(
        f"INSERT INTO sessions ({', '.join(columns)}) SELECT {', '.join(values)}"  # noqa: S608 names, see above
        " FROM sessions AS pattern WHERE id = $1",
        pattern_session_id,
        session_id,
        model_alias,
        None if policy is None else orjson.dumps(policy).decode(),
    )
    return session_id


async def fill(
    connection: Any, pattern_session_id: UUID, session_ids: Sequence[UUID], length: int, texts: Texts
) -> None:
    """Gives every session `length` completed turns after the pattern of the one turn of `pattern_session_id`."""
    assert length > PROTECTED_TURNS + 1
    async with connection.transaction():
        # References hold by construction; checking them row by row would take most of the filling time.
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(STAGE, list(session_ids), length, *texts.columns, len(texts.columns[0]))
        await connection.execute("CREATE INDEX ON stage (session_id, seq)")
        await connection.execute("ANALYZE stage")
        await _copy_pattern(connection, "turns", pattern_session_id, TURN_COLUMNS)
        await _copy_pattern(connection, "messages", pattern_session_id, MESSAGE_COLUMNS)
        for table in ("turn_steps", "turn_context_audit", "usage_records"):
            await _copy_pattern(connection, table, pattern_session_id, OTHER_COLUMNS)
        await connection.execute(
            SUMMARIES,
            summarized_turns(length),
            SUMMARY_TEXT,
            list(SUMMARY_FACTS),
            count_tokens(SUMMARY_TEXT + " ".join(SUMMARY_FACTS)),
            PROTECTED_TURNS + 1,
            await connection.fetchval("SELECT model_alias FROM sessions WHERE id = $1", pattern_session_id),
        )
        await connection.execute(
            "UPDATE sessions SET last_turn_seq = $2::bigint, last_message_seq = 2 * $2::bigint,"
            " summary_count_after_seq = $2::bigint - 1 WHERE id = ANY($1)",
            session_ids,
            length,
        )
        await connection.execute("DROP TABLE stage")


async def slide(connection: Any, session_ids: Sequence[UUID], raw_turns: int) -> None:
    """Moves the summary of every session forward, so that its raw window has `raw_turns` turns: what the summary stands
    for is read by nobody."""
    await connection.execute(SLIDE, session_ids, raw_turns)


async def settle(connection: Any) -> None:
    """Leaves no maintenance for the measurement: autovacuum is off, and what it would do is done here."""
    for table in TABLES:
        await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        await connection.execute(f"VACUUM (ANALYZE) {table}")
    await connection.execute("CHECKPOINT")


async def _copy_pattern(connection: Any, table: str, pattern_session_id: UUID, own: dict[str, str]) -> None:
    columns = await _columns(connection, table)
    values = [own.get(column, f"pattern.{column}") for column in columns]
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"  # noqa: S608 names, see above
        f" FROM stage CROSS JOIN {table} AS pattern WHERE pattern.session_id = $1 ORDER BY stage.seq, stage.session_id",
        pattern_session_id,
    )


async def _columns(connection: Any, table: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1"
        " AND is_generated = 'NEVER' ORDER BY ordinal_position",
        table,
    )
    return [row["column_name"] for row in rows]
