"""Statements whose cost must not depend on what the planner believes: read by index ranges, analyzed or not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from app.db.database import Record, Transaction
from app.db.messages import UNCOUNTED, window_turns
from app.db.sql import Statement
from app.domain.content import sha256_hex
from app.domain.types import SessionId

TURNS, MESSAGES = 300, 600
SESSION = SessionId(UUID(int=2))
_SETTLED = """
    CREATE FUNCTION u(n int) RETURNS uuid LANGUAGE sql RETURN CAST(lpad(to_hex(n), 32, '0') AS uuid);
    ALTER TABLE turns SET (autovacuum_enabled = off); ALTER TABLE messages SET (autovacuum_enabled = off);
    ALTER TABLE message_token_counts SET (autovacuum_enabled = off);
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata)
    SELECT u(s), 'default', 'm', '{}', '{}' FROM generate_series(1, 8) s;
    """
_FILL = """
    INSERT INTO turns (id, session_id, seq, status, user_input, assistant_output, model_alias, request_sha256)
    SELECT u(1000 * s - t), u(s), t, CASE WHEN t % 50 = 0 THEN 'rejected' ELSE 'completed' END, 'x', 'y', 'm', ''
    FROM generate_series(1, 8) s, generate_series({first}, {last}) t;
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT u(100000 * s + 2 * t - 1 + m), u(s), u(1000 * s - t), 2 * t - 1 + m,
        CASE m WHEN 0 THEN 'user' ELSE 'assistant' END, '"text"', 3,
        CASE WHEN (2 * t - 1 + m) % 3 = 0 THEN 'theirs' ELSE 'ours' END
    FROM generate_series(1, 8) s, generate_series({first}, {last}) t, generate_series(0, 1) m;
    INSERT INTO message_token_counts (session_id, message_id, token_encoding, token_estimate)
    SELECT session_id, id, encoding, 5 FROM messages, unnest(ARRAY['ours', 'another']) AS encoding
    WHERE token_encoding = 'theirs' AND seq > 3 AND seq >= 2 * {first} - 1;
    """


class Explained(Transaction):
    """A transaction that keeps the generic plan, as it ran, of each statement that reads."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._driver = connection
        self.plans: list[Any] = []

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        name = f"explained_{sha256_hex(statement.text)[:8]}"
        if not await self._driver.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name = $1", name):
            prepared = await self._driver.prepare(statement.text)
            types = ", ".join(parameter.name for parameter in prepared.get_parameters())
            await self._driver.execute(f"PREPARE {name} ({types}) AS {statement.text}")
        values = ", ".join(f"'{value}'" for value in statement.arguments(parameters))
        found = await self._driver.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({values})")
        self.plans.append(json.loads(found)[0]["Plan"])
        return await super().fetch(statement, **parameters)


@asynccontextmanager
async def filled(database_url: str) -> AsyncGenerator[Explained]:
    """Eight sessions of 600 messages in tables that nobody has analyzed, on a connection as the service has them.

    The plans are made when the sessions have two turns each, and kept: the worst that a fresh installation does.
    """
    connection = await cast(Any, asyncpg).connect(
        database_url, server_settings={"plan_cache_mode": "force_generic_plan"}
    )
    try:
        explained = Explained(connection)
        await connection.execute(_SETTLED + _FILL.format(first=1, last=2))
        await window_turns(explained, SESSION, 0, 4, "ours", step_failed=False)
        await connection.execute(_FILL.format(first=3, last=TURNS))
        explained.plans.clear()
        yield explained
    finally:
        await connection.close()


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("after_seq", [0, 40, 99, 580])
async def test_a_window_is_read_by_one_index_range_a_table(database_url: str, after_seq: int) -> None:
    async with filled(database_url) as tx:
        window = await window_turns(tx, SESSION, after_seq, MESSAGES, "ours", step_failed=False)
        ranges, counts = tx.plans
        found = list(nodes(ranges)) + list(nodes(counts))
        assert not [
            node["Node Type"] for node in found if "Join" in node["Node Type"] or node["Node Type"] == "Nested Loop"
        ]
        scans = [node for node in found if "Relation Name" in node]
        assert {node["Relation Name"] for node in scans} == {"messages", "turns", "message_token_counts"}
        assert all(node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan") for node in scans), scans
        assert all(node["Actual Loops"] == 1 for node in scans)
        read = sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans)
        assert read <= 2 * (MESSAGES - after_seq) + 5

        sent = [message for turn in window for message in turn.messages]
        expected = [seq for seq in range(after_seq + 1, MESSAGES + 1) if (seq + 1) // 2 % 50]
        assert [message.seq for message in sent] == expected
        assert all(message.turn_id == turn.id for turn in window for message in turn.messages)
        assert [message.tokens for message in sent] == [
            3 if seq % 3 else UNCOUNTED if seq == 3 else 5 for seq in expected
        ]


async def test_counts_are_not_looked_for_where_every_message_has_its_own(database_url: str) -> None:
    async with filled(database_url) as tx:
        await window_turns(tx, SESSION, MESSAGES - 2, MESSAGES - 1, "ours", step_failed=False)
        assert len(tx.plans) == 1
