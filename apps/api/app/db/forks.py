"""Forks: a session's past up to a turn, copied to a new session by one statement a table.

What it takes of a summary is what could have been known then: one that was made of, or beside, later turns is left out,
and the newest of its line that is not stands in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.db import tables
from app.db.copies import copying, mask_of, new_id, new_references
from app.db.database import Transaction
from app.db.sql import sql
from app.db.table_parts import OPEN_STATUSES_SQL
from app.domain.types import SUMMARY_LISTS, Content, JsonObject, SessionId, SummaryId, TurnId, TurnStatus

# The turn the fork goes through, and the one after it: what that one had before it was the fork's past.
_POINT = sql(f"""
    SELECT coalesce(point.seq, 0) AS through_seq, point.id AS through_id, later.id AS next_id,
        later.created_at AS next_created_at,
        (SELECT coalesce(max(m.seq), 0) FROM messages m
         WHERE m.session_id = CAST(:session_id AS uuid) AND m.turn_id = point.id) AS last_message_seq
    FROM (SELECT CAST(:through_seq AS bigint) AS seq) wanted
    LEFT JOIN turns point ON point.session_id = CAST(:session_id AS uuid) AND point.seq = (
        SELECT max(t.seq) FROM turns t WHERE t.session_id = CAST(:session_id AS uuid)
            AND t.status NOT IN {OPEN_STATUSES_SQL} AND (wanted.seq IS NULL OR t.seq <= wanted.seq))
    LEFT JOIN turns later ON later.session_id = CAST(:session_id AS uuid)
        AND later.seq = coalesce(point.seq, 0) + 1
    """)

_LAST_TURN = sql("""
    SELECT t.id, t.seq, t.status, t.request,
        (SELECT jsonb_agg(m.content ORDER BY m.seq) FROM messages m
         WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'user'
            AND NOT m.withdrawn) AS contents,
        (SELECT a.model_alias FROM turn_context_audit a WHERE a.session_id = t.session_id AND a.turn_id = t.id
         ORDER BY a.round, a.attempt LIMIT 1) AS asked_alias
    FROM turns t WHERE t.session_id = CAST(:session_id AS uuid) ORDER BY t.seq DESC LIMIT 1
    """)

_PAST_TURNS = """x.turn_id IN (SELECT t.id FROM turns t
    WHERE t.session_id = x.session_id AND t.seq <= CAST(:through_seq AS bigint))"""
# A summary that was made for the turn after the past was made of the past alone: a running turn is shown to none. What
# left at once because that turn's prompt was refused is another matter: the turn was part of that.
_PAST_SUMMARY = """x.to_message_seq <= CAST(:last_message_seq AS bigint)
    AND (CAST(:next_id AS uuid) IS NULL
         OR x.created_by_turn_id = CAST(:next_id AS uuid) AND x.origin <> 'emergency'
         OR x.created_at <= CAST(:next_created_at AS timestamptz))"""

_ACTIVE = sql(f"""
    WITH RECURSIVE line AS (
        SELECT x.id, x.previous_summary_id, {_PAST_SUMMARY} AS past FROM session_summaries x
        WHERE x.session_id = CAST(:source AS uuid) AND x.status = 'active'
        UNION
        SELECT x.id, x.previous_summary_id, {_PAST_SUMMARY} FROM line
        JOIN session_summaries x ON x.session_id = CAST(:source AS uuid) AND x.id = line.previous_summary_id
        WHERE NOT line.past
    )
    SELECT id FROM line WHERE past
    """)

# A count that was restarted later is told from what restarted it before: a summary that a turn tried, or was asked for.
_SESSION = sql("""
    INSERT INTO sessions (id, tenant_id, model_alias, mode, agent_role, room_goal, instructions, policy, metadata,
        limits, forked_from, last_turn_seq, last_message_seq, summary_count_after_seq, summary_failures,
        summary_failed_at)
    SELECT CAST(:target AS uuid), x.tenant_id, x.model_alias, x.mode, x.agent_role, x.room_goal, x.instructions,
        x.policy, x.metadata, x.limits, CAST(:forked_from AS jsonb), CAST(:through_seq AS bigint),
        CAST(:last_message_seq AS bigint),
        CASE WHEN x.summary_count_after_seq <= CAST(:through_seq AS bigint) THEN x.summary_count_after_seq
             WHEN EXISTS (SELECT 1 FROM session_summaries s WHERE s.session_id = x.id AND s.origin <> 'emergency'
                 AND s.created_by_turn_id = CAST(:next_id AS uuid)) THEN CAST(:through_seq AS bigint)
             ELSE greatest(0,
                (SELECT t.seq - 1 FROM turns t
                 WHERE t.session_id = x.id AND t.seq <= CAST(:through_seq AS bigint)
                    AND EXISTS (SELECT 1 FROM turn_steps st WHERE st.session_id = t.session_id
                        AND st.turn_id = t.id AND st.kind = 'summarize')
                 ORDER BY t.seq DESC LIMIT 1),
                (SELECT t.seq FROM turns t
                 WHERE t.session_id = x.id AND t.seq <= CAST(:through_seq AS bigint)
                    AND t.created_at < (SELECT max(s.created_at) FROM session_summaries s
                        WHERE s.session_id = x.id AND s.created_by_turn_id IS NULL
                            AND s.to_message_seq <= CAST(:last_message_seq AS bigint)
                            AND (CAST(:next_created_at AS timestamptz) IS NULL
                                 OR s.created_at <= CAST(:next_created_at AS timestamptz)))
                 ORDER BY t.seq DESC LIMIT 1)) END,
        x.summary_failures, x.summary_failed_at
    FROM sessions x
    WHERE x.id = CAST(:source AS uuid)
    """)

_TURNS = copying(
    tables.turns,
    {
        "id": new_id("x.id"),
        # A key is a promise to whoever posted it, at the address where it was posted.
        "idempotency_key": "NULL",
        "reservation": "NULL",
        "error": new_references("x.error"),
    },
    "x.seq <= CAST(:through_seq AS bigint)",
)
_STEPS = copying(
    tables.turn_steps,
    {"id": new_id("x.id"), "turn_id": new_id("x.turn_id"), "detail": new_references("x.detail")},
    _PAST_TURNS,
)
_MESSAGES = copying(
    tables.messages,
    {"id": new_id("x.id"), "turn_id": new_id("x.turn_id")},
    "x.seq <= CAST(:last_message_seq AS bigint)",
)
_COUNTS = copying(
    tables.message_token_counts,
    {"message_id": new_id("x.message_id")},
    """x.message_id IN (SELECT m.id FROM messages m WHERE m.session_id = x.session_id
        AND m.seq <= CAST(:last_message_seq AS bigint))""",
)
_AUDITS = copying(
    tables.turn_context_audit,
    {
        "id": new_id("x.id"),
        "turn_id": new_id("x.turn_id"),
        "context_trim_log": new_references("x.context_trim_log"),
    },
    _PAST_TURNS,
)
_BLOCKS = copying(
    tables.prompt_blocks,
    {},
    """x.sha256 IN (SELECT text.value #>> '{}' FROM turn_context_audit a, turns t,
        jsonb_path_query(a.prompt_refs, 'strict $.** ? (@.type() == "string")') AS text(value)
        WHERE a.session_id = CAST(:source AS uuid) AND t.session_id = a.session_id AND t.id = a.turn_id
            AND t.seq <= CAST(:through_seq AS bigint))""",
)
_SUMMARIES = copying(
    tables.session_summaries,
    {
        "id": new_id("x.id"),
        "from_message_id": new_id("x.from_message_id"),
        "to_message_id": new_id("x.to_message_id"),
        "previous_summary_id": f"""(SELECT {new_id("p.id")} FROM session_summaries p WHERE p.session_id = x.session_id
            AND p.id = x.previous_summary_id AND ({_PAST_SUMMARY.replace("x.", "p.")}))""",
        "created_by_turn_id": f"""CASE WHEN x.created_by_turn_id IS DISTINCT FROM CAST(:next_id AS uuid)
            THEN {new_id("x.created_by_turn_id")} END""",
        **{column: new_references(f"x.{column}") for column in SUMMARY_LISTS},
        "status": "CASE WHEN x.id = CAST(:active_id AS uuid) THEN 'active' ELSE x.status END",
    },
    _PAST_SUMMARY,
)
_PINS = copying(tables.pins, {}, "true")


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a past ends. `through_id` is None when it is empty; `next_id` is the turn after it, where there is one."""

    through_seq: int
    through_id: TurnId | None
    last_message_seq: int
    next_id: TurnId | None
    next_created_at: datetime | None


