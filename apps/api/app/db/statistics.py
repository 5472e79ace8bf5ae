"""Refreshes the statistics of the database's planner after much was stored at once."""

from __future__ import annotations

import sqlalchemy as sa

from app.db.database import Transaction
from app.db.sql import Statement, sql
from app.db.tables import metadata
from app.domain.types import SessionId


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


_HAVE_GROWN = sql("""
    SELECT pg_relation_size(oid) > 4 * 8192 * greatest(relpages, 16) FROM pg_class WHERE oid = CAST('turns' AS regclass)
    """)


async def analyze_grown(tx: Transaction) -> None:
    """Analyzes the tables if there are four times the turns that the planner knows of. Within a transaction that stores
    many: each message's foreign key would be checked by reading all turns of its session."""
    if await tx.fetchval(_HAVE_GROWN):
        await tx.fetch(ANALYZE)


async def analyze_for(tx: Transaction, session_id: SessionId) -> None:
    """Analyzes the tables if the session has over 1,000 messages, and over a tenth of those the planner knows of."""
    if await tx.fetchval(_IS_LARGE_AND_NEW, session_id=session_id):
        await tx.fetch(ANALYZE)
