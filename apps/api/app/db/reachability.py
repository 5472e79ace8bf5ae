"""Whether a database can be reached, with the reason in one sentence that holds no part of the connection string."""

from __future__ import annotations

from typing import Any, cast

import asyncpg

from app.db.database import Database
from app.db.migrate import CONNECT_TIMEOUT_S, SchemaState, schema_state


class DatabaseUnreachable(Exception):
    """The sentence says why."""


async def reach(dsn: str) -> SchemaState:
    """Connects once; how far the schema is. Raises `DatabaseUnreachable`."""
    try:
        connection = await cast(Any, asyncpg).connect(dsn, timeout=CONNECT_TIMEOUT_S)
        await connection.close()
    except TimeoutError as error:
        raise DatabaseUnreachable(
            f"DATABASE_URL: the database gave no answer within {CONNECT_TIMEOUT_S:.0f} seconds"
        ) from error
    except OSError as error:
        raise DatabaseUnreachable(f"DATABASE_URL: the database can not be reached: {_reason(error)}") from error
    except asyncpg.PostgresError as error:
        raise DatabaseUnreachable(f"DATABASE_URL: the database refuses us: {error}") from error
    except ValueError as error:
        # The driver's sentence quotes what it could not read, and that can be the password.
        raise DatabaseUnreachable(
            "DATABASE_URL is no connection string: postgresql://user:password@host:port/database, with "
            "special characters of the password percent-encoded"
        ) from error
    except asyncpg.InterfaceError as error:
        raise DatabaseUnreachable(
            f"DATABASE_URL: what answers there is no Postgres that can be used: {error}"
        ) from error
    database = Database(dsn, pool_size=1, transaction_pooler=True)  # safe with or without one
    try:
        async with database.autocommit() as transaction:
            return await schema_state(transaction)
    finally:
        await database.aclose()


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
