"""Counts what a program asks of Postgres: a proxy that reads the wire protocol and changes nothing.

The embedded Postgres has no pg_stat_statements, and a server's log shows neither round trips nor which turn a statement
belongs to. https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit, urlunsplit

_NO_ENCRYPTION_PLEASE = {80877103, 80877104}  # SSLRequest, GSSENCRequest
_CANCEL_REQUEST = (80877102).to_bytes(4, "big")
_CONTROL = re.compile(r"\s*(BEGIN|START TRANSACTION|COMMIT|END|ROLLBACK)\b", re.IGNORECASE)


@dataclass(slots=True)
class Tally:
    """What went by since the last `clear`. Transaction control is no statement; a commit ends a transaction."""

    statements: list[str] = field(default_factory=list[str])
    transactions: int = 0
    round_trips: int = 0

    def clear(self) -> None:
        self.statements.clear()
        self.transactions = 0
        self.round_trips = 0


@dataclass(slots=True)
class FrontendReader:
    """Reads one connection's client side, message by message, and adds to the tally."""

    tally: Tally
    _buffer: bytes = b""
    _prepared: dict[str, str] = field(default_factory=dict[str, str])
    _portals: dict[str, str] = field(default_factory=dict[str, str])
    _in_transaction: bool = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 5:
            end = 1 + int.from_bytes(self._buffer[1:5], "big")
            if len(self._buffer) < end:
                return
            self._message(self._buffer[:1], self._buffer[5:end])
            self._buffer = self._buffer[end:]

    def _message(self, kind: bytes, body: bytes) -> None:
        texts = [part.decode(errors="replace") for part in body.split(b"\0", 2)]
        match kind:
            case b"P":
                self._prepared[texts[0]] = texts[1]
            case b"B":
                self._portals[texts[0]] = self._prepared.get(texts[1], "?")
            case b"E":
                self._run(self._portals.get(texts[0], "?"))
            case b"Q":
                self._run(texts[0])
                self.tally.round_trips += 1
            case b"S":
                self.tally.round_trips += 1
            case _:
                pass

    def _run(self, sql: str) -> None:
        control = _CONTROL.match(sql)
        if control is None:
            self.tally.statements.append(" ".join(sql.split()))
            if not self._in_transaction:
                self.tally.transactions += 1
        elif control[1].upper() in {"BEGIN", "START TRANSACTION"}:
            self._in_transaction = True
            self.tally.transactions += 1
        else:
            self._in_transaction = False


@contextlib.asynccontextmanager
async def counting_proxy(database_url: str, tally: Tally, *, cancels: bool = True) -> AsyncGenerator[str]:
    """Yields a URL that leads to `database_url` through the proxy; without `cancels`, requests to cancel end here."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await startup_packet(reader, writer)
        try:
            if not cancels and startup[4:8] == _CANCEL_REQUEST:
                raise ConnectionRefusedError
            server_reader, server_writer = await open_connection_to(database_url)
        except OSError:
            writer.close()
            return
        server_writer.write(startup)
        await asyncio.gather(
            pump(reader, server_writer, FrontendReader(tally).feed),
            pump(server_reader, writer),
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield url_through(server, database_url)
    finally:
        server.close()


def url_through(proxy: asyncio.Server, database_url: str) -> str:
    """The URL that leads to the database through a proxy that listens on a port."""
    parts = urlsplit(database_url)
    user = parts.netloc.rpartition("@")[0] or "postgres"
    return urlunsplit((parts.scheme, f"{user}@127.0.0.1:{proxy.sockets[0].getsockname()[1]}", parts.path, "", ""))


async def startup_packet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """A client's first packet, after which it speaks in messages; what it asks for before is declined."""
    while True:
        head = await reader.readexactly(8)
        length, code = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if code not in _NO_ENCRYPTION_PLEASE:
            return head + await reader.readexactly(length - 8)
        writer.write(b"N")


async def open_connection_to(database_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection to the server of the URL, by socket or by port."""
    parts = urlsplit(database_url)
    query = parse_qs(parts.query)
    port = int(query.get("port", [str(parts.port or 5432)])[0])
    socket_folder = query.get("host", [""])[0]
    if socket_folder.startswith("/"):
        return await asyncio.open_unix_connection(f"{socket_folder}/.s.PGSQL.{port}")
    return await asyncio.open_connection(socket_folder or parts.hostname or "127.0.0.1", port)


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, watch: Callable[[bytes], None] = lambda _data: None
) -> None:
    """Passes on what is read, to its end; `watch` sees it before."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            watch(data)
            writer.write(data)
            await writer.drain()
    writer.close()
