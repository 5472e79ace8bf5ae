"""A database that a test is done with is lent to the next one, as it was when it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import asyncpg
import pytest

from app.db.tables import metadata
from tests.conftest import servers_of
from tests.services.service import service
from torture.databases import citus_servers, execute


async def _rows(url: str) -> Sequence[str]:
    """The tables that have rows."""
    connection = await cast(Any, asyncpg).connect(url)
    try:
        rows = "SELECT count(*) FROM {}"  # a table of ours
        return [name for name in metadata.tables if await connection.fetchval(rows.format(name))]
    finally:
        await connection.close()


async def test_it_is_lent_again_without_a_row_and_nobody_is_connected(
    postgres_server: str, template_database: str
) -> None:
    servers = servers_of(postgres_server)
    async with servers.lend(template_database) as first, service(first) as at:
        session = await at.session()
        await at.turn(session.id, "hello")
        await execute(first, "INSERT INTO limits (tenant_id, name, value) VALUES ('acme', 'turns_total', 5)")
        assert {"sessions", "turns", "messages", "limits"} <= set(await _rows(first))
        left = await cast(Any, asyncpg).connect(first)
    async with servers.lend(template_database) as second:
        assert second == first
        assert await _rows(second) == []
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await left.execute("SELECT 1")


@pytest.mark.skipif(citus_servers() is not None, reason="there a database is not made anew so soon")
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE turns ADD COLUMN more text",
        "ALTER TABLE turns ALTER COLUMN session_id SET (n_distinct = 1)",
        "ALTER TABLE turns SET (autovacuum_enabled = off)",
        "CREATE FUNCTION u() RETURNS int LANGUAGE sql RETURN 1",
        "DROP INDEX ix_turns_created_at",
        "UPDATE alembic_version SET version_num = 'later'",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$",
        "INSERT INTO limits (tenant_id, name, value) VALUES ('acme', 'turns_total', 5); ANALYZE limits",
    ],
)
async def test_one_that_was_changed_is_not_lent_again(
    postgres_server: str, template_database: str, change: str
) -> None:
    servers = servers_of(postgres_server)
    async with servers.lend(template_database) as first:
        await execute(first, change)
    async with servers.lend(template_database) as second:
        assert second != first
