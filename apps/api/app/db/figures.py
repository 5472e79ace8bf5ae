"""Figures for lists and plots: a session's turns over time, with their prompts and the summaries between them; open and
changed turns across sessions, with their tenants; and the state of each session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.db.database import Transaction, record_of
from app.db.driver import Record
from app.db.records import USED_TOKENS
from app.db.sessions import FIRST_INPUT
from app.db.sql import OPEN_STATUSES_SQL, by_seq, sql
from app.domain.figures import OpenTurnCount, PointWindow, SessionFigures, TurnChange, WindowFigures
from app.domain.frozen import names_of
from app.domain.types import SessionId, TenantId, TurnStatus

USER_INPUT_CHARS = 160

# One entry for all messages, with their count, or in older rows one for each. Only well-formed entries are read,
# because imports used to accept any others.
_RECALLED = """jsonb_path_query_array(a.context_trim_log, 'lax $.recalled[*] ? (@.tokens.type() == "number"
                && (!exists(@.count) || @.count.type() == "number"))')"""

_NOT_STORED = ("model_alias", "summary_trigger_tokens", "prune_trigger_tokens")
_OF_WINDOW = ", ".join(f"a.{name}" for name in names_of(PointWindow) if name not in _NOT_STORED)

_TURNS = sql(f"""
    SELECT t.id AS turn_id, t.seq, t.status, t.model_alias, left(t.user_input, {USER_INPUT_CHARS}) AS user_input,
        t.prompt_tokens, t.completion_tokens, CAST(t.cost_usd AS float) AS cost_usd, t.created_at, t.completed_at,
        t.request -> 'policy' AS policy, calls.*, last.*
    FROM {by_seq("turns", "t")}
    CROSS JOIN LATERAL (
        SELECT coalesce(max(a.round), 0) AS rounds, coalesce(max(a.attempt), 0) AS attempts,
            coalesce(bool_or(a.summary_triggered), false) AS summary,
            coalesce(bool_or(a.prune_triggered), false) AS prune,
            coalesce(bool_or(a.overflow_rejected), false) AS overflow,
            sum(done.folded) AS folded, sum(done.folded_tokens) AS folded_tokens,
            sum(done.pruned) AS pruned, sum(done.pruned_tokens) AS pruned_tokens,
            sum(done.dropped) AS dropped, sum(done.dropped_tokens) AS dropped_tokens,
            max(back.recalled) AS recalled, max(back.recalled_tokens) AS recalled_tokens
        FROM turn_context_audit a
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(x.several) FILTER (WHERE x.kind = 'summary_folded' AND x.target LIKE 'turn%'), 0)
                    AS folded,
                sum(x.tokens_removed_est) FILTER (WHERE x.kind = 'summary_folded') AS folded_tokens,
                coalesce(sum(x.several) FILTER (WHERE x.kind NOT IN ('summary_folded', 'emergency_drop')), 0)
                    AS pruned,
                sum(x.tokens_removed_est) FILTER (WHERE x.kind NOT IN ('summary_folded', 'emergency_drop'))
                    AS pruned_tokens,
                coalesce(sum(x.several) FILTER (WHERE x.kind = 'emergency_drop' AND x.target LIKE 'turn%'), 0)
                    AS dropped,
                sum(x.tokens_removed_est) FILTER (WHERE x.kind = 'emergency_drop') AS dropped_tokens
            FROM (
                SELECT kind, target, tokens_removed_est, coalesce("count", 1) AS several
                FROM jsonb_to_recordset(a.context_trim_log -> 'actions')
                    AS action(kind text, target text, tokens_removed_est bigint, "count" bigint)
            ) x
        ) done
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(coalesce(x."count", 1)), 0) AS recalled, sum(x.tokens) AS recalled_tokens
            FROM jsonb_to_recordset({_RECALLED}) AS x(tokens numeric, "count" numeric)
        ) back
        WHERE a.session_id = :session_id AND a.turn_id = t.id
    ) calls
    LEFT JOIN LATERAL (
        SELECT a.model_alias AS requested_alias, {_OF_WINDOW}
        FROM turn_context_audit a WHERE a.session_id = :session_id AND a.turn_id = t.id
        ORDER BY a.round DESC, a.attempt DESC LIMIT 1
    ) last ON true
    ORDER BY t.seq DESC
    """)

