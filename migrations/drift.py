"""Says where `app/db/tables.py` and the migrations differ: `.venv/bin/python -m migrations.drift`.

With the URL of a database as its argument it compares that one instead of the migrations, after a restore for example.

It makes two databases, one with the migrations and one from the tables, and compares what the server's catalogue says
of them: columns with types and defaults, all constraints, all indexes. Alembic's own comparison, which knows no check
constraints, is asked as well.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from app.db import embedded
from app.db.migrate import migration_engine, upgrade
from app.db.tables import metadata

CATALOGUE = r"""
    SELECT format('%s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
        ' DEFAULT ' || regexp_replace(pg_get_expr(d.adbin, d.adrelid), '^''(\d+)''::bigint$', '\1'))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> 'alembic_version'
    UNION ALL
    SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND contype <> 'n' AND conrelid::regclass::text <> 'alembic_version'
    UNION ALL
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
"""


async def differences(server_dsn: str, migrated_dsn: str | None = None) -> list[str]:
    """One line for each difference; none when both are the same. The server's user may create databases.

    `migrated_dsn` is a database that was migrated already; without it one is made.
    """
    names = [f"plimsoll_drift_{uuid4().hex[:12]}" for _ in range(2)]
    admin = await cast(Any, asyncpg).connect(server_dsn)
    try:
        for name in names:
            await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        migrated, made = (with_database(server_dsn, name) for name in names)
        if migrated_dsn is None:
            await upgrade(migrated)
        else:
            migrated = migrated_dsn
        async with migration_engine(made) as engine, engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        async with migration_engine(migrated) as engine, engine.connect() as connection:
            found = await connection.run_sync(_alembic_differences)
        by_migrations, by_tables = await _catalogue(migrated), await _catalogue(made)
        found += [f"only in the migrations: {line}" for line in sorted(by_migrations - by_tables)]
        found += [f"only in tables.py: {line}" for line in sorted(by_tables - by_migrations)]
        return found
    finally:
        for name in names:
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.close()


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


def _alembic_differences(connection: Connection) -> list[str]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return [f"alembic sees: {difference}" for difference in compare_metadata(context, metadata)]


async def _catalogue(dsn: str) -> set[str]:
    connection = await cast(Any, asyncpg).connect(dsn)
    try:
        return {row[0] for row in await connection.fetch(CATALOGUE)}
    finally:
        await connection.close()


def main() -> int:
    """Prints the differences; 1 when there are any."""
    if len(sys.argv) > 1:
        return _tell(asyncio.run(differences(sys.argv[1], sys.argv[1])))
    with tempfile.TemporaryDirectory(prefix="plimsoll-drift-") as folder:
        external = os.environ.get("PLIMSOLL_TEST_DATABASE_URL")
        server = None if external else embedded.start(Path(folder))
        try:
            found = asyncio.run(differences(external or cast(embedded.EmbeddedPostgres, server).dsn))
        finally:
            if server is not None:
                server.stop()
    return _tell(found)


def _tell(found: list[str]) -> int:
    for line in found or ["migrations and app/db/tables.py agree"]:
        sys.stdout.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