@dataclass(frozen=True, slots=True)
class LastTurn:
    """A session's newest turn as it would be asked again. `contents` are those of its user messages, often one."""

    id: TurnId
    seq: int
    status: TurnStatus
    contents: Sequence[Content]
    request: JsonObject | None
    asked_alias: str | None


async def fork_point(tx: Transaction, session_id: SessionId, through_seq: int | None) -> ForkPoint:
    """The last turn that has ended, at `through_seq` or before. The caller has checked whose session it is."""
    row = await tx.fetchrow(_POINT, session_id=session_id, through_seq=through_seq)
    if row is None:
        raise LookupError("an outer join with one row gives one row")
    return ForkPoint(**dict(row))


async def last_turn(tx: Transaction, session_id: SessionId) -> LastTurn | None:
    """The newest turn, None in an empty session. The caller has checked whose session it is."""
    row = await tx.fetchrow(_LAST_TURN, session_id=session_id)
    if row is None:
        return None
    return LastTurn(
        id=row["id"],
        seq=row["seq"],
        status=TurnStatus(row["status"]),
        contents=row["contents"] or (),
        request=row["request"],
        asked_alias=row["asked_alias"],
    )


async def copy_past(tx: Transaction, source: SessionId, target: SessionId, point: ForkPoint) -> None:
    """Makes the session `target` with the past of `source` through the point. Wants one snapshot for all it reads."""
    forked_from = {"session_id": source, "turn_id": point.through_id}
    both = {"source": source, "target": target}
    turned = both | {"mask": mask_of(target)}
    through = {"through_seq": point.through_seq}
    messages = {"last_message_seq": point.last_message_seq}
    sight = {"next_id": point.next_id, "next_created_at": point.next_created_at, **messages}
    await tx.execute(_SESSION, **both, **through, **sight, forked_from=forked_from)
    await tx.execute(_TURNS, **turned, **through)
    await tx.execute(_STEPS, **turned, **through)
    await tx.execute(_MESSAGES, **turned, **messages)
    await tx.execute(_COUNTS, **turned, **messages)
    await tx.execute(_AUDITS, **turned, **through)
    await tx.execute(_BLOCKS, **both, **through)
    active_id: SummaryId | None = await tx.fetchval(_ACTIVE, source=source, **sight)
    await tx.execute(_SUMMARIES, **turned, **sight, active_id=active_id)
    await tx.execute(_PINS, **both)
