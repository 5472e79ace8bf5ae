"""A session's rows as they leave in an export, and as they come back in an import. Columns come from `db/tables.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from app.db import tables
from app.db.database import Transaction
from app.db.forks import ForkPoint
from app.db.sessions import CHANGEABLE
from app.db.sql import Statement, insert_from, json_rows, sql
from app.domain.stored import Counters, NewRows, values_of
from app.domain.types import JsonObject, SessionId, TenantId

BATCH: Final = 25
"""Turns, or rows, that are read or encoded at once: a millisecond or so in which nobody else is served."""

_TABLES: Final[Mapping[str, sa.Table]] = {
    "pins": tables.pins,
    "blocks": tables.prompt_blocks,
    "turns": tables.turns,
    "messages": tables.messages,
    "steps": tables.turn_steps,
    "summaries": tables.session_summaries,
    "audits": tables.turn_context_audit,
}
_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "blocks": frozenset({"created_at"}),
    # Who ran it and under which key is of no use elsewhere.
    "turns": frozenset(
        {"idempotency_key", "request_sha256", "fence", "lease_expires_at", "reservation", "conversation_sha256"}
    ),
    "messages": frozenset({"terms"}),  # packed again from the content
    "summaries": frozenset({"to_message_seq"}),  # known by `to_message_id`
}
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    section: tuple(
        column.name
        for column in table.columns
        if column.name != "session_id" and column.name not in _LEFT_OUT.get(section, ())
    )
    for section, table in _TABLES.items()
}
"""What an export has of each section's rows."""
_SESSION_COLUMNS = ", ".join(
    ("id", *(name for name in CHANGEABLE if name != "limits"), "summary_count_after_seq", "created_at", "updated_at")
)

_SESSION = sql(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE id = :session_id AND tenant_id = :tenant_id")


def _of_turns(section: str, order: str) -> Statement:
    """Rows that belong to turns, those of a range of turns at a time."""
    table = _TABLES[section].name
    source = "turns x" if section == "turns" else f"{table} x JOIN turns t ON t.session_id = x.session_id"
    turn = "x" if section == "turns" else "t"
    own = "" if section == "turns" else " AND t.id = x.turn_id"
    return sql(
        f"SELECT {', '.join(f'x.{column}' for column in COLUMNS[section])} FROM {source}{own}"
        f" WHERE {turn}.session_id = :session_id"
        f" AND {turn}.seq > :after AND {turn}.seq <= :through"
        f" ORDER BY {turn}.seq, {order}"
    )


def _by_key(section: str, key: str, key_type: str) -> Statement:
    return sql(
        f"SELECT {', '.join(f'x.{column}' for column in COLUMNS[section])} FROM {_TABLES[section].name} x"
        f" WHERE x.session_id = :session_id AND x.{key} > CAST(:after AS {key_type})"
        f" ORDER BY x.{key} LIMIT {BATCH}"
    )


_RANGES = {
    "turns": _of_turns("turns", "x.seq"),
    "messages": _of_turns("messages", "x.seq"),
    "steps": _of_turns("steps", "x.seq"),
    "audits": _of_turns("audits", "x.round, x.attempt"),
}
_KEYED: Mapping[str, tuple[str, Statement, Any]] = {
    "pins": ("name", _by_key("pins", "name", "text"), ""),
    "blocks": ("sha256", _by_key("blocks", "sha256", "text"), ""),
    "summaries": ("id", _by_key("summaries", "id", "uuid"), UUID(int=0)),
}


async def exported_session(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> JsonObject | None:
    """The session's own members in an export; None when the tenant has no such session."""
    row = await tx.fetchrow(_SESSION, session_id=session_id, tenant_id=tenant_id)
    return dict(row) if row else None


async def exported_rows(
    tx: Transaction, session_id: SessionId, section: str, point: ForkPoint
) -> AsyncGenerator[list[JsonObject]]:
    """A section's rows through the point, in batches, in the order a document has them."""
    if section in _RANGES:
        for after in range(0, point.through_seq, BATCH):
            through = min(after + BATCH, point.through_seq)
            rows = await tx.fetch(_RANGES[section], session_id=session_id, after=after, through=through)
            yield [dict(row) for row in rows]
        return
    key, statement, after_key = _KEYED[section]
    while rows := await tx.fetch(statement, session_id=session_id, after=after_key):
        yield [_settled(dict(row), point) for row in rows]
        after_key = rows[-1][key]


def _settled(row: JsonObject, point: ForkPoint) -> JsonObject:
    """A summary that an open turn made was not made by anything that is exported."""
    if point.next_id is not None and row.get("created_by_turn_id") == point.next_id:
        return row | {"created_by_turn_id": None}
    return row


_ADDED: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": ("request_sha256",),
    "messages": ("terms",),
    "summaries": ("to_message_seq",),
}


def _inserting(section: str) -> Statement:
    table = _TABLES[section]
    given = {*COLUMNS[section], *_ADDED.get(section, ()), "session_id"}
    return sql(
        insert_from(
            table,
            json_rows(table, "rows"),
            {"session_id": ":session_id"},
            without=[column.name for column in table.columns if column.name not in given],
        )
    )


_INSERTS = {section: _inserting(section) for section in _TABLES}

_COUNTERS = sql("""
    UPDATE sessions SET last_turn_seq = :last_turn_seq,
        last_message_seq = :last_message_seq,
        summary_count_after_seq = :summary_count_after_seq
    WHERE id = :session_id
    """)


async def insert_rows(tx: Transaction, session_id: SessionId, new: NewRows) -> None:
    """Stores rows of a section in a session that was just made; turns come first."""
    await tx.execute(_INSERTS[new.section], session_id=session_id, rows=new.rows)


async def set_counters(tx: Transaction, session_id: SessionId, counters: Counters) -> None:
    """Where the numbers of a session that was just filled go on."""
    await tx.execute(_COUNTERS, session_id=session_id, **values_of(counters))
