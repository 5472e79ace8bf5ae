"""A PgBouncer in transaction mode with few server connections, for as long as a block runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.wire import Tally, counting_proxy, open_connection_to

SERVER_CONNECTIONS = 3
_PATIENCE_S = 10.0
_PROTOCOL = 196_608  # version 3.0
_COLUMN_BYTES = 18  # of a column's description, after its name


def find_pgbouncer() -> str | None:
    """The program, where it is installed; Debian puts it where users do not look."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@asynccontextmanager
async def pgbouncer(program: str, server_dsn: str) -> AsyncGenerator[str]:
    """The connection string of the same server, behind a pooler that sees it by a port of its own.

    PgBouncer refuses to run as root, whose the embedded server's socket may be: it goes through a relay.
    """
    async with counting_proxy(server_dsn, Tally()) as by_port:
        server = urlsplit(by_port)
        user = unquote(server.username or "postgres")
        password = f" password={unquote(server.password)}" if server.password else ""
        with tempfile.TemporaryDirectory() as name, socket.socket() as free:
            os.chmod(name, 0o755)  # noqa: PTH101, S103 - of a folder that is there, in no time
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            free.close()
            configuration = Path(name) / "pgbouncer.ini"
            configuration.write_text(
                f"[databases]\n* = host=127.0.0.1 port={server.port} user={user}{password}\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
                f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 500\n"
            )
            configuration.chmod(0o644)
            command = [program, str(configuration), *(["-u", "nobody"] if os.geteuid() == 0 else [])]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - it is started once
            try:
                await _answers(process, port)
                yield f"postgresql://{user}@127.0.0.1:{port}{server.path}"
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait, _PATIENCE_S)


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


async def _answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise RuntimeError("PgBouncer did not start.")
