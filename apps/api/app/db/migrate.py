"""Migrates a database to this version's schema, reports the state of its schema or why it can not be reached, and
refreshes the statistics of its planner."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

import app
from app.db.database import Transaction
from app.db.driver import SERVER_SETTINGS, SETTINGS_BEHIND_A_POOLER
from app.db.sql import Statement, sql
from app.db.tables import metadata
from app.domain.errors import OperatorError
from app.domain.types import SessionId

T = TypeVar("T")

_NEWEST = "head"
CONNECT_TIMEOUT_S = 10.0
TABLE_WAIT_S = 5.0
"""Longest wait for a busy table: all later queries of the table wait behind the migration, so it gives up early."""
IDLE_S = 10.0
"""Longest pause between two statements, after which the server rolls the migration back: the service waits for the
tables that it has locked, also if its process is stopped or its machine is gone."""
ADVISORY_LOCK = 7046029254386353131
"""The key of the advisory lock that all migrations of Plimsoll in one database use."""
_WHEN_LOCKED = (
    ". A table stayed locked: run it again when the long transactions of the database, such as a backup, have ended"
)
_MOST_TRIES = 6
"""Most tries of a migration that meets deadlocks."""


class SchemaState(StrEnum):
    """How the database's schema compares to this version's. One of a later release is served too: during an upgrade,
    replicas of the version before work on until they are replaced."""

    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"
    EMPTY = "empty"

    @property
    def can_be_served(self) -> bool:
        return self in {SchemaState.CURRENT, SchemaState.AHEAD}


class MigrationFailed(OperatorError):
    """The database was left as it was; the message says why, and contains no connection string."""


async def upgrade(dsn: str) -> None:
    """Migrates up to this version's schema, all or nothing, and then analyzes the tables, so that plans fit them.

    Safe when several start at once: one works, the others wait and then find nothing to do. Raises `MigrationFailed`
    when the server refuses a statement or a table stays locked for `TABLE_WAIT_S`, and the driver's error when the
    server can not be reached.
    """
    await asyncio.to_thread(_run_alone, dsn, command.upgrade, _NEWEST)


async def downgrade(dsn: str, revision: str, *, table_wait_s: float = TABLE_WAIT_S, idle_s: float = IDLE_S) -> None:
    """Migrates down to the revision (`base` for none), all or nothing. Raises as `upgrade`."""
    await asyncio.to_thread(_run_alone, dsn, command.downgrade, revision, table_wait_s=table_wait_s, idle_s=idle_s)


async def schema_state(transaction: Transaction) -> SchemaState:
    """The state of the database's schema. An unknown version is one of a later release: `ahead`."""
    version = await transaction.fetchval(_VERSION) if await transaction.fetchval(_HAS_VERSION_TABLE) else None
    if version is None:
        return SchemaState.EMPTY
    known = _revisions()
    if version == known[0]:
        return SchemaState.CURRENT
    return SchemaState.BEHIND if version in known else SchemaState.AHEAD


@asynccontextmanager
async def migration_engine(dsn: str) -> AsyncGenerator[AsyncEngine]:
    """An engine for one connection. Its statements have no names: a pooler before the server can not keep names."""
    connect = partial(
        cast(Any, asyncpg).connect,
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        statement_cache_size=0,
        server_settings={"application_name": "plimsoll migrate"},
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        connect_args={
            "async_creator_fn": connect,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: "",
        },
    )
    try:
        yield engine
    finally:
        await engine.dispose()


_HAS_VERSION_TABLE = Statement("SELECT to_regclass('alembic_version')::text", ())
_VERSION = Statement("SELECT version_num FROM alembic_version", ())

_Command: TypeAlias = Callable[[Config, str], None]
_ONE_IN_THIS_PROCESS = threading.Lock()  # Alembic's `context` and `op` are global to the process


def _run_alone(dsn: str, what: _Command, revision: str, **waits_s: float) -> None:
    with _ONE_IN_THIS_PROCESS:
        asyncio.run(_run_in_one_transaction(dsn, what, revision, waits_s))


async def _run_in_one_transaction(dsn: str, what: _Command, revision: str, waits_s: Mapping[str, float]) -> None:
    def work(connection: Connection) -> bool:
        """Runs the command; returns whether it led to another revision."""
        config = _config()
        config.attributes.update(waits_s, connection=connection)
        was = MigrationContext.configure(connection).get_current_revision()
        what(config, revision)
        return MigrationContext.configure(connection).get_current_revision() not in (was, None)

    async with migration_engine(dsn) as engine:
        try:
            changed = await _committed(engine, work)
        except DBAPIError as error:
            cause = _cause(error)
            advice = _WHEN_LOCKED if isinstance(cause, asyncpg.LockNotAvailableError) else ""
            raise MigrationFailed(f"The migration was rolled back: {cause}{advice}") from error
        except CommandError as error:
            raise MigrationFailed("The database is of a later release than this one; nothing was changed.") from error
        with suppress(DBAPIError):  # the schema is in place; autovacuum follows by itself
            if changed and revision == _NEWEST:
                async with engine.begin() as connection:
                    await connection.execute(text(ANALYZE.text))


