"""The migrations: the schema they make, going up and down, several at once, and what `/readyz` is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from app.db.migrate import MigrationFailed, downgrade, upgrade
from app.db.schema import ADVISORY_LOCK, SchemaState, migrations, schema_state
from migrations.drift import differences, with_database
from tests.pooling import own_database, past_pooler

TABLES = {
    "sessions",
    "turns",
    "turn_steps",
    "messages",
    "session_summaries",
    "prompt_blocks",
    "turn_context_audit",
}


async def execute(dsn: str, *statements: str) -> list[Any]:
    """Runs the statements; the rows of the last one."""
    connection = await cast(Any, asyncpg).connect(dsn)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return await connection.fetch(statements[-1])
    finally:
        await connection.close()


async def tables(dsn: str) -> set[str]:
    return {row[0] for row in await execute(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


async def _process(what: str, dsn: str) -> asyncio.subprocess.Process:
    """A process that migrates the database."""
    program = f"import asyncio, sys; from app.db.migrate import downgrade, upgrade; asyncio.run({what})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, dsn, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def _until_one_waits_for(connection: Any, table: str) -> None:
    for _ in range(1000):
        if await connection.fetchval(
            f"SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted"  # noqa: S608 - a table of ours
        ):
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not wait for the table")


async def state(dsn: str) -> SchemaState:
    database = own_database(dsn)
    try:
        async with database.autocommit() as transaction:
            return await schema_state(transaction)
    finally:
        await database.aclose()


async def test_they_make_the_contracts_tables_exactly_as_tables_py_says(postgres_server: str) -> None:
    assert await differences(postgres_server) == []


async def test_a_difference_between_migrations_and_tables_is_reported(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above could not fail otherwise than by seeing what it is meant to see."""
    from migrations import drift  # noqa: PLC0415

    changed = drift.CATALOGUE.replace("pg_get_constraintdef(oid)", "pg_get_constraintdef(oid) || random()")
    monkeypatch.setattr(drift, "CATALOGUE", changed)
    assert any("only in tables.py" in line for line in await differences(postgres_server))


async def test_up_down_up(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    assert await tables(empty_database_url) >= TABLES
    await downgrade(empty_database_url, "base")
    assert await tables(empty_database_url) == {"alembic_version"}
    await upgrade(empty_database_url)
    assert await tables(empty_database_url) >= TABLES


async def test_several_processes_at_once_all_succeed(empty_database_url: str) -> None:
    started = [await _process("upgrade(sys.argv[1])", empty_database_url) for _ in range(3)]
    assert [await process.wait() for process in started] == [0, 0, 0]
    assert await state(empty_database_url) is SchemaState.CURRENT


async def test_several_at_once_in_one_process_all_succeed(empty_database_url: str) -> None:
    await asyncio.gather(*(upgrade(empty_database_url) for _ in range(3)))
    assert await state(empty_database_url) is SchemaState.CURRENT


@asynccontextmanager
async def _one_that_waits(server: str, url: str, **settings: str) -> AsyncGenerator[tuple[Any, asyncio.Task[None]]]:
    """An upgrade of a database with these settings, which waits for another migration, and the other's connection. At
    the end the other one commits, and the upgrade goes on."""
    connection = await cast(Any, asyncpg).connect(url)
    try:
        for setting, value in settings.items():
            await execute(server, f"ALTER DATABASE {urlsplit(url).path[1:]} SET {setting} = '{value}'")
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
            waiting = asyncio.create_task(upgrade(url))
            for _ in range(1000):
                if await connection.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database ="
                    " (SELECT oid FROM pg_database WHERE datname = current_database())"
                ):
                    break
                await asyncio.sleep(0.01)
            else:
                pytest.fail("it does not wait for the lock")
            yield connection, waiting
        await waiting
    finally:
        await connection.close()


async def test_who_waited_for_another_sees_its_migration_whatever_the_isolation_of_the_database(
    postgres_server: str, empty_database_url: str
) -> None:
    """The revision is read before the lock is taken, which fixes what a stricter isolation sees."""
    stricter = {"default_transaction_isolation": "serializable"}
    async with _one_that_waits(postgres_server, empty_database_url, **stricter) as (other, _):
        await other.execute("CREATE TABLE alembic_version (version_num text PRIMARY KEY)")
        newest = max(file.stem for file in (migrations() / "versions").glob("*.py"))
        await other.execute("INSERT INTO alembic_version VALUES ($1)", newest)
    assert await tables(empty_database_url) == {"alembic_version"}


@pytest.mark.parametrize("limit", ["statement_timeout", "transaction_timeout"])
async def test_one_waits_for_another_longer_than_for_a_table_and_than_work_of_the_database_may_take(
    postgres_server: str, empty_database_url: str, limit: str
) -> None:
    if not await execute(postgres_server, f"SELECT FROM pg_settings WHERE name = '{limit}'"):
        pytest.skip(f"this server has no {limit}")
    async with _one_that_waits(postgres_server, empty_database_url, **{limit: "1s"}) as (_, waiting):
        await asyncio.sleep(1.2)
        assert not waiting.done()
    assert await state(empty_database_url) is SchemaState.CURRENT


