"""A connection to the server: how it is opened and set up, and what its errors mean. `db/database.py` has the pool."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias, cast
from uuid import UUID

import asyncpg
import orjson
from asyncpg.pgproto import pgproto
from uuid_utils import uuid7

from app.core.connection_string import servers_of
from app.domain.errors import DatabaseUnavailable, NotFound, SessionBusy, TransactionConflict
from app.domain.stored import JsonText

Record: TypeAlias = Mapping[str, Any]
"""A row, by column name."""


def new_id() -> UUID:
    """A UUIDv7 of the driver's type, as ids in rows are: Python's own takes three times as long to make."""
    return cast(Any, pgproto).UUID(uuid7().bytes)


class Driver(Protocol):
    """The methods of an asyncpg connection that are used here, with types (its own signatures have none)."""

    async def fetch(self, query: str, *args: Any) -> list[Record]: ...
    async def fetchrow(self, query: str, *args: Any) -> Record | None: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def execute(self, query: str, *args: Any) -> str: ...
    async def set_type_codec(self, typename: str, **how: Any) -> None: ...
    def get_settings(self) -> object: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,  # the server shuts down or starts
    asyncpg.InsufficientResourcesError,  # too many connections, out of memory, a full disk
    asyncpg.PostgresSystemError,  # the server's disk fails
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.UnknownPostgresError,  # from Citus, when a statement lost a node while it ran
    asyncpg.InternalClientError,  # the server ended while a connection to it was made
    OSError,  # refused, reset, timed out; no such host, no route, no socket file
)
# Messages of Citus, which have no code of their own, about a node that ended during a transaction.
_LOST_A_NODE = (
    "could not commit transaction for shard",
    "could not find valid entry for shard",  # it moved to another node
    "failed to prepare transaction",
    "failure on connection marked as essential",
    "Query could not find the intermediate result file",
)
_AT_A_NODE = "while executing command on "
"""In the context of an error that came from a node, or that libpq raised when the connection to a node ended."""

_POOLER_IS_FULL = "no more connections allowed"
"""What PgBouncer says of its limits on clients, with the code of a violated protocol."""

_NEXT_SERVER_AFTER_S: Final = 1.0
"""How long the next server of several waits for an answer of the one before it."""

IDLE_LIMIT: Final = "10s"
# A process that freezes inside a transaction (stopped, swapped out, cut off) holds its locks for `IDLE_LIMIT` at most.
# Large tables make estimates so high that statements of a millisecond are compiled, each time for 10 ms and more.
# A plan that was made while a table had one page would read all of it, for minutes after it has grown. For some rows of
# a range in their order, a bitmap of the whole range would be made, and all of its rows sorted.
# Under a stricter isolation level that is set for the database or the role, whoever waited for a lock gets a conflict.
SERVER_SETTINGS = {
    "application_name": "plimsoll",
    "default_transaction_isolation": "read committed",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": IDLE_LIMIT,
    "jit": "off",
}
# PgBouncer refuses start-up parameters that it does not track.
SETTINGS_BEHIND_A_POOLER = {"application_name": "plimsoll"}

# Every statement has one good plan, by key and range, and planning it at each call would take longer than running it.
# Citus must know the session to find its node, and has no generic plan for some statements: there Postgres chooses.
# A statement whose connection was closed runs to its end, for minutes, unless its server looks for that; Linux can.
_CHOOSE_SETTINGS = """
    SELECT is_citus
    FROM (SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS is_citus) AS server,
        set_config('plan_cache_mode', CASE WHEN is_citus THEN 'auto' ELSE 'force_generic_plan' END, false) AS plans,
        set_config('client_connection_check_interval', CASE WHEN version() LIKE '%linux%' THEN '2s'
            ELSE current_setting('client_connection_check_interval') END, false) AS checks
