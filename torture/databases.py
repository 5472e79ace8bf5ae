"""Where a run's databases are made: on one server, or on a Citus cluster's coordinator and workers at once."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import asyncpg

from app.db.database import Database
from app.db.distribution import PLACEMENTS, Spread, distribute
from app.db.migrate import upgrade
from migrations.drift import with_database

VARIABLE = "PLIMSOLL_TEST_CITUS"
"""The ports on loopback of a cluster (`torture/nodes.py`), the coordinator's first, by commas."""


_DISCONNECT = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
# Rows are deleted, with all below their sessions: TRUNCATE takes longer, on a cluster a hundred times as long. Without
# statistics of the rows that are gone, nothing is vacuumed or analyzed later.
_EMPTY = (
    *(
        f"DELETE FROM {name}"  # noqa: S608 - a table of ours
        for name, placement in PLACEMENTS.items()
        if name == "sessions" or placement.spread is not Spread.BY_SESSION
    ),
    "SELECT pg_stat_reset()",
)
_SCHEMA = """
SELECT concat_ws(' ',
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_class WHERE oid >= 16384),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_attribute WHERE attrelid >= 16384),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_constraint WHERE oid >= 16384),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_trigger),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_proc WHERE oid >= 16384),
    (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase <> 0),
    (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384),
    (SELECT string_agg(version_num, ' ') FROM alembic_version))
"""
"""Differs from what it was once a statement has changed the schema, its version or the statistics of its planner."""
_MOST_GROWTH_BYTES = 4 * 1024 * 1024
"""Of a database that is lent again: the rows of an earlier block leave their pages behind."""


@dataclass(frozen=True, slots=True)
class _Database:
    """A migrated database, as it was when it was made."""

    name: str
    url: str
    schema: str
    size_bytes: int


_RETURNED: defaultdict[str, list[_Database]] = defaultdict(list)
"""Those that wait to be lent again, emptied, by the address of their template."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where a run's databases are made: one server, or a coordinator and its workers, each by its address."""

    urls: tuple[str, ...]

    @property
    def is_citus(self) -> bool:
        return len(self.urls) > 1

    def url(self, name: str) -> str:
        """The database of this name, as a service reaches it."""
        return with_database(self.urls[0], name)

    async def make(self, name: str) -> str:
        """An empty database, which knows its nodes where there are several; its address."""
        await self._everywhere(f"CREATE DATABASE {name} TEMPLATE template0")
        if self.is_citus:
            await asyncio.gather(*(execute(with_database(url, name), "CREATE EXTENSION citus") for url in self.urls))
            async with _alone_on(self.urls[0]):
                await execute(self.url(name), *_joining(self.urls))
        return self.url(name)

    async def make_migrated(self, name: str) -> str:
        """A database with all tables, distributed where there are nodes; its address."""
        url = await self.make(name)
        await upgrade(url)
        if self.is_citus:
            await distribute_at(url)
        return url

    @asynccontextmanager
    async def lend(self, template: str) -> AsyncGenerator[str]:
        """The address of a database with all tables and no row, for this block alone.

        It is one that an earlier block of this process was done with, and else a copy of the template; on a cluster,
        where to copy one on every node takes seconds, it is migrated, and the template need not be there.
        """
        returned = _RETURNED[self.url(template)]
        database = returned.pop() if returned else await self._made(template)
        try:
            yield database.url
        finally:
            if await _emptied(database, is_citus=self.is_citus):
                returned.append(database)
            else:
                await self.drop(database.name)

    async def drop_returned(self, template: str) -> None:
        """Takes away the databases that wait to be lent again."""
        for database in _RETURNED.pop(self.url(template), ()):
            await self.drop(database.name)

    async def _made(self, template: str) -> _Database:
        name = new_name()
        if self.is_citus:
            await self.make_migrated(name)
        else:
            await execute(self.urls[0], f"CREATE DATABASE {name} TEMPLATE {template}")
        async with connected(self.url(name)) as connection:
            return _Database(name, self.url(name), *await _state(connection))

    async def drop(self, name: str) -> None:
        """Takes the database away, whoever uses it."""
        await self._everywhere(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    async def _everywhere(self, *statements: str) -> None:
        await asyncio.gather(*(execute(url, *statements) for url in self.urls))


def citus_servers() -> Servers | None:
    """The nodes that the environment names."""
    ports = os.environ.get(VARIABLE)
    if not ports:
        return None
    return Servers(tuple(f"postgresql://postgres@127.0.0.1:{port}/postgres" for port in ports.split(",")))


async def distribute_at(url: str) -> list[str]:
    """What `plimsoll distribute` does there; which tables were new."""
    database = Database(url, pool_size=1, transaction_pooler=True)
    try:
        async with database.begin() as tx:
            return await distribute(tx)
    finally:
        await database.aclose()


def new_name() -> str:
    """Of a database that nobody else has."""
    return f"plimsoll_test_{uuid4().hex[:12]}"


@asynccontextmanager
async def _alone_on(server: str) -> AsyncGenerator[None]:
    """For one process at a time: to add a node writes its roles anew, which all databases of the node share."""
    async with connected(server) as connection:
        await connection.execute("SELECT pg_advisory_lock(hashtext('plimsoll nodes'))")
        yield


def _joining(urls: tuple[str, ...]) -> list[str]:
    coordinator, *workers = (url.split("@")[1].split("/")[0].split(":") for url in urls)
    return [
        "SELECT citus_set_coordinator_host('{}', {})".format(*coordinator),
        *("SELECT citus_add_node('{}', {})".format(*worker) for worker in workers),
    ]


async def _state(connection: Any) -> tuple[str, int]:
    """What identifies the schema of a database, and its size in bytes."""
    return tuple(await connection.fetchrow(f"SELECT ({_SCHEMA}), pg_database_size(current_database())"))


async def _emptied(database: _Database, *, is_citus: bool) -> bool:
    """Empties a database that somebody was done with; whether it is as it was when it was made."""
    try:
        async with connected(database.url) as connection:
            await connection.execute(_DISCONNECT)
            schema, size_bytes = await _state(connection)
            if schema != database.schema or size_bytes > database.size_bytes + _MOST_GROWTH_BYTES:
                return False
            if is_citus:  # what was cut off half done on the nodes is ended
                await connection.execute("SELECT recover_prepared_transactions()")
            for statement in _EMPTY:
                await connection.execute(statement)
    except (asyncpg.PostgresError, OSError):  # it is gone, or takes nothing
        return False
    return True


async def execute(url: str, *statements: str) -> None:
    """Runs the statements, each alone, on a connection of its own."""
    async with connected(url) as connection:
        for statement in statements:
            await connection.execute(statement)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Any]:
    """A plain connection for the block."""
    connection = await cast(Any, asyncpg).connect(url)
    try:
        yield connection
    finally:
        await connection.close()
