"""Runs the migrations in one transaction, one process at a time.

`app.db.migrate` passes its connection in `attributes`; the `alembic` command line takes `DATABASE_URL` from the
settings.
"""

from __future__ import annotations

import asyncio

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, text

from app.core.config import Settings
from app.db.migrate import IDLE_S, TABLE_WAIT_S, migration_engine
from app.db.schema import ADVISORY_LOCK
from app.db.tables import metadata

# Held to the end of the transaction, so it is safe behind a pooler that changes servers between transactions.
# Whoever waited then finds the newest version, because it is only read after the lock is had.
ONE_AT_A_TIME = f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"
# Where the tables are distributed, several of them are changed in one transaction only so; elsewhere it means nothing.
NODE_BY_NODE = "SET LOCAL citus.multi_shard_modify_mode = 'sequential'"
# The role or the database may have limits that are meant for requests. Servers before 17 have only the first of these.
OF_ANY_LENGTH = """
    SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
WAIT_FOR_ANOTHER_MIGRATION = "SET LOCAL lock_timeout = '10min'"


def migrate(connection: Connection) -> None:
    """Brings the database that is connected to the revision that was asked for."""
    given_s = context.config.attributes
    table_wait_s: float = given_s.get("table_wait_s", TABLE_WAIT_S)
    idle_s: float = given_s.get("idle_s", IDLE_S)
    context.configure(connection=connection, target_metadata=metadata, compare_server_default=True)
    with context.begin_transaction():
        connection.execute(text(OF_ANY_LENGTH))
        connection.execute(text(WAIT_FOR_ANOTHER_MIGRATION))
        connection.execute(text(ONE_AT_A_TIME))
        connection.execute(text(f"SET LOCAL lock_timeout = {int(table_wait_s * 1000)}"))
        connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {int(idle_s * 1000)}"))
        connection.execute(text(NODE_BY_NODE))
        context.run_migrations()


async def migrate_configured_database() -> None:
    """The command line's way: a connection of its own."""
    url = Settings().database_url
    if url is None:
        raise CommandError("Set DATABASE_URL; the embedded server is migrated by `plimsoll serve`.")
    async with migration_engine(url.get_secret_value()) as engine, engine.connect() as connection:
        await connection.run_sync(migrate)
        await connection.commit()


if context.is_offline_mode():
    raise CommandError("There is no offline mode: the lock and the timeouts need a connection.")
given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    asyncio.run(migrate_configured_database())
