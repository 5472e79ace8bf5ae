"""The tests behind PgBouncer in transaction mode, three server connections for all: `make test-pooler`.

`PLIMSOLL_TEST_POOLER=transaction` puts it before the Postgres of every test that asks for a database.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from app.db.database import Database
from bench.pgbouncer import find_pgbouncer, pgbouncer
from migrations.drift import with_database
from torture.databases import connected

VARIABLE = "PLIMSOLL_TEST_POOLER"
_SERVERS: dict[str, str] = {}
"""The servers behind poolers, by the poolers' addresses without a database."""


def behind_pooler() -> bool:
    """Whether the tests' databases are."""
    return os.environ.get(VARIABLE) == "transaction"


def pooler_settings() -> dict[str, str]:
    """What a service of its own process has to know."""
    return {"PLIMSOLL_DB_POOLER": "transaction"} if behind_pooler() else {}


def own_database(database_url: str, *, pool_size: int = 1, **limits: float) -> Database:
    """Connections of a test's own, by the way that the service takes. `limits` are those of `Database`, in seconds."""
    return Database(database_url, pool_size=pool_size, transaction_pooler=behind_pooler(), **limits)


def past_pooler(database_url: str) -> str:
    """The same database at the server itself."""
    parts = urlsplit(database_url)
    return with_database(_SERVERS.get(parts.netloc, database_url), parts.path[1:])


def own_connection(database_url: str) -> AbstractAsyncContextManager[Any]:
    """A test's connection past a pooler: what holds and watches locks takes none of the server connections that the
    service has there."""
    return connected(past_pooler(database_url))


@contextmanager
def pooled(server: str) -> Generator[str]:
    """The server's address at a PgBouncer. Its relay has a thread of its own: tests may block ours."""
    program = find_pgbouncer()
    assert program is not None, "PgBouncer is not installed (Debian: apt-get install pgbouncer)"
    addresses: list[str] = []
    started, over = threading.Event(), threading.Event()

    async def run() -> None:
        async with pgbouncer(program, server) as address:
            addresses.append(address)
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(20), "PgBouncer did not start"
    try:
        _SERVERS[urlsplit(addresses[0]).netloc] = server
        yield addresses[0]
    finally:
        over.set()
        thread.join(20)
