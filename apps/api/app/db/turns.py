"""Turns: claimed in one statement, settled in one statement, read by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from app.db.database import Record, Transaction
from app.db.sql import compile_sql
from app.domain.types import JsonObject, SessionId, TenantId, ToolCall, TurnId, TurnRecord, TurnStatus

# The session row's lock orders everything that happens to a session: turn numbers are given out under it, and it is
# taken before the turn's own row by every statement that takes both.
_CLAIM = compile_sql(
    sa.text(
        """
        WITH s AS (
            UPDATE sessions
            SET last_turn_seq = last_turn_seq + 1, last_message_seq = last_message_seq + 2,
                updated_at = clock_timestamp()
            WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id
            RETURNING id, model_alias, mode, agent_role, room_goal, instructions, policy, last_turn_seq,
                last_message_seq, summary_count_after_seq, summary_failures, summary_failed_at
        ), t AS (
            INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, idempotency_key, request_sha256,
                lease_expires_at)
            SELECT CAST(:turn_id AS uuid), s.id, s.last_turn_seq, 'running', :user_input,
                coalesce(CAST(:model_alias AS text), s.model_alias), CAST(:idempotency_key AS text), :request_sha256,
                clock_timestamp() + make_interval(secs => CAST(:lease_s AS float))
            FROM s
            RETURNING id, session_id, created_at
        ), m AS (
            INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
            SELECT CAST(:message_id AS uuid), t.session_id, t.id, s.last_message_seq - 1, 'user',
                CAST(:content AS jsonb), CAST(:token_estimate AS bigint), :token_encoding
            FROM s, t
        )
        SELECT s.*, t.created_at AS turn_created_at FROM s, t
        """
    )
)

_SETTLE = compile_sql(
    sa.text(
        """
        WITH t AS (
            UPDATE turns
            SET status = :status, assistant_output = CAST(:assistant_output AS text), error = CAST(:error AS jsonb),
                model_alias = :model_alias, finish_reason = CAST(:finish_reason AS text),
                prompt_tokens = CAST(:prompt_tokens AS bigint), completion_tokens = CAST(:completion_tokens AS bigint),
                completed_at = clock_timestamp(), lease_expires_at = NULL
            WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:turn_id AS uuid)
                AND fence = CAST(:fence AS integer) AND status = 'running'
            RETURNING session_id, id, seq, status, user_input, assistant_output, error, model_alias, finish_reason,
                prompt_tokens, completion_tokens, idempotency_key, created_at, completed_at
        ), m AS (
            INSERT INTO messages (id, session_id, turn_id, seq, role, content, tool_calls, reasoning, token_estimate,
                token_encoding)
            SELECT x.id, t.session_id, t.id, x.seq, 'assistant', x.content, x.tool_calls, x.reasoning,
                x.token_estimate, x.token_encoding
            FROM t, jsonb_to_recordset(CAST(:messages AS jsonb)) AS x(id uuid, seq bigint, content jsonb,
                tool_calls jsonb, reasoning text, token_estimate bigint, token_encoding text)
        ), st AS (
            INSERT INTO turn_steps (id, turn_id, session_id, seq, kind, status, detail, started_at, finished_at)
            SELECT x.id, t.id, t.session_id, x.seq, x.kind, x.status, x.detail, x.started_at, x.finished_at
            FROM t, jsonb_to_recordset(CAST(:steps AS jsonb)) AS x(id uuid, seq integer, kind text, status text,
                detail jsonb, started_at timestamptz, finished_at timestamptz)
        ), b AS (
            INSERT INTO prompt_blocks (session_id, sha256, content)
            SELECT t.session_id, x.sha256, x.content
            FROM t, jsonb_to_recordset(CAST(:blocks AS jsonb)) AS x(sha256 text, content text)
            ON CONFLICT DO NOTHING
        ), a AS (
            INSERT INTO turn_context_audit (id, turn_id, session_id, round, attempt, model_alias, model_context_limit,
                context_limit_source, output_reserve, overhead_reserve, input_budget, estimator, calibration_ratio,
                estimated_input_tokens_before, estimated_input_tokens_after_summary,
                estimated_input_tokens_after_prune, estimated_wire_tokens, actual_prompt_tokens, summary_triggered,
                prune_triggered, overflow_rejected, regions, context_trim_log, prompt_refs, prompt_sha256)
            SELECT x.id, t.id, t.session_id, x.round, x.attempt, x.model_alias, x.model_context_limit,
                x.context_limit_source, x.output_reserve, x.overhead_reserve, x.input_budget, x.estimator,
                x.calibration_ratio, x.estimated_input_tokens_before, x.estimated_input_tokens_after_summary,
                x.estimated_input_tokens_after_prune, x.estimated_wire_tokens, x.actual_prompt_tokens,
                x.summary_triggered, x.prune_triggered, x.overflow_rejected, x.regions, x.context_trim_log,
                x.prompt_refs, x.prompt_sha256
            FROM t, jsonb_populate_recordset(CAST(NULL AS turn_context_audit), CAST(:audits AS jsonb)) AS x
        )
        SELECT * FROM t
        """
    )
)

_COLUMNS = """
    t.session_id, t.id, t.seq, t.status, t.user_input, t.assistant_output, t.error, t.model_alias, t.finish_reason,
    t.prompt_tokens, t.completion_tokens, t.idempotency_key, t.created_at, t.completed_at
