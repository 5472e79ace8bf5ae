"""A small HTTP server on a real socket that plays a script: it answers, delays, resets, truncates, and counts hits."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, sent once `after` holds. `body` that is no bytes is sent as JSON. `cut_bytes` sends only so many of
    it and then hangs up."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str | None = "application/json"
    delay_s: float = 0.0
    cut_bytes: int | None = None
    after: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is torn down once the request has been read."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that need not be HTTP."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """A chunked answer, each of `pieces` a packet of its own. It ends as `ending` says: properly, by hanging up in the
    middle, or not at all until the client hangs up, after a chunk of no size or without. Each piece but the first, and
    that chunk, waits for `after` and `pause_s` more."""

    pieces: Iterable[bytes]
    ending: Literal["closed", "cut", "broken", "open"] = "closed"
    pause_s: float = 0.0
    after: Callable[[], bool] | None = None
    content_type: str | None = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Step: TypeAlias = Answer | Reset | Raw | Stream


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Play: TypeAlias = Step | Callable[[Seen], Step]
"""A step, or what makes one of the request."""


@dataclass(slots=True)
class ScriptedServer:
    """Plays `script` one step a request and its last step for ever. `seen` holds every request."""

    script: list[Play]
    port: int = 0
    seen: list[Seen] = field(default_factory=list[Seen])
    connections: int = 0
    open_connections: int = 0
    pieces_sent: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def hits(self) -> int:
        return len(self.seen)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                play = self.script[min(self.hits, len(self.script) - 1)]
                self.seen.append(request)
                self.arrived.set()
                step = play(request) if callable(play) else play
                if isinstance(step, Stream):
                    if await self._stream(step, reader, writer) == "close":
                        break
                elif await _play(step, reader, writer) == "close":
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            writer.transport.abort()

    async def _stream(
        self, step: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Literal["keep", "close"]:
        headers = {**({"content-type": step.content_type} if step.content_type else {}), **step.headers}
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 200 X\r\n{header_lines}transfer-encoding: chunked\r\n\r\n".encode())
        for number, piece in enumerate(step.pieces):
            if number and await _hangs_up_until(step.after, step.pause_s, reader):
                return "close"
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            self.pieces_sent += 1
        if step.ending == "cut":
            return "close"
        if step.ending == "broken" and not await _hangs_up_until(step.after, step.pause_s, reader):
            writer.write(b"no size\r\n")
        if step.ending in ("open", "broken"):
            await _hangs_up_within(30, reader)
            return "close"
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return "keep"


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(first.split(" ")[1], headers, body)


async def _play(
    step: Answer | Reset | Raw, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Literal["keep", "close"]:
    if isinstance(step, Reset):
        return "close"
    if isinstance(step, Raw):
        writer.write(step.data)
        await writer.drain()
        return "close"
    if await _hangs_up_until(step.after, step.delay_s, reader):
        return "close"
    body = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
    headers = {"content-length": str(len(body)), **step.headers}
    if step.content_type is not None:
        headers["content-type"] = step.content_type
    head = f"HTTP/1.1 {step.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode() + b"\r\n" + body[: step.cut_bytes])
    await writer.drain()
    return "keep" if step.cut_bytes is None else "close"


async def _hangs_up_until(holds: Callable[[], bool] | None, delay_s: float, reader: asyncio.StreamReader) -> bool:
    """Waits for `holds`, whichever thread brings it about, and `delay_s` more; true once the other side has gone."""
    while holds is not None and not holds():
        if await _hangs_up_within(0.005, reader):
            return True
    return bool(delay_s) and await _hangs_up_within(delay_s, reader)


async def _hangs_up_within(delay_s: float, reader: asyncio.StreamReader) -> bool:
    """Waits; true as soon as the other side has gone. It sends nothing while it waits for an answer."""
    try:
        async with asyncio.timeout(delay_s):
            return await reader.read(1) == b""
    except TimeoutError:
        return False


@asynccontextmanager
async def serving(*script: Play, encrypted: ssl.SSLContext | None = None) -> AsyncGenerator[ScriptedServer]:
    """Runs a server with this script on a free port of the loopback."""
    scripted = ScriptedServer(list(script))
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, limit=2**20, ssl=encrypted)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
