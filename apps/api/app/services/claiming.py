"""The first edge of a turn: who may run it, what it sees, and what a conflict means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.db import turns as store
from app.db.audits import get_audit
from app.db.database import Transaction
from app.db.turns import Claim, NewTurn, claim_turn
from app.domain.errors import (
    IdempotencyInFlight,
    IdempotencyKeyReused,
    InvalidRequest,
    NotFound,
    StoredFailure,
    TurnInProgress,
)
from app.domain.types import (
    Content,
    JsonObject,
    RecordedReply,
    SessionId,
    TenantId,
    ToolDefinition,
    TurnId,
    TurnRecord,
    TurnStatus,
)
from app.engine.tokens import content_text
from app.services.gathering import Gathered, SessionView, count_message, read_window, session_policy
from app.services.recording import context_of
from app.services.runtime import Runtime

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a client posts. `request_sha256` is the hash of the body without `stream` (contract, decision 14)."""

    content: Content
    request_sha256: str
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    model_alias: str | None = None
    recorded_reply: RecordedReply | None = None


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """A completed turn and its `context`, in the contract's shape."""

    turn: TurnRecord
    context: JsonObject


def check(rt: Runtime, request: TurnRequest) -> None:
    """Raises `InvalidRequest` for what can be told before anything is stored."""
    if request.tools:
        raise InvalidRequest("Tools are not available in this version.", ("tools",))
    if request.model_alias is not None:
        rt.catalogue.model(request.model_alias)


async def draft_turn(rt: Runtime, request: TurnRequest, idempotency_key: str | None) -> NewTurn:
    """Counts the user's message before any connection is taken.

    The session's model is not known yet, so an encoding is guessed; a wrong guess is counted again once it is.
    """
    alias = request.model_alias or rt.catalogue.default
    tokens, encoding = await count_message(rt, rt.catalogue.model(alias).encoding, request.content)
    return NewTurn(
        turn_id=TurnId(rt.new_id()),
        message_id=rt.new_id(),
        user_input=content_text(request.content),
        content=request.content,
        token_estimate=tokens,
        token_encoding=encoding,
        model_alias=request.model_alias,
        idempotency_key=idempotency_key,
        request_sha256=request.request_sha256,
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A turn this process may run, with the rows it decides on."""

    claim: Claim
    gathered: Gathered
    gathered_at: datetime


async def claim_and_gather(rt: Runtime, tenant_id: TenantId, session_id: SessionId, draft: NewTurn) -> Claimed:
    """Transaction one: the turn is claimed and stored with its message, and all a decision needs is read."""
    started_at = rt.now()
    async with rt.database.begin() as tx:
        claim = await claim_turn(tx, tenant_id, session_id, draft, rt.turn_lease_s)
        if claim is None:
            raise NotFound("session")
        session = SessionView(
            id=session_id,
            model_alias=claim.session_alias,
            mode=claim.mode,
            agent_role=claim.agent_role,
            room_goal=claim.room_goal,
            instructions=claim.instructions,
            policy=session_policy(rt, claim.policy),
            summary_count_after_seq=claim.summary_count_after_seq,
            summary_failures=claim.summary_failures,
            summary_failed_at=claim.summary_failed_at,
        )
        gathered = await read_window(
            tx,
            rt,
            session,
            draft.model_alias or claim.session_alias,
            before_seq=claim.seq,
            last_message_seq=claim.assistant_seq,
        )
    return Claimed(claim, gathered, started_at)


async def resolve_conflict(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, draft: NewTurn, *, give_up: bool
) -> TurnOutcome | None:
    """The session has an open turn, or the key was used: tells which.

    None when a dead worker's turn was in the way and has been ended, so that claiming again makes sense.
    """
    async with rt.database.begin() as tx:
        lost = await store.fail_lost_turns(tx, session_id)
        if draft.idempotency_key is not None:
            found = await store.turn_by_key(tx, tenant_id, session_id, draft.idempotency_key)
            if found is not None:
                return await _replay(tx, tenant_id, *found, draft)
    if lost and not give_up:
        return None
    raise TurnInProgress("The session already runs a turn.", RETRY_AFTER_S)


async def _replay(
    tx: Transaction, tenant_id: TenantId, turn: TurnRecord, request_sha256: str, draft: NewTurn
) -> TurnOutcome:
    if request_sha256 != draft.request_sha256:
        raise IdempotencyKeyReused("This idempotency key was used with another body.")
    if turn.error is not None:
        raise StoredFailure(turn.error)
    if turn.status is not TurnStatus.COMPLETED:
        raise IdempotencyInFlight("The turn of this idempotency key is still running.", RETRY_AFTER_S)
    audit = await get_audit(tx, tenant_id, turn.session_id, turn.id, None)
    if audit is None:
        raise NotFound("audit")
    return TurnOutcome(turn, context_of(audit))
