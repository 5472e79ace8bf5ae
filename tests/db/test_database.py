"""A database that can not be had, in the words that services wait out."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from app.db.database import Database
from app.db.sql import compile_sql
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


async def test_a_worker_that_freezes_inside_a_transaction_loses_it_and_its_locks(database_url: str) -> None:
    at_once = compile_sql(sa.text("SELECT set_config('idle_in_transaction_session_timeout', '50ms', false)"))
    patience = compile_sql(sa.text("SELECT current_setting('idle_in_transaction_session_timeout')"))
    lock = compile_sql(sa.text("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE"))
    look = compile_sql(sa.text("SELECT count(*) FROM sessions"))
    looked: list[int] = []

    async def freeze(database: Database) -> None:
        async with database.begin() as frozen:
            assert await frozen.fetchval(patience) == "10s"
            await frozen.fetchval(at_once)
            await frozen.fetchval(lock)
            await asyncio.sleep(0.2)
            async with asyncio.timeout(5), database.autocommit() as other:
                looked.append(await other.fetchval(look))
            await frozen.fetchval(look)

    database = Database(database_url, pool_size=2)
    try:
        with pytest.raises(DatabaseUnavailable):
            await freeze(database)
        assert looked
    finally:
        await database.aclose()
