"""Turns as they are read; `db/claims.py`, `db/records.py` and `db/ended_turns.py` write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

from app.db.database import Record, Transaction, record_of
from app.db.sql import Statement, sql
from app.domain.content import tool_calls_from_json
from app.domain.types import ListedTurn, SessionId, TenantId, TurnId, TurnRecord, TurnStatus

T = TypeVar("T", bound=TurnRecord)

_STORED = tuple(field.name for field in fields(TurnRecord) if field.name != "tool_calls")
TURN_COLUMNS = ", ".join(f"turns.{name}" for name in _STORED)
"""What `turn_record` reads of `turns`, beside `tool_calls`."""
_COLUMNS = f"""
    {", ".join(f"t.{name}" for name in _STORED)},
    CASE WHEN t.status = 'awaiting_tools' THEN (
        SELECT m.tool_calls FROM messages m
        WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'assistant'
        ORDER BY m.seq DESC LIMIT 1) END AS tool_calls
"""

_GET = sql(f"""
    SELECT {_COLUMNS} FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id AND t.id = CAST(:turn_id AS uuid)
    """)

_BY_KEY = sql(f"""
    SELECT {_COLUMNS}, t.request_sha256 FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id
        AND t.idempotency_key = :idempotency_key
    """)


def _page(order: str) -> Statement:
    return sql(f"""
        SELECT {_COLUMNS}, u.name, coalesce(u.said_at, t.created_at) AS said_at
        FROM turns t LEFT JOIN LATERAL (
            SELECT m.name, m.said_at FROM messages m
            WHERE m.session_id = CAST(:session_id AS uuid) AND m.turn_id = t.id AND m.role = 'user'
            ORDER BY m.seq LIMIT 1) u ON true
        WHERE t.session_id = CAST(:session_id AS uuid)
            AND t.seq > CAST(:after_seq AS bigint) AND t.seq < CAST(:before_seq AS bigint)
        ORDER BY t.seq {order} LIMIT CAST(:limit AS integer)
        """)


_PAGES = {False: _page("ASC"), True: _page("DESC")}

_NUMBERS = sql("""
    SELECT id, seq FROM turns
    WHERE session_id = CAST(:session_id AS uuid) AND id = ANY(CAST(:turn_ids AS uuid[]))
    """)


async def turn_numbers(tx: Transaction, session_id: SessionId, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
    """The numbers of these turns by their ids."""
    rows = await tx.fetch(_NUMBERS, session_id=session_id, turn_ids=turn_ids)
    return {TurnId(row["id"]): row["seq"] for row in rows}


async def get_turn(tx: Transaction, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId) -> TurnRecord | None:
    """A turn of the tenant's session."""
    row = await tx.fetchrow(_GET, session_id=session_id, tenant_id=tenant_id, turn_id=turn_id)
    return turn_record(row) if row else None


async def turn_by_key(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, idempotency_key: str
) -> tuple[TurnRecord, str] | None:
    """The turn that was posted with an idempotency key, and the hash of its request."""
    row = await tx.fetchrow(_BY_KEY, session_id=session_id, tenant_id=tenant_id, idempotency_key=idempotency_key)
    return (turn_record(row), row["request_sha256"]) if row else None


async def page_of_turns(
    tx: Transaction, session_id: SessionId, after_seq: int, before_seq: int, limit: int, *, newest_first: bool
) -> list[ListedTurn]:
    """Turns between two numbers, without these, in this order. The caller has checked whose session it is."""
    page = _PAGES[newest_first]
    rows = await tx.fetch(page, session_id=session_id, after_seq=after_seq, before_seq=before_seq, limit=limit)
    return [_turn(ListedTurn, row) for row in rows]


def turn_record(row: Record) -> TurnRecord:
    """A row with a turn's columns, and `tool_calls`, as the domain's value."""
    return _turn(TurnRecord, row)


def _turn(kind: type[T], row: Record) -> T:
    return record_of(kind, row, status=TurnStatus(row["status"]), tool_calls=tool_calls_from_json(row["tool_calls"]))
