"""The first edge of a turn: who may run it, what it sees, and what a conflict means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.db import turns as store
from app.db.audits import get_audit
from app.db.claims import (
    Claim,
    NewTurn,
    ToolOutput,
    WaitingTurn,
    claim_turn,
    fail_lost_turns,
    reclaim_turn,
    waiting_turn,
)
from app.db.database import Transaction
from app.db.responses import ResponseNote, keep_response
from app.db.sessions import session_exists
from app.domain.content import content_text
from app.domain.errors import (
    IdempotencyInFlight,
    IdempotencyKeyReused,
    InvalidRequest,
    NotFound,
    StoredFailure,
    ToolOutputsMismatch,
    TurnInProgress,
    TurnNotOpen,
    located,
)
from app.domain.types import (
    Completion,
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
from app.engine.policy.policy import ContextPolicy, with_whole_past
from app.providers.registry import Model
from app.services.conflicts import retried
from app.services.limits.reserve import reserve_call
from app.services.runtime import Runtime
from app.services.sessions import check_summary_model
from app.services.turn.gather import Gathered, SessionView, budget_of, count_message, read_window, session_policy
from app.services.turn.record import context_of

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is to be asked, in every round of a turn. `recorded_reply` is of one round alone.

    `instructions` are a system layer of this turn; `options` go into the model's request (`CompletionRequest`).
    `policy` lies over the session's own; what is done after the turn goes by the session's. With `whole_past` all of
    the past is sent as it was said, or the turn is refused. `note` is kept with every claim.
    """

    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    recorded_reply: RecordedReply | None = None
    instructions: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Mapping[str, Any] | None = None
    whole_past: bool = False
    note: ResponseNote | None = None

    def stored(self) -> JsonObject | None:
        """What later rounds need, and another try under the same policy; None when there is nothing of either."""
        if not self.tools and not self.policy:
            return None
        return {
            "tools": list(self.tools),
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "instructions": self.instructions,
            "options": dict(self.options),
            "policy": None if self.policy is None else dict(self.policy),
        }


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a client posts. `request_sha256` is the hash of the body without `stream` (contract.md, decision 14).

    With `seq` it is this turn of its session or none.
    """

    content: Content
    request_sha256: str
    asking: Asking = Asking()
    model_alias: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class OutputsRequest:
    """What a client posts when tools have run: (tool call id, content) for each open call.

    `asking` and `model_alias` stand for the turn's own from this round on; None keeps those.
    """

    outputs: tuple[tuple[str, Content], ...]
    recorded_reply: RecordedReply | None = None
    asking: Asking | None = None
    model_alias: str | None = None


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """A turn that has ended or waits for tools, and its `context`, in the contract's shape.

    `completion` is the model's answer that brought it there, and `reply_seq` the number of its message; None where a
    stored turn is told again.
    """

    turn: TurnRecord
    context: JsonObject
    completion: Completion | None = None
    reply_seq: int | None = None


def check(rt: Runtime, request: TurnRequest) -> None:
    """Raises `InvalidRequest` for what can be told before anything is stored."""
    if request.model_alias is not None:
        rt.catalogue.model(request.model_alias)


async def draft_turn(rt: Runtime, request: TurnRequest, idempotency_key: str | None) -> NewTurn:
    """Counts the user's message before any connection is taken.

    The session's model is not known yet, so an encoding is guessed; a wrong guess is counted again once it is.
    """
    alias = request.model_alias or rt.catalogue.default
    with rt.tracer.span("count"):
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
        request=request.asking.stored(),
        seq=request.seq,
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A turn this process may run, with the rows it decides on and how its model is to be asked."""

    tenant_id: TenantId
    claim: Claim
    gathered: Gathered
    gathered_at: datetime
    asking: Asking
    reservation: JsonObject | None = None
    """What the turn has set aside of limits; None where there is none to hold."""


@retried
async def claim_and_gather(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, draft: NewTurn, asking: Asking
) -> Claimed:
    """Transaction one: the turn is claimed and stored with its message, and all a decision needs is read."""
    started_at = rt.now()
    async with rt.database.begin(locking=session_id) as tx:
        claim = await claim_turn(tx, tenant_id, session_id, draft, rt.turn_lease_s)
        if claim is None:
            raise NotFound("session")
        if draft.seq not in (None, claim.seq):
            raise TurnInProgress("The session went on meanwhile.", RETRY_AFTER_S)
        policy = _policy_for(rt, claim, asking)
        gathered = await _gather(
            tx, rt, tenant_id, claim, policy, awake_alias(rt, draft.model_alias or claim.session_alias)
        )
        check_recorded(gathered.model, asking.recorded_reply)
        await _keep_note(tx, claim, asking)
        reservation = await _reserve(tx, rt, tenant_id, claim, gathered, asking, turns=1)
    return Claimed(tenant_id, claim, gathered, started_at, asking, reservation)


