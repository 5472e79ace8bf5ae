"""A database that can not be had, in the words that services wait out."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from time import monotonic
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from app.commands.resources import on_database
from app.core.fairness import tenant_at_work
from app.db.database import Database
from app.db.migrate import upgrade
from app.db.schema import reach
from app.db.sql import sql
from app.domain.errors import DatabaseUnavailable
from bench.wire import open_connection_to, pump
from tests.freed import assert_is_freed, frees_failed_blocks, no_collections
from tests.pooling import own_database, past_pooler
from torture.databases import execute

_STARTING = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
_FULL = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0"
_POOLER_FULL = b"SFATAL\0C08P01\0Mno more connections allowed (max_client_conn)\0\0"


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


@asynccontextmanager
async def _relayed(database_url: str) -> AsyncGenerator[tuple[str, int]]:
    """The database's user, and a port of this machine at which its server answers."""
    server_url, relays = past_pooler(database_url), set[asyncio.Task[None]]()

    async def relay(reader: StreamReader, writer: StreamWriter) -> None:
        there, back = await open_connection_to(server_url)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    def take(reader: StreamReader, writer: StreamWriter) -> None:
        relays.add(asyncio.create_task(relay(reader, writer)))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield urlsplit(server_url).username or "", server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in relays:
            task.cancel()


async def test_a_server_that_answers_nothing_does_not_keep_commands_and_service_from_the_next_one(
    database_url: str,
) -> None:
    """A machine that froze: its kernel takes connections, its Postgres does not answer."""
    name = urlsplit(database_url).path
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        async with _relayed(database_url) as (user, port):
            url = f"postgresql://{user}@127.0.0.1:{frozen.getsockname()[1]},127.0.0.1:{port}{name}?sslmode=disable"
            assert (await reach(url, transaction_pooler=True)).can_be_served
            await upgrade(url)
            database = Database(url, pool_size=1)
            async with database.autocommit() as tx:
                assert await tx.fetchval(sql("SELECT 1")) == 1
            await database.aclose()
        frozen.setblocking(False)
        frozen.accept()[0].close()  # it was tried


async def test_a_read_only_server_is_why_there_is_no_connection_also_when_the_other_one_is_gone(
    database_url: str,
) -> None:
    name = urlsplit(database_url).path
    await execute(past_pooler(database_url), f"ALTER DATABASE {name[1:]} SET default_transaction_read_only = on")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone: int = closed.getsockname()[1]
    async with _relayed(database_url) as (user, port):
        query = "sslmode=disable&target_session_attrs=read-write"
        database = Database(f"postgresql://{user}@127.0.0.1:{port},127.0.0.1:{gone}{name}?{query}", pool_size=1)
        with pytest.raises(DatabaseUnavailable) as away:
            async with database.begin():
                pass
        assert "read-write" in str(away.value.__cause__)
        await database.aclose()


