"""The doors of a turn: post one, answer its tool calls, cancel it. A turn runs in a task of its own: once it is
claimed, nobody's going away ends it."""

from __future__ import annotations

import asyncio
from time import perf_counter

from app.db.claims import cancel_turn as store_cancelled
from app.db.database import UniqueViolated
from app.db.sessions import session_exists
from app.db.turns import get_turn
from app.domain.errors import NotFound, TurnCancelled, TurnInProgress, TurnNotOpen
from app.domain.types import SessionId, TenantId, TurnId, TurnRecord
from app.services.conflicts import retried
from app.services.runtime import Runtime
from app.services.turn.claim import (
    RETRY_AFTER_S,
    Asking,
    Claimed,
    OutputsRequest,
    TurnOutcome,
    TurnRequest,
    check,
    claim_again,
    claim_and_gather,
    claim_outputs,
    draft_turn,
    resolve_conflict,
)
from app.services.turn.events import Listener
from app.services.turn.run import TurnRun
from app.services.turn.spans import of_claim, of_turn
from app.telemetry import Span


async def take_turn(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    request: TurnRequest,
    idempotency_key: str | None,
    listen: Listener | None = None,
) -> TurnOutcome:
    """Runs one turn and answers when it is stored: completed, or waiting for tools.

    Raises `NotFound`, `InvalidRequest`, `TurnInProgress`, the idempotency errors, `LimitExceeded` (nothing is stored),
    `ContextBudgetExceeded` (the turn is stored as rejected, nothing was sent), `ProviderError` (it is stored as failed,
    the user's message is kept), `TurnLost`, `TurnCancelled`. A repeated idempotency key is answered from the stored
    turn; `listen` hears nothing.
    """
    check(rt, request)
    started = perf_counter()
    with rt.tracer.span("turn") as span:
        draft = await draft_turn(rt, request, idempotency_key)
        for last_try in (False, True):
            try:
                with rt.tracer.span("claim"):
                    claimed = await claim_and_gather(rt, tenant_id, session_id, draft, request.asking)
            except UniqueViolated:
                replayed = await resolve_conflict(rt, tenant_id, session_id, draft, give_up=last_try)
                if replayed is not None:
                    span.set({"plimsoll.replayed": True})
                    return replayed
            else:
                return await _run(rt, claimed, started, listen, span)
        raise TurnInProgress("The session already runs a turn.", RETRY_AFTER_S)


async def continue_turn(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    turn_id: TurnId,
    request: OutputsRequest,
    listen: Listener | None = None,
) -> TurnOutcome:
    """Answers the open tool calls of a turn and runs its next round.

    Raises as `take_turn`, and `ToolOutputsMismatch`, `TurnNotOpen`.
    """
    started = perf_counter()
    with rt.tracer.span("turn") as span:
        with rt.tracer.span("claim"):
            claimed = await claim_outputs(rt, tenant_id, session_id, turn_id, request)
        return await _run(rt, claimed, started, listen, span)


async def try_again(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    turn_id: TurnId,
    asking: Asking,
    model_alias: str,
    listen: Listener | None = None,
) -> TurnOutcome:
    """Runs the session's newest turn again, which failed or was cancelled: nothing of it is stored twice.

    What it has of complete tool groups stays. Raises as `take_turn`.
    """
    started = perf_counter()
    with rt.tracer.span("turn") as span:
        try:
            with rt.tracer.span("claim"):
                claimed = await claim_again(rt, tenant_id, session_id, turn_id, asking, model_alias)
        except UniqueViolated:
            raise TurnInProgress("The session already runs a turn.", RETRY_AFTER_S) from None
        return await _run(rt, claimed, started, listen, span)


@retried
async def cancel_turn(rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId) -> TurnRecord:
    """Ends a turn that runs or waits for tools; its message is kept. Raises `NotFound`, `TurnNotOpen`."""
    async with rt.database.begin() as tx:
        turn = await get_turn(tx, tenant_id, session_id, turn_id)
        if turn is None:
            raise NotFound("turn" if await session_exists(tx, tenant_id, session_id) else "session")
        if not await store_cancelled(tx, session_id, turn_id):
            raise TurnNotOpen(f"The turn is {turn.status.value}; there is nothing to cancel.")
        cancelled = await get_turn(tx, tenant_id, session_id, turn_id)
    rt.leases.cancel(turn_id)
    assert cancelled is not None
    return cancelled


async def _run(rt: Runtime, claimed: Claimed, started: float, listen: Listener | None, span: Span) -> TurnOutcome:
    if span.recording:
        span.set(of_claim(claimed.tenant_id, claimed.claim))
    task = asyncio.create_task(TurnRun(rt, claimed, started, listen).run())
    rt.leases.hold(claimed.claim, task)
    try:
        outcome = await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise TurnCancelled("The turn was cancelled while it ran; the message is kept.") from None
        raise
    if span.recording:
        span.set(of_turn(outcome.turn))
    return outcome
