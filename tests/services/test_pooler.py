"""Behind PgBouncer in transaction mode, with three server connections for everybody, things are as they are without."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from app.db.database import Database
from app.db.migrate import upgrade
from app.db.schema import SchemaState, reach
from app.db.sql import sql
from app.domain.errors import DatabaseUnavailable, SessionBusy
from bench.pgbouncer import SERVER_CONNECTIONS, find_pgbouncer, pgbouncer, show
from migrations.drift import with_database
from tests.pooling import VARIABLE
from tests.services import (
    test_archive,
    test_forks,
    test_guarded,
    test_limits,
    test_storage,
    test_tools,
    test_turn_safety,
    test_undo,
)
from tests.services.service import service
from torture.databases import connected

PROGRAM = find_pgbouncer()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)"
)
ON_THE_WIRE_OR_OUTSIDE = ("statement", "renewed", "connection_is_held", "500_posts", "thousand_turns")
"""What counts statements without a pooler, needs no database, or takes long."""


def representative() -> list[Any]:
    """Tests of whole turns that take a database's address and perhaps a folder."""
    rooms = (
        test_turn_safety,
        test_tools,
        test_undo,
        test_forks,
        test_guarded,
        test_archive,
        test_storage,
        test_limits,
    )
    found: list[Any] = []
    for room in rooms:
        for name, test in vars(room).items():
            if not name.startswith("test_") or any(mark in name for mark in ON_THE_WIRE_OR_OUTSIDE):
                continue
            wants = set(inspect.signature(test).parameters)
            if "database_url" in wants and wants <= {"database_url", "tmp_path"}:
                skips = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "skipif"]
                found.append(pytest.param(test, id=f"{room.__name__.rsplit('.', 1)[-1]}-{name}", marks=skips))
    return found


@pytest_asyncio.fixture(scope="session")
async def pooler(postgres_server: str) -> AsyncGenerator[str]:
    """The address of a PgBouncer before the server of the tests."""
    assert PROGRAM is not None
    async with pgbouncer(PROGRAM, postgres_server) as address:
        yield address


def through(pooler: str, database_url: str) -> str:
    """The database's address at the pooler."""
    return with_database(pooler, urlsplit(database_url).path.lstrip("/"))


@pytest.mark.parametrize("test", representative())
async def test_a_test_of_whole_turns_passes_behind_the_pooler(
    pooler: str,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., Awaitable[None]],
) -> None:
    monkeypatch.setenv(VARIABLE, "transaction")
    wants = test.__code__.co_varnames[: test.__code__.co_argcount]
    given = {"database_url": through(pooler, database_url), "tmp_path": tmp_path}
    await test(**{name: given[name] for name in wants})


async def test_migrations_run_through_the_pooler_and_at_once(pooler: str, empty_database_url: str) -> None:
    address = through(pooler, empty_database_url)
    assert await reach(address, transaction_pooler=True) is SchemaState.EMPTY
    await asyncio.gather(*(upgrade(address) for _ in range(3)))
    assert await reach(address, transaction_pooler=True) is SchemaState.CURRENT


async def test_the_pooler_itself_says_that_turns_went_through_three_connections_at_most(
    pooler: str, database_url: str
) -> None:
    address = through(pooler, database_url)
    name = urlsplit(address).path[1:]
    async with service(address, transaction_pooler=True) as at:
        sessions = [await at.session() for _ in range(10)]
        await asyncio.gather(*(at.turn(session.id, "Hello") for session in sessions))
        (pool,) = [pool for pool in await show(address, "POOLS") if pool["database"] == name]
        (stats,) = [stats for stats in await show(address, "STATS") if stats["database"] == name]
    servers = sum(int(pool[state]) for state in ("sv_active", "sv_idle", "sv_used", "sv_login"))
    assert 1 <= servers <= SERVER_CONNECTIONS
    assert pool["pool_mode"] == "transaction"
    assert int(stats["total_xact_count"]) >= 2 * len(sessions)
    with pytest.raises(RuntimeError):
        await show(address, "NONSENSE")


async def test_a_read_of_a_table_that_a_migration_locks_is_refused_in_time(pooler: str, database_url: str) -> None:
    """It waited until the migration ended: a connection behind the pooler has no lock timeout of its own."""
    database = Database(through(pooler, database_url), pool_size=1, lock_timeout_s=0.05, transaction_pooler=True)
    async with connected(database_url) as migration, migration.transaction():
        await migration.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        for reading in (database.read_only(), database.begin(snapshot=True), database.begin()):
            with pytest.raises(SessionBusy):
                async with reading as tx:
                    await tx.fetchval(sql("SELECT count(*) FROM sessions"))
    await database.aclose()


async def test_without_the_setting_the_pooler_refuses_the_service(pooler: str, database_url: str) -> None:
    """So the tests above would fail if they did not go through it."""
    async with service(through(pooler, database_url), transaction_pooler=False) as at:
        with pytest.raises(DatabaseUnavailable) as refused:
            await at.session()
        assert "unsupported startup parameter" in str(refused.value.__cause__)