"""

_GET = compile_sql(
    sa.text(
        f"""
        SELECT {_COLUMNS} FROM turns t JOIN sessions s ON s.id = t.session_id
        WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id AND t.id = CAST(:turn_id AS uuid)
        """
    )
)

_BY_KEY = compile_sql(
    sa.text(
        f"""
        SELECT {_COLUMNS}, t.request_sha256 FROM turns t JOIN sessions s ON s.id = t.session_id
        WHERE s.id = CAST(:session_id AS uuid) AND s.tenant_id = :tenant_id
            AND t.idempotency_key = :idempotency_key
        """
    )
)

_PAGE = compile_sql(
    sa.text(
        f"""
        SELECT {_COLUMNS} FROM turns t
        WHERE t.session_id = CAST(:session_id AS uuid) AND t.seq > CAST(:after_seq AS bigint)
        ORDER BY t.seq LIMIT CAST(:limit AS integer)
        """
    )
)

_LOSE = """
    UPDATE turns SET status = 'failed', fence = fence + 1, lease_expires_at = NULL, completed_at = clock_timestamp(),
        error = CAST(:error AS jsonb)
    WHERE status = 'running' AND lease_expires_at < clock_timestamp()
"""
_LOSE_IN_SESSION = compile_sql(sa.text(f"{_LOSE} AND session_id = CAST(:session_id AS uuid)"))
_LOSE_ANYWHERE = compile_sql(sa.text(_LOSE))

_RENEW = compile_sql(
    sa.text(
        """
        UPDATE turns SET lease_expires_at = clock_timestamp() + make_interval(secs => CAST(:lease_s AS float))
        FROM unnest(CAST(:session_ids AS uuid[]), CAST(:turn_ids AS uuid[]), CAST(:fences AS integer[]))
            AS x(session_id, turn_id, fence)
        WHERE turns.session_id = x.session_id AND turns.id = x.turn_id AND turns.fence = x.fence
            AND turns.status = 'running'
        """
    )
)

_WORKER_LOST: JsonObject = {
    "code": "worker_lost",
    "detail": "The process that ran this turn stopped before it was done. The message is kept; the model is not asked "
    "again by itself.",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn that this process may run: what was claimed, and the session row as it was under the lock.

    `assistant_seq` is the message number set aside for the reply.
    """

    session_id: SessionId
    turn_id: TurnId
    fence: int
    seq: int
    user_seq: int
    assistant_seq: int
    created_at: datetime
    session_alias: str
    mode: str | None
    agent_role: str | None
    room_goal: str | None
    instructions: str | None
    policy: JsonObject
    summary_count_after_seq: int
    summary_failures: int
    summary_failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What a claim stores. `content` is the message's JSON content, `user_input` its text."""

    turn_id: TurnId
    message_id: UUID
    user_input: str
    content: Any
    token_estimate: int
    token_encoding: str
    model_alias: str | None
    idempotency_key: str | None
    request_sha256: str


