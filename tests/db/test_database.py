"""A database that can not be had, in the words that services wait out."""

from __future__ import annotations

import asyncio

import pytest

from app.db.database import Database
from app.domain.errors import DatabaseUnavailable

_STARTING = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
_FULL = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0"


@pytest.mark.parametrize("refusal", [_STARTING, _FULL], ids=["starting up", "too many clients"])
async def test_a_server_that_takes_no_connections_now_is_a_database_that_is_away(refusal: bytes) -> None:
    refused = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        refused += 1
        length = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(length - 4)
        writer.write(b"E" + (len(refusal) + 4).to_bytes(4, "big") + refusal)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    database = Database(f"postgresql://somebody@127.0.0.1:{port}/any?sslmode=disable", pool_size=1)
    try:
        with pytest.raises(DatabaseUnavailable):
            async with database.begin():
                pass
        assert refused > 0
    finally:
        await database.aclose()
        server.close()
