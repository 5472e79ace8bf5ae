"""What must be true of a database's turns, whatever happened: looked at from outside, in SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

_TERMINAL = {"completed", "failed", "rejected", "cancelled", "awaiting_tools"}

_SEQUENCES = """
    SELECT session_id, count(*) AS turns, max(seq) AS last, min(seq) AS first, count(DISTINCT seq) AS numbers
    FROM turns WHERE CAST($1 AS uuid) IS NULL OR session_id = $1 GROUP BY session_id
"""
_REPLIES = """
    SELECT t.id, t.status, t.assistant_output, t.error,
        (SELECT count(*) FROM messages m WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'user')
            AS asked,
        (SELECT count(*) FROM messages m WHERE m.session_id = t.session_id AND m.turn_id = t.id
            AND m.role = 'assistant' AND m.tool_calls IS NULL) AS answered
    FROM turns t WHERE CAST($1 AS uuid) IS NULL OR t.session_id = $1
"""
_TWICE = """
    SELECT s.tenant_id, t.session_id, t.idempotency_key, count(*) FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE t.idempotency_key IS NOT NULL GROUP BY 1, 2, 3 HAVING count(*) > 1
"""
_SUMMARIES = """
    SELECT session_id FROM session_summaries WHERE status = 'active' GROUP BY session_id HAVING count(*) > 1
"""

_TABLES = (
    "SELECT table_name FROM information_schema.columns WHERE column_name = 'session_id' AND table_schema = 'public'"
)


async def fingerprint(database: Any, session_id: UUID) -> dict[str, tuple[int, str | None]]:
    """By table, how many rows a session has, and a hash of all that stands in them."""
    places = {"sessions": "id"} | {row["table_name"]: "session_id" for row in await database.fetch(_TABLES)}
    found: dict[str, tuple[int, str | None]] = {}
    for table, place in places.items():
        sql = f"SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t WHERE {place} = $1"  # noqa: S608 - names out of the catalogue
        found[table] = tuple(await database.fetchrow(sql, session_id))
    return found


async def violations(database: Any, session_id: UUID | None = None, *, may_run: bool = False) -> list[str]:
    """What is wrong with the turns of a session, or of all. Turns `may_run` only while somebody runs them."""
    found = [
        f"seq is not gapless: {dict(row)}"
        for row in await database.fetch(_SEQUENCES, session_id)
        if (row["first"], row["last"], row["numbers"]) != (1, row["turns"], row["turns"])
    ]
    for row in await database.fetch(_REPLIES, session_id):
        found += _of_turn(row, may_run=may_run)
    found += [f"a key has more than one turn: {dict(row)}" for row in await database.fetch(_TWICE)]
    found += [f"more than one active summary: {dict(row)}" for row in await database.fetch(_SUMMARIES)]
    return found


def _of_turn(row: Any, *, may_run: bool) -> list[str]:
    found: list[str] = []
    answers = 1 if row["status"] == "completed" else 0
    if row["asked"] != 1:
        found.append(f"turn {row['id']} ({row['status']}) has {row['asked']} user messages")
    if row["answered"] != answers:
        found.append(f"turn {row['id']} ({row['status']}) has {row['answered']} answers")
    if (row["status"] == "completed") != (row["assistant_output"] is not None):
        found.append(f"turn {row['id']} is {row['status']} and its output is {row['assistant_output']!r}")
    if row["status"] in {"failed", "cancelled", "rejected"} and not row["error"]:
        found.append(f"turn {row['id']} is {row['status']} without an error")
    if row["status"] not in _TERMINAL and not may_run:
        found.append(f"turn {row['id']} is still {row['status']}")
    return found