@retried
async def claim_outputs(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, request: OutputsRequest
) -> Claimed:
    """Transaction one of a later round: the outputs are stored if they answer exactly the open calls.

    Raises `NotFound`, `TurnNotOpen`, `TurnInProgress`, `ToolOutputsMismatch`.
    """
    outputs = await draft_outputs(rt, request.outputs)
    started_at = rt.now()
    async with rt.database.begin(locking=session_id) as tx:
        waiting = await waiting_turn(tx, tenant_id, session_id, turn_id)
        if waiting is None:
            raise NotFound("turn" if await session_exists(tx, tenant_id, session_id) else "session")
        check_outputs(waiting, [call_id for call_id, _ in request.outputs])
        asking = _asking_again(waiting.request or {}, request)
        claim = await reclaim_turn(
            tx,
            tenant_id,
            session_id,
            turn_id,
            waiting,
            outputs,
            rt.turn_lease_s,
            asking.stored() if request.asking else None,
        )
        if claim is None:
            raise TurnInProgress("The turn goes on already.", RETRY_AFTER_S)
        policy = _policy_for(rt, claim, asking)
        gathered = await _gather(tx, rt, tenant_id, claim, policy, request.model_alias or waiting.model_alias)
        check_recorded(gathered.model, request.recorded_reply)
        await _keep_note(tx, claim, asking)
        reservation = await _reserve(tx, rt, tenant_id, claim, gathered, asking, turns=0)
    return Claimed(tenant_id, claim, gathered, started_at, asking, reservation)


@retried
async def claim_again(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, asking: Asking, model_alias: str
) -> Claimed:
    """Transaction one of another try at a turn that failed or was cancelled: its message is stored already.

    Only for the session's newest turn that was not rejected. Raises `NotFound`, `TurnInProgress`, `UniqueViolated` when
    another turn is open.
    """
    started_at = rt.now()
    async with rt.database.begin(locking=session_id) as tx:
        ended = await waiting_turn(tx, tenant_id, session_id, turn_id)
        if ended is None:
            raise NotFound("turn" if await session_exists(tx, tenant_id, session_id) else "session")
        claim = await reclaim_turn(
            tx,
            tenant_id,
            session_id,
            turn_id,
            ended,
            (),
            rt.turn_lease_s,
            asking.stored(),
            ended_as=(TurnStatus.FAILED, TurnStatus.CANCELLED),
        )
        if claim is None:
            raise TurnInProgress("The turn goes on already.", RETRY_AFTER_S)
        policy = _policy_for(rt, claim, asking)
        gathered = await _gather(tx, rt, tenant_id, claim, policy, awake_alias(rt, model_alias))
        await _keep_note(tx, claim, asking)
        reservation = await _reserve(tx, rt, tenant_id, claim, gathered, asking, turns=1)
    return Claimed(tenant_id, claim, gathered, started_at, asking, reservation)


async def _reserve(
    tx: Transaction, rt: Runtime, tenant_id: TenantId, claim: Claim, gathered: Gathered, asking: Asking, *, turns: int
) -> JsonObject | None:
    return await reserve_call(
        tx,
        rt,
        tenant_id,
        claim,
        gathered,
        turns=turns,
        max_output_tokens=asking.max_output_tokens,
        tools=asking.tools,
        instructions=asking.instructions,
    )


async def _keep_note(tx: Transaction, claim: Claim, asking: Asking) -> None:
    if asking.note is not None:
        await keep_response(tx, claim, asking.note)


def _policy_for(rt: Runtime, claim: Claim, asking: Asking) -> ContextPolicy:
    policy = policy_of_turn(rt, claim.policy, asking.policy)
    return with_whole_past(policy) if asking.whole_past else policy


def policy_of_turn(rt: Runtime, stored: JsonObject, asked: Mapping[str, Any] | None) -> ContextPolicy:
    """The policy of a turn whose body asks for one over the session's. Raises `InvalidRequest` at its place in it."""
    if not asked:
        return session_policy(rt, stored)
    with located("body"):
        policy = session_policy(rt, stored, asked)
    check_summary_model(rt, policy)
    return policy


def _asking_again(stored: JsonObject, request: OutputsRequest) -> Asking:
    """How a later round is asked: as the outputs' poster says or else as the turn was, under the turn's policy."""
    policy = stored.get("policy")
    if request.asking is not None:
        return replace(request.asking, policy=policy)
    return Asking(
        tools=tuple(stored.get("tools", ())),
        tool_choice=_later_choice(stored.get("tool_choice")),
        max_output_tokens=stored.get("max_output_tokens"),
        recorded_reply=request.recorded_reply,
        instructions=stored.get("instructions"),
        options=stored.get("options") or {},
        policy=policy,
    )


