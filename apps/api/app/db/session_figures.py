"""What a list of sessions shows of each: its newest window, what it used, and where it stands.

Everything is read by the session's key, a few rows each, save the sums over its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.db.database import Record, Transaction, record_of
from app.db.sql import sql
from app.domain.figures import SessionFigures, WindowFigures
from app.domain.types import JsonObject, SessionId, TenantId, TurnId

FIRST_INPUT_CHARS = 200
"""Of the first message, as a title for people."""

_FIRST_INPUT = f"""
    SELECT left(t.user_input, {FIRST_INPUT_CHARS}) AS first_input FROM turns t
    WHERE t.session_id = s.id ORDER BY t.seq LIMIT 1
"""

# A running turn has no audit before it ends: then the window of the turn before it is the newest there is.
_FIGURES = sql(f"""
    SELECT s.id, s.last_turn_seq AS turns, first.first_input, last.id AS last_turn_id, last.status AS state,
        coalesce(last.completed_at, last.created_at) AS last_turn_at, w.window,
        used.prompt_tokens, used.completion_tokens, used.cost_usd
    FROM unnest(CAST(:session_ids AS uuid[])) AS wanted(id)
    JOIN sessions s ON s.id = wanted.id
    LEFT JOIN LATERAL ({_FIRST_INPUT}) first ON true
    LEFT JOIN LATERAL (
        SELECT t.id, t.status, t.created_at, t.completed_at FROM turns t
        WHERE t.session_id = s.id ORDER BY t.seq DESC LIMIT 1
    ) last ON true
    LEFT JOIN LATERAL (
        SELECT jsonb_build_object(
            'turn_id', a.turn_id, 'model_alias', a.model_alias, 'model_context_limit', a.model_context_limit,
            'input_budget', a.input_budget, 'estimated_input_tokens', a.estimated_input_tokens_after_prune,
            'estimated_wire_tokens', a.estimated_wire_tokens) AS window
        FROM (SELECT t.id, t.seq FROM turns t WHERE t.session_id = s.id ORDER BY t.seq DESC LIMIT 2) newest
        JOIN turn_context_audit a ON a.session_id = s.id AND a.turn_id = newest.id
        ORDER BY newest.seq DESC, a.round DESC, a.attempt DESC LIMIT 1
    ) w ON true
    LEFT JOIN LATERAL (
        SELECT CAST(sum(u.prompt_tokens) AS bigint) AS prompt_tokens,
            CAST(sum(u.completion_tokens) AS bigint) AS completion_tokens,
            CAST(sum(u.cost_usd) AS float) AS cost_usd
        FROM usage_records u WHERE u.session_id = s.id
    ) used ON true
    """)

_HORIZON = sql("""
    SELECT id FROM sessions WHERE tenant_id = :tenant_id AND id < CAST(:before AS uuid)
    ORDER BY id DESC OFFSET CAST(:most AS integer) LIMIT 1
    """)

_SEARCH = sql(f"""
    SELECT s.id FROM sessions s LEFT JOIN LATERAL ({_FIRST_INPUT}) first ON true
    WHERE s.tenant_id = :tenant_id AND s.id < CAST(:before AS uuid)
        AND (CAST(:horizon AS uuid) IS NULL OR s.id > CAST(:horizon AS uuid))
        AND strpos(lower(concat_ws(' ', s.id, s.room_goal, s.mode, s.agent_role, s.model_alias, s.metadata,
            first.first_input)), lower(:words)) > 0
    ORDER BY s.id DESC LIMIT CAST(:limit AS integer)
    """)


async def session_figures(tx: Transaction, session_ids: Sequence[UUID]) -> dict[SessionId, SessionFigures]:
    """The figures of each. The caller has checked whose sessions they are."""
    rows = await tx.fetch(_FIGURES, session_ids=list(session_ids))
    return {SessionId(row["id"]): _figures(row) for row in rows}


async def search_sessions(
    tx: Transaction, tenant_id: TenantId, words: str, *, before: UUID, limit: int, most_looked_through: int
) -> tuple[list[SessionId], UUID | None]:
    """Ids of the tenant's sessions that have the words in their id, goal, labels, metadata or first message.

    Newest first, of the `most_looked_through` newest with an id below `before`; the second value is where to go on
    looking, None when all have been looked through.
    """
    row = await tx.fetchrow(_HORIZON, tenant_id=tenant_id, before=before, most=most_looked_through - 1)
    horizon = None if row is None else row["id"]
    # The horizon itself is looked at too: what follows is below it.
    floor = None if horizon is None else UUID(int=horizon.int - 1)
    rows = await tx.fetch(_SEARCH, tenant_id=tenant_id, before=before, horizon=floor, words=words, limit=limit)
    return [SessionId(row["id"]) for row in rows], horizon


def _figures(row: Record) -> SessionFigures:
    window: JsonObject | None = row["window"]
    return record_of(
        SessionFigures,
        row,
        window=WindowFigures(turn_id=TurnId(UUID(window.pop("turn_id"))), **window) if window else None,
        prompt_tokens=row["prompt_tokens"] or 0,
        completion_tokens=row["completion_tokens"] or 0,
    )