@asynccontextmanager
async def _server_with_room_for_two(database_url: str) -> AsyncGenerator[str]:
    name = f"served_{uuid4().hex[:12]}"
    parts = urlsplit(past_pooler(database_url))
    await execute(database_url, f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 2")
    try:
        yield urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
    finally:
        await execute(database_url, f"DROP ROLE {name}")


@asynccontextmanager
async def _pooler_with_room_for_two(database_url: str) -> AsyncGenerator[str]:
    admitted: set[asyncio.Task[None]] = set()
    server = past_pooler(database_url)

    async def relay(reader: StreamReader, writer: StreamWriter) -> None:
        there, back = await open_connection_to(server)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def admit(reader: StreamReader, writer: StreamWriter) -> None:
        if len(admitted) == 2:
            await reader.read(1)
            writer.write(b"E" + (len(_POOLER_FULL) + 4).to_bytes(4, "big") + _POOLER_FULL)
            return writer.close()
        task = asyncio.create_task(relay(reader, writer))
        admitted.add(task)
        return task.add_done_callback(admitted.discard)

    listening = await asyncio.start_server(admit, "127.0.0.1", 0)
    port: int = listening.sockets[0].getsockname()[1]
    user = urlsplit(server).username or "postgres"
    try:
        yield f"postgresql://{user}@127.0.0.1:{port}{urlsplit(server).path}?sslmode=disable"
    finally:
        listening.close()
        await asyncio.gather(*admitted, return_exceptions=True)


@pytest.mark.parametrize("full", [_server_with_room_for_two, _pooler_with_room_for_two])
async def test_while_the_server_has_no_more_connections_those_that_a_process_has_serve_all_its_tenants(
    database_url: str, full: Callable[[str], AbstractAsyncContextManager[str]]
) -> None:
    refused: list[str] = []

    async def work(database: Database, tenant: str) -> float:
        tenant_at_work.set(tenant)
        began = monotonic()
        try:
            async with database.begin() as tx:
                await tx.fetchval(sql("SELECT pg_sleep(0.02)"))
        except DatabaseUnavailable as error:
            refused.append(f"{tenant}: {error.detail}")
        return monotonic() - began

    async with full(database_url) as url:
        database, another = (Database(url, pool_size=10, tenant_ratio=0.75) for _ in range(2))
        try:
            many = [asyncio.create_task(work(database, "many")) for _ in range(100)]
            await asyncio.sleep(0.2)
            few = [await asyncio.create_task(work(database, "few")) for _ in range(5)]
            assert not any(task.done() for task in many[-3:]), "the other tenant's are over"
            await asyncio.gather(*many)
            assert refused == []
            assert max(few) < 1, "waiting tenants get a connection in turn"
            async with database.autocommit(), database.autocommit():
                with pytest.raises(DatabaseUnavailable, match="no connection left"):  # it has none to wait for
                    async with another.autocommit():
                        pass
        finally:
            await database.aclose()
            await another.aclose()


async def test_citus_errors_about_a_lost_node_count_as_an_unavailable_database(database_url: str) -> None:
    """All of it has the code of an internal error, which on its own is none of these."""
    at_a_node = 'pg_temp."while executing command on 10.0.0.1:5432"'
    database = Database(past_pooler(database_url), pool_size=1)  # temporary functions stay with their connection
    try:
        async with database.autocommit() as connection:
            for name in (at_a_node, "pg_temp.elsewhere"):
                raises = "BEGIN RAISE EXCEPTION '%', message USING ERRCODE = 'XX000'; END"
                await connection.fetch(
                    sql(f"CREATE FUNCTION {name}(message text) RETURNS text LANGUAGE plpgsql AS $${raises}$$")
                )
        for name, message in (
            (at_a_node, "server closed the connection unexpectedly"),
            ("pg_temp.elsewhere", "failure on connection marked as essential: 10.0.0.1:5432"),
        ):
            with pytest.raises(DatabaseUnavailable):
                async with database.begin() as tx:
                    await tx.fetchval(sql(f"SELECT {name}(:message)"), message=message)
        with pytest.raises(asyncpg.InternalServerError):
            async with database.begin() as tx:
                await tx.fetchval(sql("SELECT pg_temp.elsewhere(:message)"), message="cache lookup failed")
    finally:
        await database.aclose()


async def test_connections_that_a_server_lost_without_a_word_are_one_failure_and_not_one_each(
    database_url: str,
) -> None:
    parts = urlsplit(past_pooler(database_url))
    if (socket := _socket_file(parts)) is None:
        pytest.skip("this needs a server with a socket file")
    opened: list[StreamWriter] = []
    ended: list[asyncio.Future[None]] = []
    lost: set[StreamWriter] = set()

    async def relay(reader: StreamReader, writer: StreamWriter, client: StreamWriter) -> None:
        while data := await reader.read(65_536):
            if client in lost:
                client.transport.abort()
                return
            writer.write(data)
        writer.close()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        opened.append(writer)
        ended.append(asyncio.get_running_loop().create_future())
        from_server, to_server = await asyncio.open_unix_connection(socket)
        back = asyncio.create_task(relay(from_server, writer, writer))
        with suppress(ConnectionError):
            await relay(reader, to_server, writer)
        to_server.close()
        await back
        ended[opened.index(writer)].set_result(None)

    one = sql("SELECT 1")
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    database = Database(f"postgresql://{parts.netloc}127.0.0.1:{port}{parts.path}?sslmode=disable", pool_size=3)
    try:
        async with database.begin(), database.begin(), database.begin():
            pass
        lost.update(opened)
        with pytest.raises(DatabaseUnavailable):
            async with database.begin():
                pass
        for _ in range(3):
            async with database.begin() as first, database.begin() as second:
                assert await first.fetchval(one) + await second.fetchval(one) == 2
        assert len(opened) == 5
    finally:
        await database.aclose()
        server.close()
        async with asyncio.timeout(30):
            await asyncio.gather(*ended)


@pytest.mark.parametrize("of_a_command", [False, True], ids=["worker", "command"])
async def test_a_process_that_freezes_inside_a_transaction_loses_it_and_its_locks(
    database_url: str, of_a_command: bool
) -> None:
    at_once = sql("SELECT set_config('idle_in_transaction_session_timeout', '50ms', true)")
    patience = sql("SELECT current_setting('idle_in_transaction_session_timeout')")
    lock = sql("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
    look = sql("SELECT count(*) FROM sessions")
    looked: list[int] = []

    async def freeze(database: Database) -> None:
        async with database.begin() as frozen:
            assert await frozen.fetchval(patience) == "10s"
            await frozen.fetchval(at_once)
            await frozen.fetchval(lock)
            await asyncio.sleep(0.2)
            async with asyncio.timeout(30), others.autocommit() as other:
                looked.append(await other.fetchval(look))
            await frozen.fetchval(look)

    url = past_pooler(database_url)
    others = Database(url, pool_size=1)
    database = Database(url, pool_size=1)
    try:
        with pytest.raises(DatabaseUnavailable):
            await (on_database(url, freeze) if of_a_command else freeze(database))
        assert looked
    finally:
        await database.aclose()
        await others.aclose()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("autocommit", [False, True], ids=["transaction", "single statement"])
async def test_a_stricter_isolation_level_of_the_database_does_not_make_a_wait_a_conflict(
    postgres_server: str, database_url: str, level: str, autocommit: bool
) -> None:
    raise_it = sql("UPDATE raised SET by_now = by_now + 1 RETURNING by_now")
    waits_here = sql("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'tuple' AND relation = 'raised'::regclass)")
    await execute(database_url, "CREATE TABLE raised AS SELECT 1 AS by_now")
    name = urlsplit(database_url).path[1:]
    await execute(postgres_server, f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    database = own_database(database_url, pool_size=2)

    async def raise_after_the_wait() -> int:
        async with database.autocommit() if autocommit else database.begin() as tx:
            return await tx.fetchval(raise_it)

    try:
        async with database.begin() as first:
            await first.fetchval(raise_it)
            waits = asyncio.create_task(raise_after_the_wait())
            while not await first.fetchval(waits_here):  # noqa: ASYNC110 - the server waits, nothing here is set
                await asyncio.sleep(0.01)
        assert await waits == 3
    finally:
        await database.aclose()


async def test_a_statement_that_the_databases_timeout_ends_is_not_called_a_server_that_is_away(
    postgres_server: str, database_url: str
) -> None:
    name = urlsplit(database_url).path[1:]
    await execute(postgres_server, f"ALTER DATABASE {name} SET statement_timeout = '1s'")  # to connect takes less
    database = own_database(database_url)
    try:
        with pytest.raises(DatabaseUnavailable, match="statement timeout"):
            async with database.begin() as tx:
                await tx.fetchval(sql("SELECT pg_sleep(20)"))
    finally:
        await database.aclose()


async def test_a_cancelled_begin_takes_nothing_with_it_that_others_store_on_its_connection(database_url: str) -> None:
    async def begin() -> None:
        async with database.begin():
            pass

    backend = sql("SELECT pg_backend_pid()")
    database, other = (Database(past_pooler(database_url), pool_size=2) for _ in range(2))
    async with database.autocommit() as tx, database.autocommit() as another:
        await tx.fetch(sql("CREATE TABLE kept (at integer)"))
        backends = {await tx.fetchval(backend), await another.fetchval(backend)}
    beginning = asyncio.create_task(begin())
    await asyncio.sleep(0)  # BEGIN is on its way
    beginning.cancel()
    assert isinstance(*await asyncio.gather(beginning, return_exceptions=True), asyncio.CancelledError)
    async with database.autocommit() as tx:
        await tx.execute(sql("INSERT INTO kept VALUES (1)"))
        assert await tx.fetchval(backend) in backends, "only the connection of the BEGIN is closed"
    async with other.autocommit() as tx:
        assert await tx.fetchval(sql("SELECT at FROM kept")) == 1
    await database.aclose()
    await other.aclose()


def test_a_server_whose_network_is_gone_is_a_database_that_is_away(database_url: str) -> None:
    url = urlsplit(past_pooler(database_url))
    socket, isolated = _socket_file(url), ("unshare", "--map-root-user", "--net")
    if socket is None or shutil.which("unshare") is None or subprocess.run([*isolated, "true"]).returncode:  # noqa: PLW1510
        pytest.skip("this needs a server with a socket file, and a kernel that allows namespaces of networks")
    program = (sys.executable, "-m", "tests.db.silent_server", socket, url.path[1:])
    subprocess.run([*isolated, *program], check=True, timeout=150)


def _socket_file(url: SplitResult) -> str | None:
    where = parse_qs(url.query)
    return f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}" if "host" in where else None


@frees_failed_blocks
async def test_a_failed_transaction_is_freed_with_its_caller_without_a_collection(database_url: str) -> None:
    """Its error referred to a frame that referred to it: bodies and windows of such requests stayed in memory."""
    database = Database(database_url, pool_size=1)

    async def fail() -> None:
        async with database.begin() as tx:
            await tx.fetch(sql("SELECT 1 FROM no_such_table"))

    with no_collections():
        await assert_is_freed(fail, DatabaseUnavailable)
    await database.aclose()
