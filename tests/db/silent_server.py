"""Run in a network namespace of its own: a database whose network is gone in the middle of statements.

`python -m tests.db.silent_server SOCKET DATABASE` fails unless a statement that waits for its answer and one that is
sent afterwards end in time, and another runs once the network is there again.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter

from app.db.database import Database
from app.db.sql import Statement, sql
from app.domain.errors import DatabaseUnavailable

_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 1
_SLEEPS = sql("SELECT 1 FROM pg_sleep(100)")
_WAITING = sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")


def switch_network(*, on: bool) -> None:
    """Switches the loopback device, which is the only one here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _, flags = struct.unpack("16sh", fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))[:18])
        flags = flags | _IS_UP if on else flags & ~_IS_UP
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))


async def main(path: str, name: str) -> None:
    async def relay(reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(path)

        async def pump(source: StreamReader, sink: StreamWriter) -> None:
            while data := await source.read(65_536):
                sink.write(data)

        await asyncio.gather(pump(reader, to_server), pump(from_server, writer))

    async def run(statement: Statement) -> str:
        try:
            async with database.autocommit() as tx:
                return str(await tx.fetchval(statement))
        except DatabaseUnavailable as error:
            return error.code

    switch_network(on=True)
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    database = Database(f"postgresql://postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}/{name}", pool_size=3)
    one = sql("SELECT 1")
    await asyncio.gather(run(one), run(one))
    waiting = asyncio.create_task(run(_SLEEPS))
    while await run(_WAITING) != "1":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    switch_network(on=False)
    async with asyncio.timeout(60):
        assert await run(one) == "database_unavailable"
        assert await waiting == "database_unavailable"
    switch_network(on=True)
    assert await run(one) == "1"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
