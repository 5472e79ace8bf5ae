"""Sessions with a long past, written straight into the tables, and put back after every batch.

One real turn is taken over HTTP first; its rows are the pattern for every filled turn, so the rows are what the program
under test writes itself, down to the last column. A filled session stands right after a summary: turn `length` was the
one that made it, it covers all but the last four turns before that one, and older summaries are superseded. From there
a session takes `PLAIN_TURNS` turns before the next summary is due, at the default settings; the window read by them
grows from 5 to 11 turns whatever the length is.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from bench.conversation import SUMMARY_FACTS, SUMMARY_TEXT, answer, question
from bench.tokens import count_tokens

MANDATORY_SUMMARY_TURN = 8
PROTECTED_TURNS = 4
PLAIN_TURNS = MANDATORY_SUMMARY_TURN - 1
TEXT_VARIANTS = 8
# SQL is put together from these names and from the catalog's; values are always parameters.
TABLES = ("turns", "messages", "turn_steps", "turn_context_audit", "session_summaries", "sessions")

STAGE = """
CREATE TEMPORARY TABLE stage AS
SELECT t.seq, s.session_id, uuidv7() AS turn_id, uuidv7() AS user_id, uuidv7() AS assistant_id,
       v.user_text, v.user_tokens, v.assistant_text, v.assistant_tokens,
       clock_timestamp() - make_interval(secs => 30 * ($2::bigint - t.seq)) AS at
  FROM generate_series(1, $2::bigint) AS t(seq)
 CROSS JOIN unnest($1::uuid[]) AS s(session_id)
  JOIN unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[])
       AS v(number, user_text, user_tokens, assistant_text, assistant_tokens) ON v.number = t.seq % $8::bigint
 ORDER BY t.seq
"""
SUMMARIES = """
INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text, key_facts,
       open_questions, decisions, action_items, status, origin, model_alias, token_estimate, token_encoding,
       prompt_tokens, completion_tokens, created_by_turn_id, created_at)
SELECT uuidv7(), last.session_id, first.user_id, last.assistant_id, 2 * last.seq, $2,
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
    "created_at": "stage.at",
}
OTHER_COLUMNS = {"id": "uuidv7()", "session_id": "stage.session_id", "turn_id": "stage.turn_id"}


def summarized_turns(length: int) -> int:
    """The last turn that the active summary covers in a session of `length` turns."""
    return length - 1 - PROTECTED_TURNS


async def make_session(connection: Any, pattern_session_id: UUID) -> UUID:
    """A new session equal to the pattern's, without a past."""
    session_id = UUID(str(uuid7()))
    columns = await _columns(connection, "sessions")
    values = ["$2::uuid" if column == "id" else f"pattern.{column}" for column in columns]
    await connection.execute(
        f"INSERT INTO sessions ({', '.join(columns)}) SELECT {', '.join(values)}"  # noqa: S608 names, see above
        " FROM sessions AS pattern WHERE id = $1",
        pattern_session_id,
        session_id,
    )
    return session_id


async def fill(connection: Any, pattern_session_id: UUID, session_ids: list[UUID], length: int) -> None:
    """Gives every session `length` completed turns after the pattern of the one turn of `pattern_session_id`."""
    assert length > PROTECTED_TURNS + 1
    variants = [(number, question(number), answer(number)) for number in range(TEXT_VARIANTS)]
    async with connection.transaction():
        # References hold by construction; checking them row by row would take most of the filling time.
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            STAGE,
            session_ids,
            length,
            [number for number, _, _ in variants],
            [user for _, user, _ in variants],
            [count_tokens(user) for _, user, _ in variants],
            [assistant for _, _, assistant in variants],
            [count_tokens(assistant) for _, _, assistant in variants],
            TEXT_VARIANTS,
        )
        await connection.execute("CREATE INDEX ON stage (session_id, seq)")
        await _copy_pattern(connection, "turns", pattern_session_id, TURN_COLUMNS)
        await _copy_pattern(connection, "messages", pattern_session_id, MESSAGE_COLUMNS)
        await _copy_pattern(connection, "turn_steps", pattern_session_id, OTHER_COLUMNS)
        await _copy_pattern(connection, "turn_context_audit", pattern_session_id, OTHER_COLUMNS)
        await connection.execute(
            SUMMARIES,
            summarized_turns(length),
            SUMMARY_TEXT,
            list(SUMMARY_FACTS),
            count_tokens(SUMMARY_TEXT + " ".join(SUMMARY_FACTS)),
            PROTECTED_TURNS + 1,
            await connection.fetchval("SELECT model_alias FROM sessions WHERE id = $1", pattern_session_id),
        )
        await _set_counters(connection, session_ids, length)
        await connection.execute("DROP TABLE stage")


async def put_back(connection: Any, session_ids: list[UUID], length: int) -> None:
    """Takes every turn after `length` out again, so that each batch starts from the same rows."""
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "DELETE FROM messages WHERE session_id = ANY($1) AND seq > $2", session_ids, 2 * length
        )
        for table in ("turn_steps", "turn_context_audit"):
            await connection.execute(
                f"DELETE FROM {table} WHERE (session_id, turn_id) IN"  # noqa: S608 names, see above
                " (SELECT session_id, id FROM turns WHERE session_id = ANY($1) AND seq > $2)",
                session_ids,
                length,
            )
        await connection.execute("DELETE FROM turns WHERE session_id = ANY($1) AND seq > $2", session_ids, length)
        await _set_counters(connection, session_ids, length)


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


async def _set_counters(connection: Any, session_ids: list[UUID], length: int) -> None:
    await connection.execute(
        "UPDATE sessions SET last_turn_seq = $2::bigint, last_message_seq = 2 * $2::bigint,"
        " summary_count_after_seq = $2::bigint - 1 WHERE id = ANY($1)",
        session_ids,
        length,
    )


async def _columns(connection: Any, table: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1"
        " AND is_generated = 'NEVER' ORDER BY ordinal_position",
        table,
    )
    return [row["column_name"] for row in rows]
