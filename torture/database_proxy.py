"""A proxy before Postgres that lets something happen at a named statement: before it arrives, or once it is done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from bench.wire import FrontendReader, Tally, open_connection_to, startup_packet, url_through

_READY = b"Z\0\0\0\x05"


@dataclass(frozen=True, slots=True)
class At:
    """A point in a conversation with Postgres: a statement with this piece in it, or the commit that follows one."""

    piece: str
    when: Literal["before", "after"]
    commit: bool = False


@dataclass(slots=True)
class _Statements(FrontendReader):
    """Also keeps the statements since the last transaction began."""

    sent: list[str] = field(default_factory=list[str])
    count: int = 0

    def _run(self, sql: str) -> None:
        if sql.lstrip().upper().startswith("BEGIN"):
            self.sent.clear()
        self.sent.append(" ".join(sql.split()))
        self.count += 1


@dataclass(slots=True)
class Fault:
    """`then` happens at the point, once; nothing of that moment is passed on. `hold_s` passes it on so much later
    instead of never."""

    at: At
    then: Callable[[], None]
    hold_s: float | None = None
    armed: bool = True
    fired: bool = False

    def meets(self, sent: list[str]) -> bool:
        """Whether the newest statement is the one that is meant."""
        if self.fired or not self.armed:
            return False
        if self.at.commit:
            return sent[-1].upper().startswith("COMMIT") and any(self.at.piece in earlier for earlier in sent[:-1])
        return self.at.piece in sent[-1]

    def fire(self) -> None:
        self.fired = True
        self.then()


@asynccontextmanager
async def proxied(database_url: str, fault: Fault) -> AsyncGenerator[str]:
    """A URL that leads to the database through the proxy."""
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(database_url, fault, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield url_through(server, database_url)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(database_url: str, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    server: asyncio.StreamWriter | None = None
    try:
        startup = await startup_packet(reader, writer)
        server_reader, server = await open_connection_to(database_url)
        server.write(startup)
        awaiting = asyncio.Event()
        await asyncio.gather(
            _to_server(reader, server, fault, awaiting), _to_client(server_reader, writer, fault, awaiting)
        )
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.transport.abort()
        if server is not None:
            # The end of a killed process reaches Postgres as it would without a proxy.
            server.transport.abort()


async def _to_server(
    reader: asyncio.StreamReader, server: asyncio.StreamWriter, fault: Fault, awaiting: asyncio.Event
) -> None:
    statements = _Statements(Tally())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            before = statements.count
            statements.feed(data)
            if statements.count != before and fault.meets(statements.sent):
                if fault.at.when == "after":
                    awaiting.set()
                else:
                    fault.fire()
                    if fault.hold_s is None:
                        break
                    await asyncio.sleep(fault.hold_s)
            server.write(data)
            await server.drain()
    server.close()


async def _to_client(
    server: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault, awaiting: asyncio.Event
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await server.read(65536):
            if awaiting.is_set() and not fault.fired and data[-6:-1] == _READY:
                fault.fire()
                if fault.hold_s is None:
                    break
                await asyncio.sleep(fault.hold_s)
            writer.write(data)
            await writer.drain()
    writer.close()
