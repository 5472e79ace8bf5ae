"""The steps of a turn: claim it, decide what is sent, call the model, record the end. A turn runs in a separate task,
so that a claimed turn continues when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from time import perf_counter

from app.db.claims import RequestKey
from app.db.turns import cancel_turn as store_cancelled
from app.db.turns import get_turn
from app.domain.errors import DatabaseUnavailable, PlimsollError, RetryLater, TurnNotOpen
from app.domain.frozen import replace
from app.domain.incoming import IncomingMessage
from app.domain.types import Session, SessionRef, TenantId, TurnId, TurnRecord, TurnStatus
from app.engine.window.plan import Refused
from app.openai.chat_messages import as_one
from app.services.archive.transfer import fork_before_last
from app.services.runtime import Runtime, retried
from app.services.sessions import delete_session, existing_in
from app.services.turn.call import answered
from app.services.turn.claim import claim, claim_outputs, claim_retry
from app.services.turn.decide import decide
from app.services.turn.outcome import ended_elsewhere
from app.services.turn.record import recording
from app.services.turn.steps import of_claim, of_turn
from app.services.turn.types import ClaimedTurn, Listener, OutputsRequest, TurnOptions, TurnOutcome, TurnRequest

_RECORDED_WITHIN_S = 5.0
"""How long the request that cancels a turn waits until its work here has stopped and what had happened is stored."""


async def take_turn(
    rt: Runtime, session: SessionRef, request: TurnRequest, idempotency_key: str | None, listen: Listener | None = None
) -> TurnOutcome:
    """Runs one turn and returns when it is stored as completed or as waiting for tools.

    Raises `NotFound`, `InvalidRequest`, `TurnInProgress`, the idempotency errors, `LimitExceeded` (nothing is stored),
    `ContextBudgetExceeded` (the turn is stored as rejected, nothing was sent), `ProviderError` (it is stored as failed,
    the user's message is kept), `TurnLost`, `TurnCancelled`. A `LimitExceeded` of a call after a look-back is stored as
    a failed turn. A repeated idempotency key is answered from the stored turn, and `listen` gets no events.
    """
    return await _run(rt, claim(rt, session, request, idempotency_key), listen)


async def continue_turn(
    rt: Runtime, session: SessionRef, turn_id: TurnId, request: OutputsRequest, listen: Listener | None = None
) -> TurnOutcome:
    """Answers the open tool calls of a turn and runs its next round, as `take_turn` a new one. Raises its errors,
    `ToolOutputsMismatch` and `TurnNotOpen`."""
    return await _run(rt, claim_outputs(rt, session, turn_id, request), listen)


async def retry_turn(
    rt: Runtime,
    session: SessionRef,
    turn_id: TurnId,
    options: TurnOptions,
    model_alias: str,
    listen: Listener | None = None,
    *,
    key: RequestKey | None = None,
    past_version: int | None = None,
) -> TurnOutcome:
    """Runs the session's newest turn again after it failed, was cancelled, or completed without an answer. Its message
    is not stored again, and its complete tool groups are kept. A request with the `key` is answered with it from now
    on. With `past_version` it is refused unless the past is as it was read. Raises the errors of `take_turn`."""
    return await _run(rt, claim_retry(rt, session, turn_id, options, model_alias, key, past_version), listen)


async def prepare_regeneration(
    rt: Runtime, session: SessionRef, turn_id: TurnId, request: TurnRequest, *, keeps_tools: bool = True
) -> tuple[Session, TurnRequest]:
    """Forks the session before its last turn; returns the fork, and the request that runs that turn again in it. What
    `request` leaves out (content None, no alias, no option) is the turn's own, with `keeps_tools` also the tools.
    Raises `NotFound`, `InvalidRequest`, `TurnNotLast`, `TurnInProgress` when the turn has not ended."""
    fork, turn = await fork_before_last(rt, session, turn_id, has_words=request.content is not None)
    words = zip(turn.contents, turn.names, strict=True)
    messages = [IncomingMessage(at, "user", content, name=name) for at, (content, name) in enumerate(words)]
    sent = as_one(messages) if messages else None
    requested = turn.requested_alias if turn.requested_alias in rt.catalogue.aliases else None
    own = TurnOptions.of_stored(turn.request)
    provider = rt.catalogue.provider(request.model_alias or requested or fork.model_alias)
    own = replace(own, provider_options=provider.supported(own.provider_options))
    complete = replace(
        request,
        content=sent.content if sent and request.content is None else request.content,
        name=sent.name if sent else None,
        said_at=turn.said_at,
        options=_completed(request.options, own, keeps_tools=keeps_tools),
        model_alias=request.model_alias or (None if requested == fork.model_alias else requested),
    )
    return fork, complete


async def regenerate_turn(
    rt: Runtime, tenant_id: TenantId, prepared: tuple[Session, TurnRequest], listen: Listener | None = None
) -> TurnOutcome:
    """Runs the prepared turn. Raises the errors of `take_turn`. The fork is deleted if the turn was not claimed."""
    made, request = prepared
    fork = SessionRef(tenant_id, made.id)

    async def claimed() -> ClaimedTurn | TurnOutcome:
        try:
            return await claim(rt, fork, request, None)
        except PlimsollError:
            with suppress(RetryLater):  # the error tells the client more
                await delete_session(rt, fork)
            raise

    return await _run(rt, claimed(), listen)


async def cancel_turn(rt: Runtime, session: SessionRef, turn_id: TurnId) -> TurnRecord:
    """Ends a turn that runs or waits for tools; its message is kept. If it runs in this process, what is returned has
    the cost of its calls, unless it runs again already; that of a summary which is being made is added to the turn
    later. Raises `NotFound`, `TurnNotOpen`."""
    turn = await _end_cancelled(rt, session, turn_id)
    if running := rt.leases.cancel(session.id, turn_id):
        await asyncio.wait(running, timeout=_RECORDED_WITHIN_S)
        with suppress(DatabaseUnavailable):
            recorded = await rt.database.run(get_turn, session, turn_id)
            if recorded is not None and recorded.status is TurnStatus.CANCELLED:
                return recorded
    return turn


@retried
async def _end_cancelled(rt: Runtime, session: SessionRef, turn_id: TurnId) -> TurnRecord:
    async with rt.database.begin(locking=session.id) as tx:
        is_cancelled = await store_cancelled(tx, session, turn_id)  # first: the turn may end while this waits for it
        turn = await existing_in(tx, session, await get_turn(tx, session, turn_id), "turn")
        if not is_cancelled:
            raise TurnNotOpen(f"The turn is {turn.status.value}; there is nothing to cancel.")
    return turn


async def _run(rt: Runtime, claiming: Awaitable[ClaimedTurn | TurnOutcome], listen: Listener | None) -> TurnOutcome:
    """Claims a turn and runs it under its lease. When the waiting caller is cancelled, the turn continues."""
    started = perf_counter()
    with rt.tracer.span("turn") as span:
        turn = await claiming  # transaction one
        if isinstance(turn, TurnOutcome):
            span.set(lambda: {"plimsoll.replayed": True})
            return turn
        span.set(of_claim, turn.claim)
        task = asyncio.create_task(_round(rt, turn, started, listen))
        rt.leases.hold(turn.claim, task)
        try:
            ended = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            ended = await rt.database.run(ended_elsewhere, turn.claim)
        if isinstance(ended, PlimsollError):
            try:
                raise ended
            finally:
                del ended, task  # they refer to the error, whose traceback refers to this frame
        span.set(of_turn, ended.turn)
        return ended


async def _round(
    rt: Runtime, turn: ClaimedTurn, started: float, listen: Listener | None
) -> TurnOutcome | PlimsollError:
    """The outcome or the error of a turn's round. The error is returned, without its traceback and those of its causes:
    else frames and task would refer to each other and keep the turn's window until the next garbage collection."""
    try:
        async with recording(rt, turn, started, listen) as record:  # whatever fails, the turn gets an end
            plan = await decide(record)  # makes the summary that is due
            if isinstance(plan.decided, Refused):
                await record.rejected(plan, plan.decided.overflow)  # transaction two
                raise plan.decided.overflow
            completion = await answered(record, plan)  # no database connection is held
            return await record.completed(completion)  # transaction two
    except PlimsollError as error:
        cause: BaseException | None = error
        while cause is not None:
            cause = cause.with_traceback(None).__cause__ or cause.__context__
        return error


def _completed(options: TurnOptions, own: TurnOptions, *, keeps_tools: bool) -> TurnOptions:
    """The options, completed with the turn's own where they are left out."""
    complete = replace(
        options,
        max_output_tokens=options.max_output_tokens or own.max_output_tokens,
        instructions=options.instructions or own.instructions,
        provider_options=options.provider_options or own.provider_options,
        policy=own.policy if options.policy is None else options.policy,
    )
    if not keeps_tools:
        return complete
    choice = own.tool_choice if options.tool_choice is None else options.tool_choice
    return replace(complete, tools=own.tools, tool_choice=choice)
