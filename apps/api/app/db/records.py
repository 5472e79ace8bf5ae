"""The end of a model call, written in one statement: the turn, its reply, its steps, its audits and its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from app.db.claims import Claim
from app.db.database import Transaction
from app.db.limits import giving_back
from app.db.session_locks import locked_session
from app.db.sql import sql
from app.db.turns import turn_record
from app.domain.audit import Audit
from app.domain.types import JsonObject, TurnRecord, TurnStatus

_WRITTEN = f"""
        WITH {locked_session()}, t AS (
            UPDATE turns
            SET status = CAST(:status AS text), assistant_output = CAST(:assistant_output AS text),
                error = CAST(:error AS jsonb),
                model_alias = :model_alias, finish_reason = CAST(:finish_reason AS text),
                prompt_tokens = CASE WHEN CAST(:prompt_tokens AS bigint) IS NULL THEN prompt_tokens
                    ELSE coalesce(prompt_tokens, 0) + CAST(:prompt_tokens AS bigint) END,
                completion_tokens = CASE WHEN CAST(:completion_tokens AS bigint) IS NULL THEN completion_tokens
                    ELSE coalesce(completion_tokens, 0) + CAST(:completion_tokens AS bigint) END,
                cost_usd = CASE WHEN CAST(:cost_usd AS numeric) IS NULL THEN cost_usd
                    ELSE coalesce(cost_usd, 0) + CAST(:cost_usd AS numeric) END,
                completed_at = CASE WHEN CAST(:status AS text) = 'awaiting_tools' THEN NULL ELSE clock_timestamp() END,
                lease_expires_at = NULL, reservation = NULL
            FROM locked
            WHERE session_id = locked_id AND id = CAST(:turn_id AS uuid)
                AND fence = CAST(:fence AS integer) AND status = 'running'
            RETURNING session_id, id, seq, status, user_input, assistant_output, error, model_alias, finish_reason,
                prompt_tokens, completion_tokens, cost_usd, idempotency_key, created_at, completed_at
        ), m AS (
            INSERT INTO messages (id, session_id, turn_id, seq, role, content, tool_calls, reasoning, reasoning_blocks,
                reasoning_tokens, token_estimate, token_encoding, terms)
            SELECT x.id, t.session_id, t.id, x.seq, 'assistant', x.content, x.tool_calls, x.reasoning,
                x.reasoning_blocks, x.reasoning_tokens, x.token_estimate, x.token_encoding, x.terms
            FROM t, jsonb_to_recordset(CAST(:messages AS jsonb)) AS x(id uuid, seq bigint, content jsonb,
                tool_calls jsonb, reasoning text, reasoning_blocks jsonb, reasoning_tokens bigint,
                token_estimate bigint, token_encoding text, terms bytea)
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
        ), u AS (
            INSERT INTO usage_records (id, session_id, turn_id, purpose, model_alias, prompt_tokens,
                cached_prompt_tokens, cache_write_prompt_tokens, completion_tokens, cost_usd, round)
            SELECT x.id, t.session_id, t.id, x.purpose, x.model_alias, x.prompt_tokens, x.cached_prompt_tokens,
                x.cache_write_prompt_tokens, x.completion_tokens, x.cost_usd, x.round
            FROM t, jsonb_populate_recordset(CAST(NULL AS usage_records), CAST(:usages AS jsonb)) AS x
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
"""
_AS_IT_ENDED = "SELECT t.*, CAST(NULL AS jsonb) AS tool_calls FROM t"
_RECORD = sql(_WRITTEN + _AS_IT_ENDED)
_RECORD_RESERVED = sql(f"""
    {_WRITTEN}, released AS (
        SELECT CAST(:reservation AS jsonb) AS reservation, CAST(:used_turns AS bigint) AS turns,
            CAST(:used_tokens AS bigint) AS tokens, CAST(:used_usd AS numeric) AS usd
        FROM t
    ), {giving_back("released")}
    {_AS_IT_ENDED}
    """)


# Whoever else ends a turn raises its fence: one that is over under our fence was ended by us.
_RECORDED_BY_US = sql("""
    SELECT session_id, id, seq, status, user_input, assistant_output, error, model_alias, finish_reason,
        prompt_tokens, completion_tokens, cost_usd, idempotency_key, created_at, completed_at,
        CAST(NULL AS jsonb) AS tool_calls
    FROM turns
    WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:turn_id AS uuid)
        AND fence = CAST(:fence AS integer) AND status <> 'running'
    """)


@dataclass(frozen=True, slots=True)
class Spent:
    """What was set aside for a call, as `reserve` gave it, and what of it was used."""

    reservation: JsonObject
    turns: int
    tokens: int
    usd: Decimal


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended and all that is recorded of it. The other lists hold rows as JSON objects by column name."""

    status: TurnStatus
    model_alias: str
    steps: Sequence[JsonObject]
    audits: Sequence[Audit]
    blocks: Sequence[JsonObject] = ()
    messages: Sequence[JsonObject] = ()
    assistant_output: str | None = None
    error: JsonObject | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: Decimal | None = None
    usages: Sequence[JsonObject] = ()
    spent: Spent | None = None


async def record_end(tx: Transaction, claim: Claim, end: TurnEnd) -> TurnRecord | None:
    """Writes the end of a running turn, all of it or nothing; None when the claim is no longer ours."""
    spent = end.spent
    of_limits: JsonObject = {}
    if spent is not None:
        of_limits = {
            "reservation": spent.reservation,
            "used_turns": spent.turns,
            "used_tokens": spent.tokens,
            "used_usd": spent.usd,
        }
    row = await tx.fetchrow(
        _RECORD_RESERVED if of_limits else _RECORD,
        session_id=claim.session_id,
        turn_id=claim.turn_id,
        fence=claim.fence,
        status=end.status.value,
        assistant_output=end.assistant_output,
        error=end.error,
        model_alias=end.model_alias,
        finish_reason=end.finish_reason,
        prompt_tokens=end.prompt_tokens,
        completion_tokens=end.completion_tokens,
        cost_usd=end.cost_usd,
        usages=end.usages,
        messages=end.messages,
        steps=end.steps,
        blocks=end.blocks,
        audits=end.audits,
        **of_limits,
    )
    return turn_record(row) if row else None


async def recorded_before(tx: Transaction, claim: Claim) -> TurnRecord | None:
    """The turn as we ended it ourselves, when a commit's answer was lost on its way; None when we did not."""
    row = await tx.fetchrow(_RECORDED_BY_US, session_id=claim.session_id, turn_id=claim.turn_id, fence=claim.fence)
    return turn_record(row) if row else None
