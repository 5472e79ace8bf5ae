"""Sessions that get a turn at the moment at which they are locked to be erased."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import asyncpg

from app.db.database import Database
from app.db.erasure import due_sessions
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