async def test_a_table_that_stays_locked_is_given_up_and_nothing_is_changed(
    database_url: str,
) -> None:
    connection = await cast(Any, asyncpg).connect(past_pooler(database_url))
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE sessions IN ACCESS SHARE MODE")
            with pytest.raises(MigrationFailed, match=r"lock timeout\. A table stayed locked: run it again"):
                await downgrade(database_url, "base", table_wait_s=0.05)
    finally:
        await connection.close()
    assert await tables(database_url) >= TABLES


async def test_a_migration_whose_process_is_stopped_is_rolled_back_and_blocks_nobody(database_url: str) -> None:
    connection = await cast(Any, asyncpg).connect(past_pooler(database_url))
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE session_summaries IN ACCESS SHARE MODE")
            migrating = await _process("downgrade(sys.argv[1], 'base', idle_s=0.5)", database_url)
            await _until_one_waits_for(connection, "session_summaries")
            migrating.send_signal(signal.SIGSTOP)
            # Until all of its threads stand still it can begin its next statement, and a statement has no limit.
            await asyncio.to_thread(os.waitid, os.P_PID, migrating.pid, os.WSTOPPED)
        try:
            await connection.execute("SET lock_timeout = '5s'")
            await connection.execute("SELECT FROM usage_records")  # which it had locked
        finally:
            migrating.send_signal(signal.SIGCONT)
            _, printed = await migrating.communicate()
    finally:
        await connection.close()
    assert b"MigrationFailed: The migration was rolled back" in printed
    assert await state(database_url) is SchemaState.CURRENT


async def test_a_migration_begins_anew_after_a_deadlock_with_what_the_service_writes(database_url: str) -> None:
    await downgrade(database_url, "2026_11_23_cache_breaks")
    connection = await cast(Any, asyncpg).connect(past_pooler(database_url))
    try:
        await connection.execute("SET deadlock_timeout = '1min'")  # so that it is the migration that is rolled back
        async with connection.transaction():
            await connection.execute("LOCK TABLE sessions IN ROW EXCLUSIVE MODE")
            migrating = asyncio.create_task(upgrade(database_url))
            await _until_one_waits_for(connection, "sessions")
            await connection.execute("LOCK TABLE usage_records IN ROW EXCLUSIVE MODE")
            assert not migrating.done()
        await migrating
    finally:
        await connection.close()
    assert await state(database_url) is SchemaState.CURRENT


async def test_the_state_of_a_schema(empty_database_url: str) -> None:
    assert await state(empty_database_url) is SchemaState.EMPTY
    await upgrade(empty_database_url)
    assert await state(empty_database_url) is SchemaState.CURRENT
    await execute(empty_database_url, "UPDATE alembic_version SET version_num = 'of a later release'", "SELECT 1")
    assert await state(empty_database_url) is SchemaState.AHEAD
    await execute(empty_database_url, "DELETE FROM alembic_version", "SELECT 1")
    assert await state(empty_database_url) is SchemaState.EMPTY


def test_revisions_have_the_names_of_their_files_and_the_newest_is_the_last_by_name() -> None:
    """So that the service knows them without Alembic."""
    config = Config()
    config.set_main_option("script_location", str(migrations()))
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    files = sorted(file.stem for file in (migrations() / "versions").glob("*.py"))
    assert files == sorted(known), "a migration's file is named like its revision"
    assert files[-1] == known[0], "a new migration's name comes after all others: it begins with its date"


async def test_a_failure_names_no_connection_string(empty_database_url: str) -> None:
    await execute(empty_database_url, "CREATE TABLE turns (id int)", "SELECT 1")
    with pytest.raises(MigrationFailed) as failure:
        await upgrade(empty_database_url)
    assert '"turns" already exists' in str(failure.value)
    assert "postgres" not in str(failure.value)
    assert await tables(empty_database_url) == {"turns"}


async def test_every_key_below_sessions_is_led_by_session_id(database_url: str) -> None:
    rows = await execute(
        database_url,
        """
        SELECT c.conrelid::regclass::text, c.conname, a.attname
        FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
        WHERE c.connamespace = 'public'::regnamespace AND c.contype IN ('p', 'u', 'f')
        """,
    )
    above = {"sessions", "learned_windows", "calibrations", "api_keys", "limits", "tenant_usage", "alembic_version"}
    assert {(table, name) for table, name, first in rows if table not in above and first != "session_id"} == set()


def test_another_database_of_the_same_server() -> None:
    assert with_database("postgresql://u:p@h:1/a?x=1", "b") == "postgresql://u:p@h:1/b?x=1"
    assert with_database("postgresql://postgres@/a?host=/s", "b") == "postgresql://postgres@/b?host=/s"
