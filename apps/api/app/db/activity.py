"""What turns do now, across sessions: for whoever follows it. Rows name their tenant, and readers keep to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from uuid import UUID

from app.db.database import Record, Transaction
from app.db.sql import sql
from app.db.table_parts import OPEN_STATUSES_SQL
from app.domain.figures import TurnNews
from app.domain.types import OpenTurnCount, TenantId, TurnStatus

_COLUMNS = "s.tenant_id, " + ", ".join(
    {"turn_id": "t.id AS turn_id"}.get(each.name, f"t.{each.name}") for each in fields(TurnNews)
)

# Three ways in, each by an index of its own: begun lately, running, and those that were open when last looked at.
# `now()` and not the clock: an index takes what is the same for the whole statement.
_CHANGED = sql(f"""
    SELECT {_COLUMNS} FROM (
        SELECT x.session_id, x.id FROM turns x
        WHERE x.created_at > now() - make_interval(secs => CAST(:within_s AS float))
        UNION
        SELECT x.session_id, x.id FROM turns x WHERE x.status = 'running'
        UNION
        SELECT w.session_id, w.id
        FROM unnest(CAST(:session_ids AS uuid[]), CAST(:turn_ids AS uuid[])) AS w(session_id, id)
    ) found
    JOIN turns t ON t.session_id = found.session_id AND t.id = found.id
    JOIN sessions s ON s.id = t.session_id
    WHERE s.tenant_id = ANY(CAST(:tenant_ids AS text[]))
    ORDER BY t.created_at, t.id LIMIT CAST(:limit AS integer)
    """)

_OPEN = sql(f"""
    SELECT {_COLUMNS} FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE t.status IN {OPEN_STATUSES_SQL} AND s.tenant_id = :tenant_id
    ORDER BY t.created_at DESC LIMIT CAST(:limit AS integer)
    """)

# Reads the index of open turns, and of the table those rows only.
_COUNT_OPEN = sql(f"""
    SELECT status, count(*) AS turns,
        CAST(extract(epoch FROM statement_timestamp() - min(created_at)) AS float) AS oldest_s
    FROM turns WHERE status IN {OPEN_STATUSES_SQL}
    GROUP BY status
    """)


async def open_turns(tx: Transaction, tenant_id: TenantId, limit: int) -> list[Record]:
    """The tenant's turns that run or wait for tools, newest first."""
    return await tx.fetch(_OPEN, tenant_id=tenant_id, limit=limit)


async def changed_turns(
    tx: Transaction,
    tenant_ids: Sequence[TenantId],
    watched: Sequence[tuple[UUID, UUID]],
    *,
    within_s: float,
    limit: int,
) -> list[Record]:
    """The tenants' turns that began so lately, or run, or are watched (session, turn), oldest first."""
    return await tx.fetch(
        _CHANGED,
        tenant_ids=list(tenant_ids),
        session_ids=[session_id for session_id, _ in watched],
        turn_ids=[turn_id for _, turn_id in watched],
        within_s=within_s,
        limit=limit,
    )


async def count_open_turns(tx: Transaction) -> Mapping[TurnStatus, OpenTurnCount]:
    """How many turns of all tenants are open, by status; a status that no turn has is not in it."""
    rows = await tx.fetch(_COUNT_OPEN)
    return {TurnStatus(row["status"]): OpenTurnCount(row["turns"], max(0.0, row["oldest_s"])) for row in rows}