# Trim logs are read for repeated calls only, because only these can have an emergency drop. Comparing as JSON never
# fails, whatever an import had as a region.
_RANGES = sql("""
    SELECT min(seq) AS first_seq, max(seq) AS last_seq, min(created_at) AS began,
        (array_agg(seq ORDER BY tokens DESC NULLS LAST, seq DESC))[1] AS peak_seq,
        count(*) FILTER (WHERE summary) AS summary, count(*) FILTER (WHERE prune) AS prune,
        count(*) FILTER (WHERE recall) AS recall, count(*) FILTER (WHERE emergency) AS emergency,
        count(*) FILTER (WHERE overflow) AS overflow, count(*) FILTER (WHERE status = 'failed') AS failed
    FROM (
        SELECT t.seq, t.status, t.created_at, max(a.estimated_input_tokens_after_prune) AS tokens,
            bool_or(a.summary_triggered) AS summary, bool_or(a.prune_triggered) AS prune,
            bool_or(a.overflow_rejected) AS overflow, bool_or(a.regions -> 'recall' > CAST('0' AS jsonb)) AS recall,
            bool_or(CASE WHEN a.attempt > 1
                THEN a.context_trim_log @? '$.actions[*] ? (@.kind == "emergency_drop")' END) AS emergency
        FROM turns t LEFT JOIN turn_context_audit a ON a.session_id = t.session_id AND a.turn_id = t.id
        WHERE t.session_id = :session_id AND t.seq BETWEEN :first_seq AND :last_seq
        GROUP BY t.seq, t.status, t.created_at
    ) turn
    GROUP BY (seq - :first_seq) / :turns_each ORDER BY first_seq
    """)

_MOST_SUMMARIES = 10_000
"""Most summaries that are read at once, the newest: an imported session may have any number of them for one turn."""
_SUMMARIES = sql(f"""
    SELECT id, status, origin, created_by_turn_id, created_at FROM session_summaries
    WHERE session_id = :session_id AND created_at >= (
            SELECT t.created_at FROM turns t
            WHERE t.session_id = :session_id AND t.seq = :first_seq)
        AND created_at < coalesce((
            SELECT t.created_at FROM turns t
            WHERE t.session_id = CAST(:session_id AS uuid) AND t.seq = CAST(:last_seq AS bigint) + 1), 'infinity')
    ORDER BY created_at DESC LIMIT {_MOST_SUMMARIES}
    """)


async def timeline_turns(tx: Transaction, session_id: SessionId, seqs: Sequence[int]) -> list[Record]:
    """The turns with these numbers, newest first."""
    return await tx.fetch(_TURNS, session_id=session_id, seqs=list(seqs))


async def timeline_ranges(
    tx: Transaction, session_id: SessionId, *, first_seq: int, last_seq: int, turns_each: int
) -> list[Record]:
    """The turns of a range in runs of `turns_each`, in time order: the bounds of each run, how many of its turns had
    each kind of event, and which has the largest prompt."""
    return await tx.fetch(_RANGES, session_id=session_id, first_seq=first_seq, last_seq=last_seq, turns_each=turns_each)


async def summaries_between(tx: Transaction, session_id: SessionId, first_seq: int, last_seq: int) -> list[Record]:
    """The summaries that were made between the start of turn `first_seq` and that of the turn after `last_seq`, the
    newest `_MOST_SUMMARIES` of them: when, for which turn, and with which status; oldest first."""
    made = await tx.fetch(_SUMMARIES, session_id=session_id, first_seq=first_seq, last_seq=last_seq)
    return made[::-1]


# The tenant is looked up for each of these few turns: a join may be planned to begin with all sessions of the tenant.
_TENANT = "(SELECT s.tenant_id FROM sessions s WHERE s.id = t.session_id)"
_COLUMNS = f"{_TENANT} AS tenant_id, " + ", ".join(
    {"turn_id": "t.id AS turn_id"}.get(name, f"t.{name}") for name in names_of(TurnChange)
)

# Three sources, each with its own index: turns that began recently, running ones, and those that had another status at
# the last read. `now()` rather than `clock_timestamp()`, because an index needs a value that is constant during the
# statement. With only one bound of the time, the planner assumes that a third of all turns began so recently. Tenants
# take turns in the rows: an import has any number of turns of any time.
_CHANGED = sql(f"""
    SELECT * FROM (
        SELECT {_COLUMNS}, row_number() OVER (PARTITION BY {_TENANT} ORDER BY t.created_at, t.id) AS place FROM (
            SELECT x.session_id, x.id FROM turns x
            WHERE x.created_at > now() - make_interval(secs => :within_s)
                AND x.created_at <= now() + make_interval(secs => :within_s)
            UNION
            SELECT x.session_id, x.id FROM turns x WHERE x.status = 'running'
            UNION
            SELECT x.session_id, x.id
            FROM unnest(CAST(:session_ids AS uuid[]), CAST(:turn_ids AS uuid[]), CAST(:statuses AS text[]))
                AS w(session_id, id, status)
            JOIN turns x ON x.session_id = w.session_id AND x.id = w.id AND x.status <> w.status
        ) found
        JOIN turns t ON t.session_id = found.session_id AND t.id = found.id
        WHERE {_TENANT} = ANY(:tenant_ids)
    ) changed ORDER BY place, created_at, turn_id LIMIT :limit
    """)

