"""Connections and transactions. SQLAlchemy owns the pool; statements run on asyncpg as `db/sql.py` compiled them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from time import perf_counter
from typing import Any, Protocol, TypeAlias, cast
from uuid import UUID

import asyncpg
import orjson
from sqlalchemy import event
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import greenlet_spawn

from app.db.sql import Statement
from app.domain.errors import DatabaseUnavailable, NotFound

Record: TypeAlias = Mapping[str, Any]
"""A row, by column name."""


class _Driver(Protocol):
    """What we use of an asyncpg connection, typed (its own signatures are not)."""

    async def fetch(self, query: str, *args: Any) -> list[Record]: ...
    async def fetchrow(self, query: str, *args: Any) -> Record | None: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def execute(self, query: str, *args: Any) -> str: ...
    async def executemany(self, command: str, args: Sequence[Sequence[Any]]) -> None: ...
    async def set_type_codec(self, typename: str, **how: Any) -> None: ...
    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[None]: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...


_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    PoolTimeoutError,
    OSError,  # refused, reset, timed out; no such host, no route, no socket file
)


# Every statement has one good plan, by key and range; planning it again at each call costs more than running it.
# A worker that freezes inside a transaction (stopped, swapped out, cut off) holds a session's lock for no longer.
_SERVER_SETTINGS = {
    "application_name": "plimsoll",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": "10s",
}
# PgBouncer refuses start-up parameters that it does not track.
_SETTINGS_BEHIND_A_POOLER = {"application_name": "plimsoll"}


class UniqueViolated(Exception):
    """A unique constraint or index refused a row; `constraint` is its name."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class Transaction:
    """Statements of one transaction. A failed statement aborts it."""

    def __init__(self, connection: _Driver) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        """All rows."""
        return await self._connection.fetch(statement.text, *statement.arguments(parameters))

    async def fetchrow(self, statement: Statement, **parameters: Any) -> Record | None:
        """The first row, or None."""
        return await self._connection.fetchrow(statement.text, *statement.arguments(parameters))

    async def fetchval(self, statement: Statement, **parameters: Any) -> Any:
        """The first column of the first row, or None."""
        return await self._connection.fetchval(statement.text, *statement.arguments(parameters))

    async def execute(self, statement: Statement, **parameters: Any) -> int:
        """Runs it; the number of rows it touched."""
        status = await self._connection.execute(statement.text, *statement.arguments(parameters))
        return int(status.rsplit(" ", 1)[-1])

    async def execute_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """Runs it once a row, in one round trip."""
        await self._connection.executemany(statement.text, [statement.arguments(row) for row in rows])


class PoolWatch(Protocol):
    """Who is told of every connection that is lent."""

    def connection_waited_for(self, seconds: float) -> None:
        """A connection was had, or given up, after so long."""
        ...

    def connection_used(self, seconds: float) -> None:
        """A connection was given back after so long."""
        ...


class Database:
    """The pool. `begin()` is a transaction; `autocommit()` saves a lone statement its BEGIN and COMMIT.

    With `transaction_pooler` a pooler stands before the server that changes servers between transactions (PgBouncer's
    transaction mode): nothing is prepared, no session has settings, and every statement runs in a transaction.
    """

    def __init__(
        self, dsn: str, *, pool_size: int, pool_timeout_s: float = 10.0, transaction_pooler: bool = False
    ) -> None:
        how: dict[str, Any] = {"server_settings": _SERVER_SETTINGS}
        if transaction_pooler:
            how = {"statement_cache_size": 0, "server_settings": _SETTINGS_BEHIND_A_POOLER}

        async def connect() -> Any:
            try:
                return await cast(Any, asyncpg).connect(dsn, timeout=pool_timeout_s, **how)
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # A server that starts, stops or is full. SQLAlchemy would make an error of its own of it, which says
                # less, and which nobody waits out.
                raise DatabaseUnavailable("The database takes no connections now.") from error

        self._transaction_pooler = transaction_pooler
        self._watch: PoolWatch | None = None
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout_s,
            hide_parameters=True,
        )
        # After SQLAlchemy's own codecs, which hand JSON over as text; nothing here runs through its type system.
        event.listen(self._engine.sync_engine, "connect", _set_json_codecs)

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False) -> AsyncGenerator[Transaction]:
        """One transaction: committed when the block ends, rolled back when it raises.

        With `snapshot` all its statements see the database as it was at the first one.
        Raises `DatabaseUnavailable` when no connection can be had or it is lost, `UniqueViolated` for a duplicate, and
        `NotFound` for a row of a session that was erased meanwhile.
        """
        isolation = "repeatable_read" if snapshot else None
        async with self._connection() as connection, connection.transaction(isolation=isolation):
            yield Transaction(connection)

    @asynccontextmanager
    async def read_only(self) -> AsyncGenerator[Transaction]:
        """One transaction of one moment's view, in which the database itself refuses to write. Raises as `begin`."""
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield Transaction(connection)

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[Transaction]:
        """A connection on which every statement is its own transaction. Raises as `begin`.

        Behind a pooler the whole block is one: what a driver parses and what it runs would reach different servers.
        """
        if self._transaction_pooler:
            async with self.begin() as transaction:
                yield transaction
            return
        async with self._connection() as connection:
            yield Transaction(connection)

    def watched_by(self, watch: PoolWatch) -> None:
        """Has every wait for a connection, and every use of one, told from now on."""
        self._watch = watch

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[_Driver]:
        asked = lent = perf_counter()
        try:
            try:
                fairy = await self._checkout()
            finally:
                lent = perf_counter()
                if self._watch is not None:
                    self._watch.connection_waited_for(lent - asked)
            connection = cast(_Driver, fairy.driver_connection)
            try:
                yield connection
            finally:
                # A cancellation may have cut the rollback short: such a connection is not given to anyone else.
                if connection.is_closed() or connection.is_in_transaction():
                    fairy.invalidate()
                    if not connection.is_closed():
                        connection.terminate()
                await greenlet_spawn(fairy.close)
                if self._watch is not None:
                    self._watch.connection_used(perf_counter() - lent)
        except asyncpg.UniqueViolationError as error:
            raise UniqueViolated(str(cast(Any, error).constraint_name or "")) from error
        except asyncpg.ForeignKeyViolationError as error:
            raise NotFound("session") from error  # every foreign key leads to one: it was erased meanwhile
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise DatabaseUnavailable("The database's schema is behind this version; run the migrations.") from error
        except _GONE as error:
            raise DatabaseUnavailable("The database can not be reached.") from error

    async def _checkout(self) -> Any:
        while True:
            fairy = cast(Any, await self._engine.raw_connection())
            if not cast(_Driver, fairy.driver_connection).is_closed():
                return fairy
            # The server went away while this one sat in the pool; each such connection is met once.
            fairy.invalidate()
            await greenlet_spawn(fairy.close)

    @property
    def pool_status(self) -> str:
        """One line for people: size, checked in, checked out."""
        return self._engine.pool.status()

    async def aclose(self) -> None:
        """Closes the idle connections."""
        await self._engine.dispose()


def _set_json_codecs(dbapi_connection: Any, _record: object) -> None:
    async def on_driver(connection: _Driver) -> None:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name, schema="pg_catalog", encoder=_encode_json, decoder=orjson.loads, format="text"
            )

    dbapi_connection.run_async(on_driver)


def _encode_json(value: object) -> str:
    return orjson.dumps(value, default=_encode_other).decode()


def _encode_other(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, UUID):
        return str(value)  # the driver's are a subclass, which orjson leaves to us
    if isinstance(value, (tuple, frozenset, set)):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"{type(value).__name__} is no JSON")