async def _committed(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    """The result of the work, in one transaction. While the service runs, its statements hold locks on tables in other
    orders than a migration, so a deadlock is likely; then the work begins anew."""
    tries = 1
    while True:
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(work)
        except DBAPIError as error:
            if tries == _MOST_TRIES or not isinstance(_cause(error), asyncpg.DeadlockDetectedError):
                raise
        await asyncio.sleep(random.uniform(0.0, tries))  # noqa: S311 - spreads retries, keeps no secret
        tries += 1


def _cause(error: DBAPIError) -> BaseException:
    """The driver's error."""
    return cast(Any, error.orig).__cause__ or cast(Any, error.orig)


def _config() -> Config:
    package = Path(app.__file__).parent
    in_the_wheel = package / "_migrations"
    folder = in_the_wheel if in_the_wheel.exists() else package.parents[2] / "migrations"
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """All revisions of this version, the newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


class DatabaseUnreachable(OperatorError):
    """The message says why, and contains no part of the connection string."""


_BEHIND_A_POOLER = ": a pooler is before it, which PLIMSOLL_DB_POOLER=transaction takes into account"


async def reach(dsn: str, *, transaction_pooler: bool = True) -> SchemaState:
    """Connects once, without `transaction_pooler` with the settings of the service, which a pooler refuses; returns the
    state of the schema. Raises `DatabaseUnreachable`."""
    settings = SETTINGS_BEHIND_A_POOLER if transaction_pooler else SERVER_SETTINGS
    try:
        # With no cache and in a transaction, statements work behind a pooler too.
        connection = await cast(Any, asyncpg).connect(
            dsn, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0, server_settings=settings
        )
        try:
            async with connection.transaction():
                if (encoding := await connection.fetchval("SHOW server_encoding")) != "UTF8":
                    raise DatabaseUnreachable(
                        f"DATABASE_URL: the encoding of the database is {encoding}, which does not store every text: "
                        "`createdb --encoding=UTF8 --template=template0` makes one that does"
                    )
                return await schema_state(Transaction(connection))
        finally:
            await connection.close()
    except TimeoutError as error:
        raise DatabaseUnreachable(
            f"DATABASE_URL: the database gave no answer within {CONNECT_TIMEOUT_S:.0f} seconds"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise DatabaseUnreachable(f"DATABASE_URL: the database cannot be reached: {reason}") from error
    except asyncpg.PostgresError as error:
        advice = _BEHIND_A_POOLER if "unsupported startup parameter" in str(error) else ""
        raise DatabaseUnreachable(f"DATABASE_URL: the database refuses this connection: {error}{advice}") from error
    except (ValueError, OverflowError) as error:  # the second for a port above 65535
        if str(error).startswith("root certificate file"):
            raise DatabaseUnreachable(f"DATABASE_URL: its sslmode needs sslrootcert=FILE: {error}") from error
        # The driver's message quotes what it could not parse, which can be the password.
        raise DatabaseUnreachable(
            "DATABASE_URL is not a connection string: postgresql://user:password@host:port/database, with "
            "special characters of the password percent-encoded"
        ) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:  # the second for target_session_attrs
        raise DatabaseUnreachable(f"DATABASE_URL: what answers there cannot be used: {error}") from error


_NEEDED = (
    *((table.name, "SELECT") for table in metadata.sorted_tables),
    *((table.name, "INSERT") for table in metadata.sorted_tables if "session_id" in table.c),
    *(("sessions", "INSERT"), ("sessions", "UPDATE"), ("turns", "UPDATE")),
)
_HAS_RIGHTS = Statement(
    f"""
    SELECT coalesce(bool_and(has_table_privilege(to_regclass(name), of)), true)
    FROM (VALUES {", ".join(map(str, _NEEDED))}) AS needed(name, of)
    """,
    (),
)


async def may_take_turns(tx: Transaction) -> bool:
    """Whether the database's user has the rights on tables that a turn needs; others may be withheld on purpose."""
    return await tx.fetchval(_HAS_RIGHTS)


def _columns(table: sa.Table) -> str:
    """The columns by which rows are looked up: those of keys and indexes, and a status."""
    found = {column.name for index in table.indexes for column in index.columns} | {"status"}
    for constraint in table.constraints:
        if isinstance(constraint, sa.PrimaryKeyConstraint | sa.UniqueConstraint | sa.ForeignKeyConstraint):
            found |= {column.name for column in constraint.columns}
    return ", ".join(f'"{column.name}"' for column in table.columns if column.name in found)


# After much was stored at once, autovacuum comes a minute late. Until then plans that were made for empty tables remain
# in use: a foreign key may be checked by reading the whole session.
_TABLES = ", ".join(f"('{table.name}', '{_columns(table)}')" for table in metadata.sorted_tables)
ANALYZE = Statement(
    f"""
    DO $$ DECLARE item record; BEGIN
        FOR item IN SELECT * FROM (VALUES {_TABLES}) AS tables(name, columns) LOOP
            IF pg_relation_size(to_regclass(item.name)) >= 131072 THEN
                EXECUTE format('ANALYZE (SKIP_LOCKED) %I (%s)', item.name, item.columns);
            END IF;
        END LOOP;
    END $$
    """,
    (),
)
"""This does not block writers. A table that another process analyzes is skipped, and so is a small one: once known to
be small, it is scanned by plans that remain when it has grown; unknown, it counts as ten pages and is read by index.

Texts and JSON, by which nothing is looked up, are left to autovacuum: they take three quarters of the time."""

_LARGE_MESSAGES = 1_000
# The rule of autovacuum: a tenth more than there was. For tables that were never analyzed `reltuples` is 0 or -1.
_IS_LARGE_AND_NEW = sql(f"""
    SELECT s.last_message_seq > {_LARGE_MESSAGES} AND s.last_message_seq > c.reltuples / 10
    FROM sessions s, pg_class c
    WHERE s.id = :session_id AND c.oid = CAST('messages' AS regclass)
    """)


async def analyze_for(tx: Transaction, session_id: SessionId) -> None:
    """Analyzes the tables if the session has over 1,000 messages, and over a tenth of those the planner knows of."""
    if await tx.fetchval(_IS_LARGE_AND_NEW, session_id=session_id):
        await tx.fetch(ANALYZE)