"""

# A server whose machine or network is gone sends nothing, not even an end. The kernel waits for it for a quarter of an
# hour, and if it owes an answer for ever. Some systems have only a part of these options.
_SILENCE_S: Final = 15
_SOCKET_OPTIONS: Final = {
    "TCP_KEEPIDLE": _SILENCE_S // 3,
    "TCP_KEEPINTVL": _SILENCE_S // 3,
    "TCP_KEEPCNT": 2,
    "TCP_USER_TIMEOUT": _SILENCE_S * 1000,
}

LOCKED: Final = "Other work held a lock that this request needs for too long; nothing was stored."


class ServerFull(DatabaseUnavailable):
    """The server, or the pooler before it, has no room for one more connection."""


class UniqueViolated(Exception):
    """A unique constraint or index, which the message names, refused a row."""


class _Connection(asyncpg.Connection):
    """A connection that is lost once its server has acknowledged nothing for `_SILENCE_S` seconds."""

    __slots__ = ()

    def __init__(self, protocol: Any, transport: Any, *others: Any) -> None:
        super().__init__(protocol, transport, *others)  # pyright: ignore[reportUnknownMemberType] asyncpg is only half typed
        tcp = transport.get_extra_info("socket")
        if tcp.family != socket.AF_UNIX:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _SOCKET_OPTIONS.items():
                if hasattr(socket, name):
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def connect_to_any(dsn: str, **how: Any) -> Any:
    """A connection as the driver makes one, to the first server of the string that can be used. One that gives no
    answer, as a frozen machine does, keeps the next from being tried for a second only. If none can be used, raises
    what a server said rather than that another cannot be reached."""
    waiting, attempts, running = [*servers_of(dsn)], list[asyncio.Task[Any]](), set[asyncio.Task[Any]]()
    chosen = None
    try:
        while chosen is None and (waiting or running):
            if waiting:
                attempts.append(asyncio.create_task(cast(Any, asyncpg).connect(waiting.pop(0), **how)))
                running.add(attempts[-1])
            patience_s = _NEXT_SERVER_AFTER_S if waiting else None
            done, running = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            chosen = next((attempt for attempt in done if attempt.exception() is None), None)
    finally:
        for attempt in attempts:
            if attempt is not chosen:
                attempt.add_done_callback(_let_go)
                attempt.cancel()
    if chosen is None:
        raise min((error for attempt in attempts if (error := attempt.exception())), key=_distance)
    return chosen.result()


def _let_go(attempt: asyncio.Task[Any]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


def _distance(error: BaseException) -> int:
    """How far the attempt was from a connection: the server refused it, is not of the kind asked for, is not there."""
    return 0 if isinstance(error, asyncpg.PostgresError) else 2 if isinstance(error, OSError) else 1


async def connect(dsn: str, *, timeout_s: float, lock_timeout: str, transaction_pooler: bool) -> tuple[Driver, bool]:
    """A new connection, and whether its server was found to have Citus. Behind a `transaction_pooler` nothing is
    prepared, and the connection has no settings. Raises `ServerFull`, `DatabaseUnavailable`, and the driver's
    errors of a server that cannot be reached."""
    how: dict[str, Any] = {"server_settings": {**SERVER_SETTINGS, "lock_timeout": lock_timeout}}
    if transaction_pooler:
        how = {"statement_cache_size": 0, "server_settings": SETTINGS_BEHIND_A_POOLER}
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect_to_any(dsn, connection_class=_Connection, **how)
            return connection, await _set_up(connection, chooses_settings=not transaction_pooler)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if isinstance(error, asyncpg.TooManyConnectionsError) or str(error).startswith(_POOLER_IS_FULL):
            raise ServerFull("The database has no connection left.") from error
        raise DatabaseUnavailable("The database takes no connections now.") from error


async def _set_up(connection: Driver, *, chooses_settings: bool) -> bool:
    """Sets a new connection up to decode JSON and, with `chooses_settings`, as its server needs it. Returns whether the
    server was found to have Citus."""
    try:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name, schema="pg_catalog", encoder=_column_json, decoder=orjson.loads, format="text"
            )
        return chooses_settings and await connection.fetchval(_CHOOSE_SETTINGS)
    except BaseException:
        connection.terminate()
        raise


def _column_json(value: object) -> str:
    if isinstance(value, JsonText):
        return value
    return orjson.dumps(value, default=_plain).decode()


def _plain(value: object) -> object:
    if isinstance(value, Decimal | UUID):  # the driver's UUIDs are a subclass, which orjson does not encode
        return str(value)
    if isinstance(value, (tuple, frozenset, set)):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"{type(value).__name__} is no JSON")


def reports_read_only(connection: Driver) -> bool:
    """Whether the server's last reported settings say that it is read-only; a pooler may not pass them on."""
    reported: Any = connection.get_settings()
    return "on" in (getattr(reported, "in_hot_standby", ""), getattr(reported, "default_transaction_read_only", ""))


_UNREACHABLE: Final = "The database cannot be reached."
_ANOTHER_SCHEMA: Final = (
    "The schema lacks a table or column of this version; run the migrations, unless later ones have run."
)
_UNAVAILABLE: Final[Mapping[type, str]] = {
    **dict.fromkeys(GONE, _UNREACHABLE),
    asyncpg.UndefinedTableError: _ANOTHER_SCHEMA,
    asyncpg.UndefinedColumnError: _ANOTHER_SCHEMA,
    asyncpg.InsufficientPrivilegeError: (
        "The database's user may not do this; grant it all rights on the tables, and leave their row security off."
    ),
    asyncpg.ReadOnlySQLTransactionError: "The database is read-only now.",
    asyncpg.QueryCanceledError: "The database did not finish a statement: {}.",
    asyncpg.InsufficientResourcesError: "The database has no disk, memory or connection left.",
}
"""What a `DatabaseUnavailable` says of the driver's errors of these classes."""


def raise_meaning(error: Exception) -> None:
    """Raises what `Database.begin` raises for an error of the driver; returns if the error is another one."""
    match error:
        case asyncpg.LockNotAvailableError():
            raise SessionBusy(LOCKED) from error
        case asyncpg.UniqueViolationError():
            raise UniqueViolated(cast(Any, error).constraint_name) from error
        case asyncpg.ForeignKeyViolationError():
            raise NotFound("session") from error  # every foreign key leads to a session: it was erased meanwhile
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            raise TransactionConflict("The database could not do this beside other work; try again.") from error
        case asyncpg.InternalServerError() if str(error).startswith(_LOST_A_NODE) or _AT_A_NODE in (
            cast(Any, error).context or ""
        ):
            raise DatabaseUnavailable(_UNREACHABLE) from error
        case _:
            detail = next((_UNAVAILABLE[kind] for kind in type(error).__mro__ if kind in _UNAVAILABLE), None)
            if detail is not None:
                raise DatabaseUnavailable(detail.format(error)) from error
