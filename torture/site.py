"""Where a run happens: one embedded Postgres, a database for each promise, the models, the nursery; and a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import asyncpg
import orjson

from app.db import embedded
from torture.databases import Servers, citus_servers
from torture.models import Models, models, write_catalogue
from torture.replicas import Nursery, nursery

_TEMPLATE = "torture_template"


@dataclass(frozen=True, slots=True)
class Answered:
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str | None:
        """A problem's code."""
        return self.json.get("code") if "problem" in self.headers.get("Content-Type", "") else None

    def last_event(self) -> tuple[str, Any]:
        """The last event of a stream; `("nothing", {})` of an empty one."""
        events = self.events()
        return events[-1] if events else ("nothing", {})

    def events(self) -> list[tuple[str, Any]]:
        """The events of a stream."""
        found: list[tuple[str, Any]] = []
        for block in self.body.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines and "data" in lines:
                found.append((lines["event"], orjson.loads(lines["data"])))
        return found


@dataclass(frozen=True, slots=True)
class Site:
    """What every promise is tried with."""

    servers: Servers
    folder: Path
    models: Models
    nursery: Nursery
    http: aiohttp.ClientSession
    kills: int
    """At each point of `crash`."""

    def environment(self, database_url: str, **settings: object) -> dict[str, str]:
        """A replica's. `settings` are variables without their `PLIMSOLL_`, in lower case."""
        own = {f"PLIMSOLL_{name.upper()}": str(value) for name, value in settings.items()}
        return {"DATABASE_URL": database_url, "MODELS_FILE": str(self.folder / "models.toml"), **own}

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncGenerator[tuple[str, Any]]:
        """The URL of a migrated, empty database, and a connection of our own to it."""
        async with self.servers.lend(_TEMPLATE) as url:
            connection = await connect(url)
            try:
                yield url, connection
            finally:
                await connection.close()

    async def post(
        self, url: str, body: object, *, key: str | None = None, token: str | None = None, timeout_s: float = 60
    ) -> Answered:
        """Posts JSON and reads the whole answer. Raises aiohttp's errors when the answer does not come whole."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        if token:
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self.http.post(url, data=orjson.dumps(body), headers=headers, timeout=timeout) as response:
            return Answered(response.status, response.headers, await response.read())

    async def session(self, base_url: str, token: str | None = None, **fields: object) -> str:
        """A new session's address, without the host."""
        made = await self.post(f"{base_url}/v1/sessions", fields, token=token)
        if made.status != 201:
            raise RuntimeError(f"no session could be made: {made.status} {made.body!r}")
        return f"/v1/sessions/{made.json['id']}"


NETWORK_ERRORS = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""What a client sees of a process that is gone."""


@contextlib.asynccontextmanager
async def site(folder: Path, kills: int) -> AsyncGenerator[Site]:
    """Starts Postgres, unless the environment names a Citus cluster, the models and the nursery, and ends them."""
    async with _servers(folder) as servers:
        if not servers.is_citus:
            await servers.make_migrated(_TEMPLATE)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            models() as own,
            nursery(folder) as replicas,
            aiohttp.ClientSession(connector=connector) as http,
        ):
            write_catalogue(folder / "models.toml", own)
            yield Site(servers, folder, own, replicas, http, kills)


@contextlib.asynccontextmanager
async def _servers(folder: Path) -> AsyncGenerator[Servers]:
    if (servers := citus_servers()) is not None:
        yield servers
        return
    server = await asyncio.to_thread(embedded.start, folder)
    try:
        yield Servers((server.dsn,))
    finally:
        await asyncio.to_thread(server.stop)


async def connect(url: str) -> Any:
    """A plain connection, for looking at what is stored."""
    connection = await cast(Any, asyncpg).connect(url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=_dumps, decoder=orjson.loads)
    return connection


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()
