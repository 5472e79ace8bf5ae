"""One Postgres for the whole run, one migrated template, and a fresh database for each test that asks for one.

The server is an embedded one in pytest's temporary folder, shared by all xdist workers, or, where
`PLIMSOLL_TEST_DATABASE_URL` names one, an external server (14 or later) whose user may create databases.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from app.db import embedded
from app.db.migrate import upgrade
from migrations.drift import with_database
from tests.pooling import behind_pooler, pooled

_LEVELS = {name: logging.getLogger(name).level for name in (None, "app", "uvicorn.error")}
"""Before any test: those that a fixture of a module sets are there before a test's own fixtures run."""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Generator[None]:  # pyright: ignore[reportUnusedFunction] - pytest runs it for every test
    """Whoever configures logging as the service does changes it for this test only."""
    yield
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler).__name__ == "StreamHandler"]:
        root.removeHandler(handler)  # pytest's own are of other types


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Generator[str]:
    """The connection string of a server on which databases may be made."""
    external = os.environ.get("PLIMSOLL_TEST_DATABASE_URL")
    if external:
        yield external
        return
    own = tmp_path_factory.getbasetemp()
    server = embedded.start(Path(own if worker_id == "master" else own.parent) / "server")
    yield server.dsn
    server.stop()


@pytest.fixture(scope="session")
def template_database(postgres_server: str) -> Generator[str]:
    """The name of a database that was migrated and is never connected to again."""
    name = f"plimsoll_template_{uuid4().hex[:12]}"
    asyncio.run(execute(postgres_server, f"CREATE DATABASE {name}"))
    asyncio.run(upgrade(with_database(postgres_server, name)))
    yield name
    asyncio.run(execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def reached_server(postgres_server: str) -> Generator[str]:
    """The server as the service reaches it: behind a pooler, where the tests are (`tests/pooling.py`)."""
    with pooled(postgres_server) if behind_pooler() else nullcontext(postgres_server) as server:
        yield server


@pytest_asyncio.fixture
async def database_url(postgres_server: str, reached_server: str, template_database: str) -> AsyncGenerator[str]:
    """A migrated, empty database of the test's own."""
    async with fresh_database(postgres_server, f"TEMPLATE {template_database}") as url:
        yield with_database(reached_server, urlsplit(url).path[1:])


@pytest_asyncio.fixture
async def empty_database_url(postgres_server: str) -> AsyncGenerator[str]:
    """A database of the test's own, without any table."""
    async with fresh_database(postgres_server, "TEMPLATE template0") as url:
        yield url


@asynccontextmanager
async def fresh_database(server: str, template: str) -> AsyncGenerator[str]:
    """The connection string of a database that goes when its user is done; `template` is SQL."""
    name = f"plimsoll_test_{uuid4().hex[:12]}"
    await execute(server, f"CREATE DATABASE {name} {template}")
    try:
        yield with_database(server, name)
    finally:
        await execute(server, f"DROP DATABASE {name} WITH (FORCE)")


async def execute(dsn: str, statement: str) -> None:
    """Runs one statement, outside any transaction."""
    connection = await cast(Any, asyncpg).connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
