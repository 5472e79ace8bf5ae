"""The SQL of a copied past: each row of a session once more under another session, with ids of its own.

A copy's ids are those of the original with their last 32 bits, which are random, turned by a mask of the new session's:
no two rows of a session can meet, they sort as they did, and every reference is turned by itself, without a table of
pairs. Columns come from `db/tables.py`, so one that is added there is copied too.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import sqlalchemy as sa

from app.db.sql import Statement, sql

MASK_BITS = 32

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# A whole JSON string that is an id, or an id behind a kind as in trim logs ("message:…").
_REFERENCE = f'(?<=["\\:]){_UUID}(?=")'
_KNOWN = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} k WHERE k.session_id = CAST(:source AS uuid) AND k.id = CAST(found.ids[1] AS uuid))"
    for table in ("messages", "turns", "session_summaries")
)


def mask_of(session_id: UUID) -> int:
    """The mask of a session's copied ids: the random end of its own id."""
    return session_id.int & (2**MASK_BITS - 1)


def new_id(column: str) -> str:
    """The expression of a copied row's id."""
    return f"CAST({_turned(f'CAST({column} AS text)')} AS uuid)"


def _turned(text: str) -> str:
    low = f"CAST(CAST('x' || right({text}, 8) AS bit({MASK_BITS})) AS bigint)"
    return f"(left({text}, 28) || lpad(to_hex({low} # CAST(:mask AS bigint)), 8, '0'))"


def new_references(column: str) -> str:
    """The expression of a JSON document in which every reference to the source's rows leads to their copies.

    Text that merely looks like an id stays: what is turned is the id of a row that the source has.
    """
    text = f"CAST({column} AS text)"
    turned = f"CASE WHEN {_KNOWN} THEN {_turned('found.ids[1]')} ELSE found.ids[1] END"
    return f"""CASE WHEN {text} !~ '{_REFERENCE}' THEN {column} ELSE (
        SELECT CAST(string_agg(piece.text || coalesce({turned}, ''), '' ORDER BY piece.at) AS jsonb)
        FROM regexp_split_to_table({text}, '{_REFERENCE}') WITH ORDINALITY AS piece(text, at)
        LEFT JOIN regexp_matches({text}, '{_REFERENCE}', 'g') WITH ORDINALITY AS found(ids, at) USING (at)) END"""


def copying(table: sa.Table, changed: Mapping[str, str], condition: str) -> Statement:
    """The statement that copies the rows `x` of `:source` that meet the condition to `:target`.

    `changed` has the expressions of columns that are not copied as they are.
    """
    own = {"session_id": "CAST(:target AS uuid)", **changed}
    columns = [column.name for column in table.columns]
    assert own.keys() <= set(columns), own.keys() - set(columns)
    values = ", ".join(own.get(column, f"x.{column}") for column in columns)
    return sql(
        f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {values} FROM {table.name} x"
        f" WHERE x.session_id = CAST(:source AS uuid) AND ({condition})"
    )
