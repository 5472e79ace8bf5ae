"""A PgBouncer in transaction mode with few server connections, for as long as a block runs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.programs import free_port
from bench.wire import Tally, counting_proxy, open_connection_to

SERVER_CONNECTIONS = 3
_CANCELS_SAFELY = (1, 21)
"""1.18 to 1.20 can exit when a statement is cancelled: https://github.com/pgbouncer/pgbouncer/issues/801, 822, 904."""
_PATIENCE_S = 10.0
_PROTOCOL = 196_608  # version 3.0
_LOG_END = 1_000  # characters of its log that a failure shows
_COLUMN_BYTES = 18  # of a column's description, after its name


def find_pgbouncer() -> str | None:
    """The program, where it is installed; Debian puts it where users do not look."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@asynccontextmanager
async def pgbouncer(program: str, server_dsn: str) -> AsyncGenerator[str]:
    """The connection string of the same server, behind a pooler that sees it by a port of its own.

    PgBouncer refuses to run as root, whose the embedded server's socket may be: it goes through a relay. Requests to
    cancel do not reach a version that can exit on one. Raises `RuntimeError` if PgBouncer ends before the block does.
    """
    async with AsyncExitStack() as stack:
        by_port = await stack.enter_async_context(counting_proxy(server_dsn, Tally()))
        server = urlsplit(by_port)
        user = unquote(server.username or "postgres")
        password = f" password={unquote(server.password)}" if server.password else ""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # noqa: ASYNC240 - of a folder that is there, in no time
        port = free_port()
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={user}{password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 500\n"
        )
        configuration.chmod(0o644)
        address = f"postgresql://{user}@127.0.0.1:{port}{server.path}"
        version = await stack.enter_async_context(_running(program, configuration, address))
        yield await stack.enter_async_context(counting_proxy(address, Tally(), cancels=version >= _CANCELS_SAFELY))


@asynccontextmanager
async def _running(program: str, configuration: Path, address: str) -> AsyncGenerator[tuple[int, ...]]:
    """The version of the PgBouncer that runs."""
    command = [program, str(configuration), *(["-u", "nobody"] if os.geteuid() == 0 else [])]
    written = configuration.with_suffix(".log")
    with written.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it is started once
    try:
        yield await _answered_version(process, address)
        if process.poll() is not None:
            raise RuntimeError(f"PgBouncer ended by itself: {written.read_text()[-_LOG_END:]}")
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, _PATIENCE_S)


async def _answered_version(process: subprocess.Popen[bytes], address: str) -> tuple[int, ...]:
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:
        try:
            (row,) = await show(address, "VERSION")
        except ConnectionError:
            await asyncio.sleep(0.02)
        else:
            return tuple(int(number) for number in re.findall(r"\d+", row["version"]))
    raise RuntimeError("PgBouncer did not start.")


async def show(address: str, what: str) -> list[dict[str, str]]:
    """What the pooler says of itself: the rows of `SHOW what`, by column.

    Its console speaks the simple protocol only, which our driver does not read rows with.
    https://www.pgbouncer.org/usage.html#admin-console
    """
    reader, writer = await open_connection_to(address)
    try:
        user = b"user\0" + (urlsplit(address).username or "postgres").encode() + b"\0database\0pgbouncer\0\0"
        writer.write(struct.pack("!ii", len(user) + 8, _PROTOCOL) + user)
        await _until_ready(reader)
        query = f"SHOW {what}".encode() + b"\0"
        writer.write(b"Q" + struct.pack("!i", len(query) + 4) + query)
        names: list[str] = []
        rows: list[dict[str, str]] = []
        for kind, body in await _until_ready(reader):
            if kind == b"T":
                names = _names(body)
            elif kind == b"D":
                rows.append(dict(zip(names, _values(body), strict=True)))
        return rows
    finally:
        writer.close()


async def _until_ready(reader: asyncio.StreamReader) -> list[tuple[bytes, bytes]]:
    """The messages up to the one that says that it listens. Raises `RuntimeError` for an error among them."""
    found: list[tuple[bytes, bytes]] = []
    while not found or found[-1][0] != b"Z":
        kind, length = struct.unpack("!ci", await reader.readexactly(5))
        found.append((kind, await reader.readexactly(length - 4)))
        if kind == b"E":
            raise RuntimeError(found[-1][1].decode(errors="replace"))
    return found


def _names(description: bytes) -> list[str]:
    names: list[str] = []
    at = 2
    while at < len(description):
        end = description.index(b"\0", at)
        names.append(description[at:end].decode())
        at = end + 1 + _COLUMN_BYTES
    return names


def _values(row: bytes) -> list[str]:
    values: list[str] = []
    at = 2
    while at < len(row):
        (length,) = struct.unpack_from("!i", row, at)
        at += 4
        values.append(row[at : at + max(length, 0)].decode())
        at += max(length, 0)
    return values
