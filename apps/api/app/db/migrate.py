"""Migrates a database to this version's schema or an earlier one.

Alembic takes as long to import as a tenth of the service, so that what serves imports this only if it migrates."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.db.driver import connect_to_any
from app.db.schema import CONNECT_TIMEOUT_S, migrations
from app.db.statistics import ANALYZE
from app.domain.errors import OperatorError

T = TypeVar("T")

_NEWEST = "head"
TABLE_WAIT_S = 5.0
"""Longest wait for a busy table: all later queries of the table wait behind the migration, so it gives up early."""
IDLE_S = 10.0
"""Longest pause between two statements, after which the server rolls the migration back: the service waits for the
tables that it has locked, also if its process is stopped or its machine is gone."""
_WHEN_LOCKED = (
    ". A table stayed locked: run it again when the long transactions of the database, such as a backup, have ended"
)
_MOST_TRIES = 6


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


@asynccontextmanager
async def migration_engine(dsn: str) -> AsyncGenerator[AsyncEngine]:
    """An engine for one connection. Its statements have no names: a pooler before the server can not keep names."""
    connect = partial(
        connect_to_any,
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        statement_cache_size=0,
        server_settings={"application_name": "plimsoll migrate"},
    )
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        isolation_level="READ COMMITTED",  # with a stricter one, who waited does not see the other's migration
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
    return cast(Any, error.orig).__cause__ or cast(Any, error.orig)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
