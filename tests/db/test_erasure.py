"""Sessions that get a turn at the moment at which they are locked to be erased."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from app.db.database import Database, Transaction
from app.db.driver import Record
from app.db.erasure import Idle, due_sessions, next_idle
from app.db.sql import Statement
from tests.pooling import past_pooler

SESSION = UUID(int=1)
# `statement_timestamp()` waits at its second call: in the statement after the one that looked for due sessions, before
# the row that it may lock.
_PAUSE = """
    CREATE SEQUENCE calls;
    CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('calls') = 2 THEN
            PERFORM pg_advisory_lock_shared(7);
            PERFORM pg_advisory_unlock_shared(7);
        END IF;
        RETURN clock_timestamp();
    END $$;
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, erase_after)
    VALUES ('00000000-0000-0000-0000-000000000001', 'default', 'm', '{}', '{}', clock_timestamp() - interval '1 h');
    SELECT pg_advisory_lock(7);
    """
_CLAIM = """
    SET lock_timeout = '100ms';
    UPDATE sessions SET last_turn_seq = 1;
    INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256)
    SELECT id, id, 1, 'running', 'x', 'm', '' FROM sessions;
    """
_PAUSED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted"


async def test_a_session_that_gets_a_turn_before_it_is_locked_is_not_erased(database_url: str) -> None:
    url = past_pooler(database_url)  # in a session of our own there, and the other looks on
    database = Database(url, pool_size=1)
    other = await cast(Any, asyncpg).connect(url)
    try:
        await other.execute(_PAUSE)
        async with database.begin() as tx:
            await tx.fetch(Statement("SELECT set_config('search_path', 'public, pg_catalog', true)", ()))
            erased = asyncio.create_task(due_sessions(tx, 10))
            while not await other.fetchval(_PAUSED):
                await asyncio.sleep(0.01)
                assert not erased.done()
            try:
                async with other.transaction():
                    await other.execute(_CLAIM)
                claimed = True
            except asyncpg.LockNotAvailableError:
                claimed = False
            await other.execute("SELECT pg_advisory_unlock(7)")
            assert (await erased == [SESSION]) is not claimed
    finally:
        await other.close()
        await database.aclose()


class _Interrupted(Transaction):
    """A transaction beside which something happens after its first statement that reads rows."""

    def __init__(self, tx: Transaction, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._tx = tx
        self._waiting = [meanwhile]

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        rows = await self._tx.fetch(statement, **parameters)
        while self._waiting:
            await self._waiting.pop()()
        return rows

    async def fetchrow(self, statement: Statement, **parameters: Any) -> Record | None:
        return await self._tx.fetchrow(statement, **parameters)


_OLD = """
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, updated_at)
    VALUES ('00000000-0000-0000-0000-000000000001', 'default', 'm', '{}', '{}', '2020-01-01');
    """
_USES = {
    "nothing": "SELECT 1",
    "a change": "UPDATE sessions SET updated_at = now()",
    "a pin": "INSERT INTO pins (session_id, name, content) SELECT id, 'p', 'x' FROM sessions",
    "a summary": """
        INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text,
            key_facts, open_questions, decisions, action_items, status, origin, model_alias, token_estimate,
            token_encoding)
        SELECT id, id, id, id, 1, 'x', '[]', '[]', '[]', '[]', 'active', 'person', 'm', 1, 'e' FROM sessions""",
    "a running turn": """
        INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256)
        SELECT id, id, 1, 'running', 'x', 'm', '' FROM sessions""",
}


@pytest.mark.parametrize("use", _USES)
async def test_a_session_that_is_used_after_it_was_found_idle_is_not_erased(database_url: str, use: str) -> None:
    url = past_pooler(database_url)
    database = Database(url, pool_size=1)
    other = await cast(Any, asyncpg).connect(url)
    try:
        await other.execute(_OLD)
        idle = Idle(datetime(2021, 1, 1, tzinfo=UTC), None)
        async with database.begin() as transaction:
            tx = _Interrupted(transaction, lambda: other.execute(_USES[use]))
            found = await next_idle(tx, idle, after=UUID(int=0), sessions=9, messages=99, lock=True)
        assert found == ([SESSION] if use == "nothing" else [])
    finally:
        await other.close()
        await database.aclose()