# In the order of `created_at` itself, Postgres may look through all turns for the open ones.
_OPEN = sql(f"""
    SELECT {_COLUMNS} FROM turns t WHERE t.status IN {OPEN_STATUSES_SQL} AND {_TENANT} = :tenant_id
    ORDER BY t.created_at + interval '0' DESC LIMIT :limit
    """)

# Of turns that wait for tools, of which there may be many, only an index is read. A turn with tool calls may last for
# hours, and runs from its newest message on: the user's, or the newest tool output.
_COUNT_OPEN = sql("""
    SELECT status, turns, CAST(extract(epoch FROM statement_timestamp() - oldest) AS float) AS oldest_s FROM (
        SELECT 'awaiting_tools' AS status, count(*) AS turns, min(t.created_at) AS oldest
        FROM turns t WHERE t.status = 'awaiting_tools'
        UNION ALL
        SELECT 'running', count(*), min(coalesce((
            SELECT max(m.created_at) FROM messages m WHERE m.session_id = t.session_id AND m.turn_id = t.id
        ), t.created_at))
        FROM turns t WHERE t.status = 'running'
    ) counted WHERE turns > 0
    """)


async def open_turns(tx: Transaction, tenant_id: TenantId, limit: int) -> list[Record]:
    """The tenant's turns that run or wait for tools, newest first."""
    return await tx.fetch(_OPEN, tenant_id=tenant_id, limit=limit)


async def changed_turns(
    tx: Transaction,
    tenant_ids: Sequence[TenantId],
    watched: Mapping[tuple[UUID, UUID], str],
    *,
    within_s: float,
    limit: int,
) -> list[Record]:
    """The tenants' turns that began in the last `within_s` seconds, run, or have another status than `watched` (by
    session and turn) has: first the oldest of each tenant, then the second of each (`place` 2), and so on."""
    return await tx.fetch(
        _CHANGED,
        tenant_ids=list(tenant_ids),
        session_ids=[session_id for session_id, _ in watched],
        turn_ids=[turn_id for _, turn_id in watched],
        statuses=[*watched.values()],
        within_s=within_s,
        limit=limit,
    )


async def count_open_turns(tx: Transaction) -> Mapping[TurnStatus, OpenTurnCount]:
    """How many turns of all tenants are open, by status; a status that no turn has is missing."""
    rows = await tx.fetch(_COUNT_OPEN)
    return {TurnStatus(row["status"]): OpenTurnCount(row["turns"], max(0.0, row["oldest_s"])) for row in rows}


# Reads a few rows for each session by its key, except for the sums over its calls, which are made together: a planner
# that knows of few sessions with calls would read all calls for each session. A running turn has no audit before
# it ends: then the window of the turn before it is the newest.
_SESSIONS = sql(f"""
    SELECT s.id, s.last_turn_seq AS turns, first.first_input, last.id AS last_turn_id, last.status AS state,
        coalesce(last.completed_at, last.created_at) AS last_turn_at, w.*,
        used.prompt_tokens, used.completion_tokens, used.cost_usd
    FROM unnest(CAST(:session_ids AS uuid[])) AS wanted(id)
    JOIN sessions s ON s.id = wanted.id
    LEFT JOIN LATERAL ({FIRST_INPUT}) first ON true
    LEFT JOIN LATERAL (
        SELECT t.id, t.status, t.created_at, t.completed_at FROM turns t
        WHERE t.session_id = s.id ORDER BY t.seq DESC LIMIT 1
    ) last ON true
    LEFT JOIN LATERAL (
        SELECT a.turn_id, a.model_alias, a.model_context_limit, a.input_budget,
            a.estimated_input_tokens_after_prune AS estimated_input_tokens, a.estimated_wire_tokens
        FROM (SELECT t.id, t.seq FROM turns t WHERE t.session_id = s.id ORDER BY t.seq DESC LIMIT 2) newest
        JOIN turn_context_audit a ON a.session_id = s.id AND a.turn_id = newest.id
        ORDER BY newest.seq DESC, a.round DESC, a.attempt DESC LIMIT 1
    ) w ON true
    LEFT JOIN (
        SELECT u.session_id, {USED_TOKENS}, CAST(sum(u.cost_usd) AS float) AS cost_usd
        FROM usage_records u WHERE u.session_id = ANY(:session_ids) GROUP BY u.session_id
    ) used ON used.session_id = s.id
    """)


async def session_figures(tx: Transaction, session_ids: Sequence[UUID]) -> dict[SessionId, SessionFigures]:
    rows = await tx.fetch(_SESSIONS, session_ids=list(session_ids))
    return {
        SessionId(row["id"]): record_of(
            SessionFigures,
            row,
            window=record_of(WindowFigures, row) if row["turn_id"] else None,
            prompt_tokens=row["prompt_tokens"] or 0,
            completion_tokens=row["completion_tokens"] or 0,
        )
        for row in rows
    }
