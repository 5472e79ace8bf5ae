"""Where a run's databases are made: on one server, or on a Citus cluster's coordinator and workers at once."""

from __future__ import annotations

import asyncio
import os
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


# Whoever is still connected is cut off, and what that left half done on the nodes is ended. Rows are deleted, with all
# below their sessions: TRUNCATE takes a hundred times as long here.
_EMPTY = (
    """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    """,
    "SELECT recover_prepared_transactions()",
    *(
        f"DELETE FROM {name}"  # noqa: S608 - a table of ours
        for name, placement in PLACEMENTS.items()
        if name == "sessions" or placement.spread is not Spread.BY_SESSION
    ),
)
_EMPTIED: list[str] = []
"""Addresses of databases on the cluster that the environment names; they go with its nodes."""


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
        """The address of a database with all tables and no row, for this block alone: a copy of the template.

        To copy one on every node takes seconds. There one is lent that an earlier block was done with, and that was
        emptied; the template need not be there.
        """
        if self.is_citus:
            url = _EMPTIED.pop() if _EMPTIED else await self.make_migrated(new_name())
            yield url
            await execute(url, *_EMPTY)  # one for which this fails is not lent again
            _EMPTIED.append(url)
            return
        name = new_name()
        await execute(self.urls[0], f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            await self.drop(name)

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
    connection = await cast(Any, asyncpg).connect(server)
    try:
        await connection.execute("SELECT pg_advisory_lock(hashtext('plimsoll nodes'))")
        yield
    finally:
        await connection.close()


def _joining(urls: tuple[str, ...]) -> list[str]:
    coordinator, *workers = (url.split("@")[1].split("/")[0].split(":") for url in urls)
    return [
        "SELECT citus_set_coordinator_host('{}', {})".format(*coordinator),
        *("SELECT citus_add_node('{}', {})".format(*worker) for worker in workers),
    ]


async def execute(url: str, *statements: str) -> None:
    """Runs the statements, each alone, on a connection of its own."""
    connection = await cast(Any, asyncpg).connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
