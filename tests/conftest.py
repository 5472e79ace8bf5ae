"""One Postgres for the whole run, one migrated template, and an empty database for each test that asks for one.

The server is an embedded one in pytest's temporary folder, shared by all xdist workers, or, where
`PLIMSOLL_TEST_DATABASE_URL` names one, an external server (14 or later) whose user may create databases. With
`PLIMSOLL_TEST_CITUS` (`make test-citus`) it is a cluster's coordinator, and every table is distributed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from app.core.memory import collect_seldom
from app.db import embedded
from migrations.drift import with_database
from tests.pooling import behind_pooler, pooled
from torture.databases import Servers, citus_servers, execute, new_name

gc.disable()  # while the tests are imported: a third of the time of that


def pytest_collection_finish() -> None:
    """Garbage is collected as in the service from now on. To go through the modules of all tests again and again would
    take a seventh of the time of the tests."""
    gc.enable()
    collect_seldom()


_NOTHING_OUTLIVES_THE_MACHINE = (
    "ALTER SYSTEM SET fsync = off",
    "ALTER SYSTEM SET full_page_writes = off",
    "SELECT pg_reload_conf()",
)
"""Half of the time of most tests is the copy of a database reaching the disk. A killed Postgres loses nothing by it."""

_MORE_EXAMPLES = os.environ.get("PLIMSOLL_HYPOTHESIS_EXAMPLES")
settings.register_profile(
    "plimsoll",
    max_examples=int(_MORE_EXAMPLES or 40),
    derandomize=_MORE_EXAMPLES is None,  # a landing is not refused by chance: `make fuzz` looks for what is new
    deadline=None,  # the machines that run this are shared
    # A snapshot is a whole conversation: drawing one is most of an example's work.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("plimsoll")

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
    if (servers := citus_servers()) is not None:
        yield servers.urls[0]
        return
    external = os.environ.get("PLIMSOLL_TEST_DATABASE_URL")
    if external:
        yield external
        return
    own = tmp_path_factory.getbasetemp()
    server = embedded.start(Path(own if worker_id == "master" else own.parent) / "server")
    asyncio.run(execute(server.dsn, *_NOTHING_OUTLIVES_THE_MACHINE))
    yield server.dsn
    server.stop()


@pytest.fixture(scope="session")
def template_database(postgres_server: str) -> Generator[str]:
    """The name of a database that was migrated and is never connected to again."""
    servers, name = servers_of(postgres_server), new_name()
    if not servers.is_citus:
        asyncio.run(servers.make_migrated(name))
    yield name
    asyncio.run(servers.drop_returned(name))
    asyncio.run(servers.drop(name))


@pytest.fixture(scope="session")
def reached_server(postgres_server: str) -> Generator[str]:
    """The server as the service reaches it: behind a pooler, where the tests are (`tests/pooling.py`)."""
    with pooled(postgres_server) if behind_pooler() else nullcontext(postgres_server) as server:
        yield server


@pytest_asyncio.fixture
async def database_url(postgres_server: str, reached_server: str, template_database: str) -> AsyncGenerator[str]:
    """A migrated, empty database of the test's own."""
    async with servers_of(postgres_server).lend(template_database) as url:
        yield with_database(reached_server, urlsplit(url).path[1:])


@pytest_asyncio.fixture
async def empty_database_url(postgres_server: str) -> AsyncGenerator[str]:
    """A database of the test's own, without any table."""
    servers, name = servers_of(postgres_server), new_name()
    yield await servers.make(name)
    await servers.drop(name)


@contextmanager
def lasting_database(server: str, template: str) -> Generator[str]:
    """The address of a migrated, empty database, for what is no coroutine and outlasts a test."""
    with asyncio.Runner() as runner:
        lent = servers_of(server).lend(template)
        url = runner.run(lent.__aenter__())
        try:
            yield url
        finally:
            runner.run(lent.__aexit__(None, None, None))


def servers_of(server: str) -> Servers:
    """Where databases are made for a connection string of `postgres_server`: on every node, where there are several."""
    return citus_servers() or Servers((server,))
