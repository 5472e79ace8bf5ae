"""The pool of connections, and transactions; statements run on asyncpg as `db/sql.py` compiled them.

A function of this package that takes a `SessionRef` finds only a session of that tenant. Of one that takes a
`SessionId`, the caller has checked that the tenant owns the session.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, is_dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast
from uuid import UUID

import asyncpg

from app.core.fairness import FairGate, share_of, tenant_at_work
from app.db.driver import (
    GONE,
    IDLE_LIMIT,
    LOCKED,
    Driver,
    Record,
    ServerFull,
    connect,
    raise_meaning,
    reports_read_only,
)
from app.db.sql import Statement
from app.domain.errors import DatabaseUnavailable, SessionBusy
from app.domain.frozen import frozen, names_of

P = ParamSpec("P")
R = TypeVar("R")
Kind: TypeAlias = type[R] | Callable[[Record], R]
"""What a row is read as: a dataclass whose fields have the names of the columns, or what a function makes of it."""
Position = TypeVar("Position", UUID, int)

_IS_READ_ONLY = Statement("SELECT current_setting('transaction_read_only') = 'on'", ())

# Settings of a connection stay on the coordinator. With the first of these, those of a transaction reach its nodes; a
# server without Citus ignores that name.
_SET_LOCK_TIMEOUT = "SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL lock_timeout = '{}'"
_SET_IDLE_LIMIT = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT}'"

_NO_BOUND = sys.maxsize
_FULL_S = 1.0
"""Time until a connection is opened again in place of one that the server had no room for."""


@frozen
class Fetched(Generic[R]):
    """The rows of a page in list order, and whether more follow."""

    rows: list[R]
    has_more: bool


@frozen
class PageBounds(Generic[Position]):
    """The part of a list that a page has: at most `limit` items between two positions, newest or oldest first."""

    after: Position
    before: Position
    limit: int
    newest_first: bool


class Transaction:
    """Statements of one transaction. A failed statement aborts it."""

    def __init__(self, connection: Driver) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        return await self._connection.fetch(statement.text, *statement.arguments(parameters))

    async def fetchrow(self, statement: Statement, **parameters: Any) -> Record | None:
        return await self._connection.fetchrow(statement.text, *statement.arguments(parameters))

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Record:
        """The row of a statement that always gives one, as an aggregate does."""
        row = await self.fetchrow(statement, **parameters)
        assert row is not None, statement.text
        return row

    async def fetch_records(self, kind: Kind[R], statement: Statement, **parameters: Any) -> list[R]:
        return list(map(_reader_of(kind), await self.fetch(statement, **parameters)))

    async def fetch_record(self, kind: Kind[R], statement: Statement, **parameters: Any) -> R | None:
        """The first row, or None."""
        row = await self.fetchrow(statement, **parameters)
        return None if row is None else _reader_of(kind)(row)

    async def fetch_between(
        self, kind: Kind[R], in_order: Mapping[bool, Statement], bounds: PageBounds[Any], **parameters: Any
    ) -> Fetched[R]:
        """The rows within the bounds of a list (`listed`), as `fetch_page`."""
        statement, after, before = in_order[bounds.newest_first], bounds.after, bounds.before
        return await self.fetch_page(kind, statement, bounds.limit, after=after, before=before, **parameters)

    async def fetch_page(self, kind: Kind[R], statement: Statement, limit: int, **parameters: Any) -> Fetched[R]:
        """At most `limit` rows of a list (`paged`): fewer if there are no more, or if they are large."""
        rows = await self.fetch(statement, limit=limit + 1, **parameters)
        page = rows[:limit]
        return Fetched(list(map(_reader_of(kind), page)), bool(rows) and rows[0]["rows_read"] > len(page))

    async def fetchval(self, statement: Statement, **parameters: Any) -> Any:
        """The first column of the first row, or None."""
        return await self._connection.fetchval(statement.text, *statement.arguments(parameters))

    async def execute(self, statement: Statement, **parameters: Any) -> int:
        """Runs the statement; returns the number of affected rows."""
        status = await self._connection.execute(statement.text, *statement.arguments(parameters))
        return int(status.rsplit(" ", 1)[-1])


@dataclass(slots=True)
class _Pooled:
    """A connection and when it was opened, by `monotonic`. `is_known` is false while it is not known whether the server
    has begun a transaction on it. `tenant` has it since `lent_at`, by `perf_counter`; infinite while it is idle."""

    connection: Driver
    opened_at: float
    is_known: bool = True
    tenant: str | None = None
    lent_at: float = math.inf
    is_watched: bool = False


class Database:
    """The connection pool. `begin()` is a transaction; `autocommit()` saves a single statement its BEGIN and COMMIT.

    One tenant (`core/fairness.py`) has at most `tenant_ratio` of the connections at once, and waiting tenants get one
    in turn. A connection that is in use for longer than `longest_use_s` is closed: a server whose processes or disk are
    frozen still acknowledges what it is sent, so that its connections are not lost by themselves.

    With `transaction_pooler` a pooler before the server may change connections between transactions (PgBouncer's
    transaction mode): nothing is prepared, connections have no settings, every statement runs in a transaction.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int,
        tenant_ratio: float = 1.0,
        pool_timeout_s: float = 10.0,
        lock_timeout_s: float = 5.0,
        longest_use_s: float | None = None,
        transaction_pooler: bool = False,
    ) -> None:
        lock_timeout = f"{round(lock_timeout_s * 1000)}ms"
        self._connect = partial(
            connect, dsn, timeout_s=pool_timeout_s, lock_timeout=lock_timeout, transaction_pooler=transaction_pooler
        )
        self.pool_size = pool_size
        self._transaction_pooler = transaction_pooler
        self._set_locally = transaction_pooler
        self._set_lock_timeout = _SET_LOCK_TIMEOUT.format(lock_timeout)
        self._timeout_s = pool_timeout_s
        self._longest_use_s = longest_use_s
        self._tenants = FairGate(pool_size, share_of(pool_size, tenant_ratio))
        self._sessions = FairGate(_NO_BOUND, 1)
        self._left_at = -1.0
        self._waited: Callable[[float], object] = lambda _: None
        self._used: Callable[[float], object] = lambda _: None
        self._idle: list[_Pooled] = []
        self._in_use = 0
        self._is_closed = False

    def begin(self, *, snapshot: bool = False, locking: UUID | None = None) -> AbstractAsyncContextManager[Transaction]:
        """One transaction: committed when the block ends, rolled back when it raises.

        With `snapshot` all its statements see the database as it was at the first one. `locking` is the session whose
        row it locks: of this process's transactions that lock the same session, only one at a time has a connection.
        Raises `DatabaseUnavailable` when there is no connection or it is lost, `SessionBusy` when the wait for a lock
        was too long, `TransactionConflict` when it was rolled back in favour of another transaction, `UniqueViolated`
        for a duplicate, and `NotFound` for a row of a session that was erased meanwhile.
        """
        level = "REPEATABLE READ" if snapshot else "READ COMMITTED"  # stated, for a pooler takes no setting of it
        return self._lent(level, locks=locking is not None, locking=locking)

    def read_only(self) -> AbstractAsyncContextManager[Transaction]:
        """One transaction on one snapshot, in which the database itself refuses to write. Raises as `begin`."""
        return self._lent("REPEATABLE READ READ ONLY")

    def autocommit(self) -> AbstractAsyncContextManager[Transaction]:
        """A connection on which every statement is its own transaction. Raises as `begin`. Behind a pooler the whole
        block is one, else parsing and running could reach different servers."""
        return self._lent("READ COMMITTED" if self._transaction_pooler else None, locks=True)

    async def run(
        self, work: Callable[Concatenate[Transaction, P], Awaitable[R]], *given: P.args, **named: P.kwargs
    ) -> R:
        """The result of the work, in `autocommit`. Raises as `begin`."""
        async with self.autocommit() as transaction:
            return await work(transaction, *given, **named)

    @asynccontextmanager
    async def _lent(
        self, level: str | None, *, locks: bool = False, locking: UUID | None = None
    ) -> AsyncGenerator[Transaction]:
        """A connection, in a transaction of this isolation level unless it is None. Everything is in one generator:
        each more costs as much as running a small statement."""
        if locking is not None:
            try:
                await self._sessions.acquire(locking, self._timeout_s)
            except TimeoutError:
                raise SessionBusy(LOCKED) from None
        try:
            pooled = await self._checkout()
            try:
                if level is not None:
                    await self._begin(pooled, level, locks=locks)
                try:
                    yield Transaction(pooled.connection)
                except BaseException:
                    if level is not None:
                        await pooled.connection.execute("ROLLBACK")
                    raise
                if level is not None:
                    await pooled.connection.execute("COMMIT")
            finally:
                self._give_back(pooled)
        except Exception as error:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                self._leave_server()
            raise_meaning(error)  # not kept in a variable here: its traceback refers to this frame
            raise
        finally:
            if locking is not None:
                self._sessions.release(locking)

    async def _begin(self, pooled: _Pooled, level: str, *, locks: bool) -> None:
        """Begins a transaction with the settings that its connection lacks. The connection is not lent again if this is
        cancelled on the way: the server may still execute it, and what others then ran on it would be rolled back."""
        beginning = f"BEGIN ISOLATION LEVEL {level}"
        if self._transaction_pooler:
            beginning += f"; {_SET_IDLE_LIMIT}"
        if self._set_locally and (locks or self._transaction_pooler):  # a read may meet a table that a migration locks
            beginning += f"; {self._set_lock_timeout}"
        pooled.is_known = False
        await pooled.connection.execute(beginning)
        pooled.is_known = True

    @asynccontextmanager
    async def promptly(self) -> AsyncGenerator[None]:
        """Raises `DatabaseUnavailable` if the block takes longer than one waits for a connection."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise DatabaseUnavailable("The database does not answer in time.") from None

    async def is_read_only(self) -> bool:
        """Whether the server refuses to write, as a standby does. Raises as `begin`."""
        async with self.autocommit() as transaction:
            read_only = await transaction.fetchval(_IS_READ_ONLY)
        if read_only:
            self._leave_server()
        return read_only

    def _leave_server(self) -> None:
        """Makes the pool close every connection that is open now instead of lending it again. A new one may reach a new
        primary, and a connection that the server ended silently is noticed only when it is used."""
        self._left_at = monotonic()

    def watched_by(self, waited: Callable[[float], object], used: Callable[[float], object]) -> None:
        """Calls `waited` with the seconds of every wait for a connection, also of one in vain, and `used` with those
        for which a connection was lent."""
        self._waited, self._used = waited, used

    async def _checkout(self) -> _Pooled:
        """A connection for exclusive use by the tenant at work; the gate admits no more than the size of the pool."""
        tenant, asked_at = tenant_at_work.get(), perf_counter()
        try:
            pooled = await self._next_connection(tenant, asked_at + self._timeout_s)
        finally:
            self._waited(perf_counter() - asked_at)
        pooled.tenant, pooled.lent_at = tenant, perf_counter()
        if self._longest_use_s is not None and not pooled.is_watched:
            self._watch(pooled, self._longest_use_s)
        return pooled

    async def _next_connection(self, tenant: str | None, deadline: float) -> _Pooled:
        """A connection, and with it a slot of the tenant. If the server has none left and this process has another one,
        fewer slots are given out for a while, and the tenant waits in turn."""
        while True:
            try:
                await self._tenants.acquire(tenant, deadline - perf_counter())
            except TimeoutError as error:
                raise DatabaseUnavailable("No database connection was free in time.") from error
            self._in_use += 1
            try:
                return await self._usable()
            except BaseException as error:
                self._in_use -= 1
                if not isinstance(error, ServerFull) or not (self._in_use or self._idle):
                    self._tenants.release(tenant)
                    raise
            asyncio.get_running_loop().call_later(_FULL_S, self._tenants.release, tenant)

    def _watch(self, pooled: _Pooled, longest_use_s: float) -> None:
        """Closes a connection once it is in use for too long. One timer watches many short uses."""
        left_s = pooled.lent_at + longest_use_s - perf_counter()
        if left_s <= 0:
            pooled.connection.terminate()
        pooled.is_watched = 0 < left_s < math.inf
        if pooled.is_watched:
            asyncio.get_running_loop().call_later(left_s, self._watch, pooled, longest_use_s)

    async def _usable(self) -> _Pooled:
        while self._idle:
            pooled = self._idle.pop()
            connection = pooled.connection
            if connection.is_closed():
                continue
            if pooled.opened_at > self._left_at and not reports_read_only(connection):
                return pooled
            connection.terminate()  # the server became read-only, or was lost, meanwhile
        opened_at = monotonic()
        connection, is_citus = await self._connect()
        self._set_locally = self._transaction_pooler or is_citus
        return _Pooled(connection, opened_at)

    def _give_back(self, pooled: _Pooled) -> None:
        connection = pooled.connection
        self._in_use -= 1
        self._tenants.release(pooled.tenant)
        self._used(perf_counter() - pooled.lent_at)
        pooled.lent_at = math.inf
        if connection.is_closed():
            if pooled.opened_at > self._left_at:
                self._leave_server()
            return
        # A cancellation may have interrupted the rollback: such a connection is not used again.
        if self._is_closed or not pooled.is_known or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(pooled)

    async def aclose(self) -> None:
        """Closes the idle connections; those that are lent are closed when they are returned."""
        self._is_closed = True
        while self._idle:
            with suppress(*GONE):
                async with asyncio.timeout(self._timeout_s):
                    await self._idle.pop().connection.close()


def _reader_of(kind: Kind[R]) -> Callable[[Record], R]:
    return partial(record_of, cast(type[R], kind)) if is_dataclass(kind) else cast(Callable[[Record], R], kind)


def record_of(kind: type[R], row: Record, **computed: Any) -> R:
    """An instance of this dataclass: from `computed`, and for other fields from the row's columns of the same names. To
    pass 16 fields to `__init__` by keyword takes twice as many instructions."""
    made = kind.__new__(kind)
    for name in names_of(kind):
        setattr(made, name, computed.pop(name) if name in computed else row[name])
    if computed:
        raise TypeError(f"{kind.__name__} has no {', '.join(computed)}")
    return made
