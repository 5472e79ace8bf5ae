"""A proxy before Postgres that plays faults: the server is away or silent, or commits and its answer never arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from bench.wire import open_connection_to, pump, url_through


@dataclass(slots=True)
class DatabaseFaults:
    """What the proxy does now. `away` refuses everybody and cuts who is there; `swallow_after` is a piece of a
    statement: once it has gone by, its connection's answers are thrown away and the connection is cut. While it does
    not `answer`, connections stay open. `fired` counts the connections that were refused or cut, and held answers."""

    away: bool = False
    answer: asyncio.Event = field(default_factory=asyncio.Event)
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

    def fall_silent(self) -> None:
        """Holds all answers back until it is to `answer` again, as a server does whose processes are stopped."""
        self.answer.clear()

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
                pump(reader, server_writer, partial(self._watch, swallowing)),
                self._to_client(server_reader, writer, swallowing),
            )
        finally:
            self._writers.discard(writer)
            server_writer.close()

    def _watch(self, swallowing: asyncio.Event, data: bytes) -> None:
        if self.swallow_after is not None and self.swallow_after in data:
            self.swallow_after = None
            swallowing.set()

    async def _to_client(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(65536):
                self.fired += not self.answer.is_set()
                await self.answer.wait()
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
    faults.answer.set()
    server = await asyncio.start_server(
        lambda reader, writer: faults.serve(database_url, reader, writer), "127.0.0.1", 0
    )
    try:
        yield url_through(server, database_url), faults
    finally:
        server.close()