async def claim_turn(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, new: NewTurn, lease_s: float
) -> Claim | None:
    """Stores a running turn with its user message under the session's lock; None when there is no such session.

    Raises `UniqueViolated` when the session already has an open turn or the idempotency key was used.
    """
    row = await tx.fetchrow(
        _CLAIM,
        session_id=session_id,
        tenant_id=tenant_id,
        turn_id=new.turn_id,
        user_input=new.user_input,
        model_alias=new.model_alias,
        idempotency_key=new.idempotency_key,
        request_sha256=new.request_sha256,
        lease_s=lease_s,
        message_id=new.message_id,
        content=new.content,
        token_estimate=new.token_estimate,
        token_encoding=new.token_encoding,
    )
    if row is None:
        return None
    return Claim(
        session_id=session_id,
        turn_id=new.turn_id,
        fence=1,
        seq=row["last_turn_seq"],
        user_seq=row["last_message_seq"] - 1,
        assistant_seq=row["last_message_seq"],
        created_at=row["turn_created_at"],
        session_alias=row["model_alias"],
        mode=row["mode"],
        agent_role=row["agent_role"],
        room_goal=row["room_goal"],
        instructions=row["instructions"],
        policy=row["policy"],
        summary_count_after_seq=row["summary_count_after_seq"],
        summary_failures=row["summary_failures"],
        summary_failed_at=row["summary_failed_at"],
    )


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a turn ended and all that is recorded of it. The lists hold rows as JSON objects by column name."""

    status: TurnStatus
    model_alias: str
    steps: Sequence[JsonObject]
    audits: Sequence[JsonObject]
    blocks: Sequence[JsonObject] = ()
    messages: Sequence[JsonObject] = ()
    assistant_output: str | None = None
    error: JsonObject | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


async def settle_turn(tx: Transaction, claim: Claim, settlement: Settlement) -> TurnRecord | None:
    """Writes the end of a running turn, all of it or nothing; None when the claim is no longer ours."""
    row = await tx.fetchrow(
        _SETTLE,
        session_id=claim.session_id,
        turn_id=claim.turn_id,
        fence=claim.fence,
        status=settlement.status.value,
        assistant_output=settlement.assistant_output,
        error=settlement.error,
        model_alias=settlement.model_alias,
        finish_reason=settlement.finish_reason,
        prompt_tokens=settlement.prompt_tokens,
        completion_tokens=settlement.completion_tokens,
        messages=settlement.messages,
        steps=settlement.steps,
        blocks=settlement.blocks,
        audits=settlement.audits,
    )
    return _record(row) if row else None


async def get_turn(tx: Transaction, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId) -> TurnRecord | None:
    """A turn of the tenant's session."""
    row = await tx.fetchrow(_GET, session_id=session_id, tenant_id=tenant_id, turn_id=turn_id)
    return _record(row) if row else None


async def turn_by_key(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, idempotency_key: str
) -> tuple[TurnRecord, str] | None:
    """The turn that was posted with an idempotency key, and the hash of its request."""
    row = await tx.fetchrow(_BY_KEY, session_id=session_id, tenant_id=tenant_id, idempotency_key=idempotency_key)
    return (_record(row), row["request_sha256"]) if row else None


async def page_of_turns(tx: Transaction, session_id: SessionId, after_seq: int, limit: int) -> list[TurnRecord]:
    """Turns in time order after a `seq`. The caller has checked whose session it is."""
    rows = await tx.fetch(_PAGE, session_id=session_id, after_seq=after_seq, limit=limit)
    return [_record(row) for row in rows]


async def fail_lost_turns(tx: Transaction, session_id: SessionId | None = None) -> int:
    """Ends running turns whose lease is over, of one session or of all; how many there were."""
    if session_id is None:
        return await tx.execute(_LOSE_ANYWHERE, error=_WORKER_LOST)
    return await tx.execute(_LOSE_IN_SESSION, error=_WORKER_LOST, session_id=session_id)


async def renew_leases(tx: Transaction, claims: Sequence[Claim], lease_s: float) -> None:
    """Pushes the leases of running turns out; a claim that is no longer ours is left alone."""
    await tx.execute(
        _RENEW,
        lease_s=lease_s,
        session_ids=[claim.session_id for claim in claims],
        turn_ids=[claim.turn_id for claim in claims],
        fences=[claim.fence for claim in claims],
    )


def tool_calls_from_json(value: Any) -> tuple[ToolCall, ...]:
    """Tool calls as stored (OpenAI's shape) to domain."""
    return tuple(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in value or ())


def _record(row: Record) -> TurnRecord:
    return TurnRecord(
        id=row["id"],
        session_id=row["session_id"],
        seq=row["seq"],
        status=TurnStatus(row["status"]),
        user_input=row["user_input"],
        assistant_output=row["assistant_output"],
        error=row["error"],
        model_alias=row["model_alias"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        idempotency_key=row["idempotency_key"],
        created_at=row["created_at"],
        completed_at=row["completed_at"],
        finish_reason=row["finish_reason"],
    )
