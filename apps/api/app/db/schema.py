"""The state of the database's schema, whether its user may take turns, and why it can not be reached."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg

import app
from app.db.database import Transaction
from app.db.driver import SERVER_SETTINGS, SETTINGS_BEHIND_A_POOLER, connect_to_any
from app.db.sql import Statement
from app.db.tables import metadata
from app.domain.errors import OperatorError

CONNECT_TIMEOUT_S: Final = 10.0
ADVISORY_LOCK: Final = 7046029254386353131
"""The key of the advisory lock that all migrations of Plimsoll in one database use."""


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


class DatabaseUnreachable(OperatorError):
    """The message says why, and contains no part of the connection string."""


_HAS_VERSION_TABLE = Statement("SELECT to_regclass('alembic_version')::text", ())
_VERSION = Statement("SELECT version_num FROM alembic_version", ())


async def schema_state(transaction: Transaction) -> SchemaState:
    """The state of the database's schema. An unknown version is one of a later release: `ahead`."""
    version = await transaction.fetchval(_VERSION) if await transaction.fetchval(_HAS_VERSION_TABLE) else None
    if version is None:
        return SchemaState.EMPTY
    known = _revisions()
    if version == known[-1]:
        return SchemaState.CURRENT
    return SchemaState.BEHIND if version in known else SchemaState.AHEAD


def migrations() -> Path:
    package = Path(app.__file__).parent
    in_the_wheel = package / "_migrations"
    return in_the_wheel if in_the_wheel.exists() else package.parents[2] / "migrations"


@cache
def _revisions() -> Sequence[str]:
    """All revisions of this version, the newest last: their files have their names, which begin with a date."""
    return sorted(file.stem for file in (migrations() / "versions").glob("*.py"))


async def reach(dsn: str, *, transaction_pooler: bool) -> SchemaState:
    """Connects once; returns the state of the schema. Without `transaction_pooler` it uses the settings of the service,
    which a pooler refuses; with it, it works with or without a pooler. Raises `DatabaseUnreachable`."""
    settings = SETTINGS_BEHIND_A_POOLER if transaction_pooler else SERVER_SETTINGS
    try:
        # With no cache and in a transaction, statements work behind a pooler too.
        connection = await connect_to_any(
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
        if isinstance(error, FileNotFoundError):
            reason = "no such socket, or certificate file"
        raise DatabaseUnreachable(f"DATABASE_URL: the database cannot be reached: {reason}") from error
    except asyncpg.PostgresError as error:
        advice = ""
        if "unsupported startup parameter" in str(error):
            advice = "; behind a pooler set PLIMSOLL_DB_POOLER=transaction"
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
    SELECT coalesce(bool_and(has_table_privilege(id, of) AND NOT (
        row_security_active(id) AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = id)
    )), true)
    FROM (VALUES {", ".join(map(str, _NEEDED))}) AS needed(name, of), to_regclass(name) AS id
    """,
    (),
)


async def may_take_turns(tx: Transaction) -> bool:
    """Whether the database's user has the rights on tables that a turn needs; others may be withheld on purpose. Under
    row security without a policy it has none."""
    return await tx.fetchval(_HAS_RIGHTS)
