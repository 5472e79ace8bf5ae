"""The two programs that are compared, ready for load: a database each, the same schema, the same filled sessions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import aiohttp
import asyncpg
import orjson
from sqlalchemy.ext.asyncio import create_async_engine
from uuid_utils.compat import uuid7

from app.db import tables
from bench import filling, programs
from bench.cases import REMEMBERING
from bench.conversation import Conversation
from bench.load import post_turn
from bench.wire import Tally, counting_proxy


@dataclass(slots=True)
class Target:
    """One program under load. `admin` is the bench's own connection to the target's database.

    `sessions` are by case, `raw_turns` what their window is slid to before a batch, `open_calls` the turn and the tool
    call that a session waits for, and `texts` what is said next: the same to every program.
    """

    name: str
    pid: int
    port: int
    admin: Any
    client: aiohttp.ClientSession
    pattern_session_id: UUID
    texts: Iterator[str]
    sessions: dict[str, list[UUID]] = field(default_factory=dict[str, list[UUID]])
    raw_turns: dict[str, int] = field(default_factory=dict[str, int])
    open_calls: dict[UUID, tuple[str, str]] = field(default_factory=dict[UUID, tuple[str, str]])


@dataclass(frozen=True, slots=True)
class Site:
    """Where a run happens, and what is talked about: the server's URL, the mock's port, a folder for logs and the
    catalogue; `under` is the command that runs the programs, if not they themselves are started."""

    server_url: str
    provider_port: int
    folder: Path
    conversation: Conversation = field(default_factory=Conversation)
    under: tuple[str, ...] = ()

    @property
    def models_file(self) -> Path:
        return self.folder / "models.toml"

    def database_url(self, name: str) -> str:
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/bench_{name}"))


async def make_databases(site: Site, names: list[str]) -> None:
    """Fresh databases with the schema: the service's by its migrations, the bare handler's from `db/tables.py`."""
    admin = await _connect(site.server_url)
    try:
        for name in names:
            await admin.execute(f"DROP DATABASE IF EXISTS bench_{name} WITH (FORCE)")
            await admin.execute(f"CREATE DATABASE bench_{name}")
    finally:
        await admin.close()
    for name in names:
        if name == "service":
            programs.migrate(site.database_url(name), site.models_file)
        else:
            await _create_tables(site.database_url(name))


async def drop_databases(site: Site, names: list[str]) -> None:
    admin = await _connect(site.server_url)
    try:
        for name in names:
            await admin.execute(f"DROP DATABASE IF EXISTS bench_{name} WITH (FORCE)")
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def started(site: Site, name: str) -> AsyncGenerator[Target]:
    """Starts the program of that name and takes its one pattern turn."""
    async with _started_on(site, name, site.database_url(name), log_name=name) as target:
        yield target


@contextlib.asynccontextmanager
async def started_counted(site: Site, name: str, tally: Tally) -> AsyncGenerator[Target]:
    """The same behind a proxy that counts what it asks of Postgres; never the process that is measured."""
    async with (
        counting_proxy(site.database_url(name), tally) as proxied_url,
        _started_on(site, name, proxied_url, log_name=f"{name}-counted") as target,
    ):
        yield target


@contextlib.asynccontextmanager
async def _started_on(site: Site, name: str, database_url: str, log_name: str) -> AsyncGenerator[Target]:
    port = programs.free_port()
    async with contextlib.AsyncExitStack() as stack:
        admin = await _connect(site.database_url(name))
        stack.push_async_callback(admin.close)
        make_first_session: Callable[[aiohttp.ClientSession, Any], Awaitable[UUID]]
        if name == "service":
            program = programs.service(port, database_url, site.models_file, site.folder, log_name, site.under)
            make_first_session = _session_over_http
        else:
            remembers, provider_port = name == REMEMBERING, site.provider_port
            program = programs.bare_handler(
                port, database_url, provider_port, site.folder, log_name, site.under, remembers=remembers
            )
            make_first_session = _session_by_sql
        pid = await stack.enter_async_context(program)
        await programs.until_ready(log_name, port, site.folder)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0))
        )
        pattern_session_id = await make_first_session(client, admin)
        texts = map(site.conversation.question, count(filling.DIFFERENT_TURNS))
        await post_turn(client, pattern_session_id, next(texts))
        await filling.prepare(admin)
        yield Target(name, pid, port, admin, client, pattern_session_id, texts)


async def _connect(database_url: str) -> Any:
    driver: Any = asyncpg  # its own types are incomplete
    return await driver.connect(database_url)


async def _create_tables(database_url: str) -> None:
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
    await engine.dispose()


async def _session_over_http(client: aiohttp.ClientSession, _admin: Any) -> UUID:
    async with client.post("/v1/sessions", json={}) as response:
        payload = await response.read()
    if response.status != 201:
        raise programs.ProgramFailed(f"POST /v1/sessions: {response.status} {payload[:2000].decode(errors='replace')}")
    return UUID(orjson.loads(payload)["id"])


async def _session_by_sql(_client: aiohttp.ClientSession, admin: Any) -> UUID:
    session_id = UUID(str(uuid7()))
    await admin.execute(
        "INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata) VALUES ($1, 'bench', $2, '{}', '{}')",
        session_id,
        programs.MODEL_ALIAS,
    )
    return session_id