def awake_alias(rt: Runtime, model_alias: str) -> str:
    """The alias, or while it is known to be down a fallback of it that has room for input."""
    fallbacks = rt.catalogue.model(model_alias).fallbacks
    with_room = tuple(alias for alias in fallbacks if budget_of(rt.catalogue.model(alias), rt.guarded).input_budget > 0)
    return rt.cooldowns.first_awake(model_alias, with_room)


async def _gather(
    tx: Transaction, rt: Runtime, tenant_id: TenantId, claim: Claim, policy: ContextPolicy, model_alias: str
) -> Gathered:
    session = SessionView(
        tenant_id=tenant_id,
        id=claim.session_id,
        model_alias=claim.session_alias,
        mode=claim.mode,
        agent_role=claim.agent_role,
        room_goal=claim.room_goal,
        instructions=claim.instructions,
        policy=policy,
        summary_count_after_seq=claim.summary_count_after_seq,
        summary_failures=claim.summary_failures,
        summary_failed_at=claim.summary_failed_at,
        recall_indexed_seq=claim.recall_indexed_seq,
    )
    with rt.tracer.span("gather"):
        return await read_window(
            tx, rt, session, model_alias, before_seq=claim.seq, last_message_seq=claim.assistant_seq, for_turn=True
        )


def check_recorded(model: Model, recorded_reply: RecordedReply | None) -> None:
    """A recorded reply stands in for the built-in offline model, never for one that would have answered itself."""
    if recorded_reply is not None and model.provider != "offline":
        raise InvalidRequest(
            "A recorded_reply is only taken for a model of the provider 'offline'.", ("body", "recorded_reply")
        )


def check_outputs(waiting: WaitingTurn, answered: Sequence[str]) -> None:
    """Holds outputs, by call id, to a turn's open calls. Raises as `claim_outputs`."""
    if waiting.status in (TurnStatus.RUNNING, TurnStatus.PENDING):
        raise TurnInProgress("The turn goes on already.", RETRY_AFTER_S)
    if waiting.status is not TurnStatus.AWAITING_TOOLS:
        raise TurnNotOpen(f"The turn is {waiting.status.value} and waits for no tools.")
    open_ids = [call.id for call in waiting.open_calls]
    missing = [call_id for call_id in open_ids if call_id not in answered]
    unknown = [call_id for at, call_id in enumerate(answered) if call_id not in open_ids or call_id in answered[:at]]
    if missing or unknown:
        raise ToolOutputsMismatch(missing, unknown, ("body", "outputs"))


def _later_choice(tool_choice: Any) -> Any:
    """A choice that forces a call holds for the first round alone: forced again, the turn would never end."""
    return tool_choice if tool_choice in (None, "none", "auto") else "auto"


async def draft_outputs(rt: Runtime, outputs: Sequence[tuple[str, Content]]) -> list[ToolOutput]:
    """Counts outputs before any connection is taken."""
    encoding = rt.catalogue.model(rt.catalogue.default).encoding
    drafted: list[ToolOutput] = []
    for call_id, content in outputs:
        tokens, used = await count_message(rt, encoding, content, tool_call_id=call_id)
        drafted.append(ToolOutput(rt.new_id(), call_id, content, tokens, used))
    return drafted


@retried
async def resolve_conflict(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, draft: NewTurn, *, give_up: bool
) -> TurnOutcome | None:
    """The session has an open turn, or the key was used: tells which.

    None when a dead worker's turn was in the way and has been ended, so that claiming again makes sense.
    """
    async with rt.database.begin() as tx:
        lost = await fail_lost_turns(tx, session_id)
        told = None
        if draft.idempotency_key is not None:
            found = await store.turn_by_key(tx, tenant_id, session_id, draft.idempotency_key)
            if found is not None:
                told = await replay(tx, tenant_id, *found, draft.request_sha256)
    rt.telemetry.turns_lost(lost)
    if told is not None:
        return told
    if lost and not give_up:
        return None
    raise TurnInProgress("The session already runs a turn.", RETRY_AFTER_S)


async def replay(
    tx: Transaction, tenant_id: TenantId, turn: TurnRecord, stored_sha256: str, request_sha256: str
) -> TurnOutcome:
    """The stored turn of an idempotency key, told again to the same request. Raises what it ended with."""
    if request_sha256 != stored_sha256:
        raise IdempotencyKeyReused("This idempotency key was used with another body.")
    if turn.error is not None:
        raise StoredFailure(turn.error)
    if turn.status not in (TurnStatus.COMPLETED, TurnStatus.AWAITING_TOOLS):
        raise IdempotencyInFlight("The turn of this idempotency key is still running.", RETRY_AFTER_S)
    audit = await get_audit(tx, tenant_id, turn.session_id, turn.id, None)
    if audit is None:
        raise NotFound("audit")
    return TurnOutcome(turn, context_of(audit))
