"""A proxy before Postgres that plays faults: the server is away, or commits and its answer never arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from bench.wire import open_connection_to


@dataclass(slots=True)
class DatabaseFaults:
    """What the proxy does now. `away` refuses everybody and cuts who is there; `swallow_after` is a piece of a
    statement: once it has gone by, its connection's answers are thrown away and the connection is cut. `fired` counts
    the connections that were refused or cut."""

    away: bool = False
    swallow_after: bytes | None = None
    fired: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    def go_away(self) -> None:
        """Cuts every connection and lets nobody in."""
        self.away = True
        for writer in list(self._writers):
            self.fired += 1
            writer.transport.abort()

    def come_back(self) -> None:
        self.away = False

    async def serve(self, database_url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        if self.away:
            self.fired += 1
            writer.transport.abort()
            return
        server_reader, server_writer = await open_connection_to(database_url)
        self._writers.add(writer)
        swallowing = asyncio.Event()
        try:
            await asyncio.gather(
                self._to_server(reader, server_writer, swallowing), self._to_client(server_reader, writer, swallowing)
            )
        finally:
            self._writers.discard(writer)
            server_writer.close()

    async def _to_server(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.swallow_after is not None and self.swallow_after in data:
                    self.swallow_after = None
                    swallowing.set()
                server.write(data)
                await server.drain()
        server.close()

    async def _to_client(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(65536):
                if swallowing.is_set():
                    # The server has answered, so what was sent to it is committed.
                    self.fired += 1
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def faulty_database(database_url: str) -> AsyncGenerator[tuple[str, DatabaseFaults]]:
    """A URL that leads to the database through the proxy, and the proxy's faults."""
    faults = DatabaseFaults()
    server = await asyncio.start_server(
        lambda reader, writer: faults.serve(database_url, reader, writer), "127.0.0.1", 0
    )
    port: int = server.sockets[0].getsockname()[1]
    parts = urlsplit(database_url)
    user = parts.netloc.rpartition("@")[0] or "postgres"
    try:
        yield urlunsplit((parts.scheme, f"{user}@127.0.0.1:{port}", parts.path, "", "")), faults
    finally:
        server.close()
