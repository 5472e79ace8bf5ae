"""Transaction one of a turn: it claims the turn and reads its window. Conflicts of claims are resolved here."""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from time import perf_counter
from typing import Any, TypeAlias

from app.db.claims import Claim, NewTurn, RequestKey, claim_turn, reclaim_turn, renew_lease, waiting_turn
from app.db.database import Transaction, record_of
from app.db.driver import UniqueViolated
from app.db.messages import last_outputs, messages_of_turn
from app.db.responses import keep_response
from app.db.sessions import lock_session
from app.db.turns import fail_lost_turns, fail_unacknowledged_turn, get_turn, turn_by_key
from app.domain.content import canonical_bytes, canonical_json, content_text
from app.domain.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    SessionBusy,
    ToolOutputsMismatch,
    TransactionConflict,
    TurnInProgress,
    TurnNotOpen,
    existing,
    located,
)
from app.domain.frozen import replace, values_of
from app.domain.limits import CallUse
from app.domain.stored import JsonText
from app.domain.types import (
    FAILED_STATUSES,
    JsonObject,
    RecordedReply,
    SessionRef,
    TenantId,
    TurnId,
    TurnStatus,
)
from app.engine.messages.tokens import PROMPT_FRAMING_TOKENS, TOOL_DEFINITION_FRAMING_TOKENS
from app.engine.messages.turns import most_tokens_of
from app.engine.policy.budget import largest_of
from app.engine.policy.policy import ContextPolicy, of_single_request, with_whole_past
from app.engine.summary.block import render_summary
from app.engine.window.look_back import LOOK_BACK, of_sent
from app.providers.registry import Model
from app.services.limits import most_of, reserve_call
from app.services.policies import session_policy
from app.services.runtime import Runtime, once_available, retried
from app.services.sessions import check_options, existing_in
from app.services.turn.additions import Additions, add, check_outputs, draft_outputs
from app.services.turn.gather import budget_of, layers_of, read_window
from app.services.turn.outcome import answer_again, outcome_again
from app.services.turn.planning import count_message, pack_messages
from app.services.turn.recall import prepare_question, prepare_stored_question
from app.services.turn.types import ClaimedTurn, OutputsRequest, TurnOptions, TurnOutcome, TurnRequest
from app.services.turn.window_rows import WindowRows, encoding_of

_Claimed: TypeAlias = tuple[Claim, TurnOptions, str]
"""The claim, and the options and the model alias of the round."""

_ENDED = (*FAILED_STATUSES, TurnStatus.COMPLETED)
_IN_PROGRESS = "The session has a turn that runs or waits for tool outputs. Wait, post the outputs, or cancel it."
_BYTES_PER_TOKEN = 2
"""Assumed for text that is not counted yet, in any script. It overestimates; the unused part of a reservation is given
back."""
_BLOCK_FRAMING_TOKENS = 64
"""More than the framing and the delimiters of a block take. Those of a pin take the most."""
_NOT_STORED = (TransactionConflict, SessionBusy)
"""Those of the database's errors that say that nothing of a transaction is stored."""
_OF_THE_LEASE = 6
"""The lease begins with the claiming statement, which may wait for the lock of the session's row. A lease of which more
than a sixth has passed before the commit is renewed at once: it must not end before its regular renewal at a third."""


async def claim(
    rt: Runtime, session: SessionRef, request: TurnRequest, idempotency_key: str | None
) -> ClaimedTurn | TurnOutcome:
    """Stores a new turn with its message and claims it. Returns the stored outcome if its idempotency key has one.
    Raises `NotFound`, `InvalidRequest`, `TurnInProgress`, the idempotency errors and `LimitExceeded`; then nothing is
    stored."""
    draft = await draft_turn(rt, request, idempotency_key)
    await prepare_question(rt, session, request.content)
    for _ in range(2):
        try:
            with rt.tracer.span("claim"):
                return await claim_drafted(rt, session, draft, request.options, request.additions)
        except UniqueViolated:
            answered = await _resolve_conflict(rt, session, draft)
            if answered is not None:
                return answered
    raise TurnInProgress(_IN_PROGRESS)


async def claim_outputs(
    rt: Runtime, session: SessionRef, turn_id: TurnId, request: OutputsRequest
) -> ClaimedTurn | TurnOutcome:
    """Claims a later round and stores its outputs, which must answer exactly the open calls. Returns the stored outcome
    if they are repeated. Raises `NotFound`, `TurnNotOpen`, `TurnInProgress`, `ToolOutputsMismatch`, `LimitExceeded`,
    and the errors of `answer_again`."""
    await prepare_stored_question(rt, session, turn_id)
    with rt.tracer.span("claim"):
        outputs = await draft_outputs(rt, request.outputs)

        async def answered(tx: Transaction) -> _Claimed:
            waiting = await existing_in(tx, session, await waiting_turn(tx, session, turn_id), "turn")
            check_outputs(waiting, [str(output.tool_call_id) for output in request.outputs])
            options = _options_again(waiting.request, request)
            stored = _stored(options) if request.options else None
            claim = await reclaim_turn(tx, session, turn_id, waiting, outputs, rt.turn_lease_s, stored)
            return _ours(claim), options, request.model_alias or waiting.model_alias

        try:
            return await _transaction_one(rt, session, answered, request.additions, turns=0)
        except (TurnNotOpen, TurnInProgress, ToolOutputsMismatch):
            repeated = await _repeated(rt, session, turn_id, request) if request.is_repeatable else None
            if repeated is None:
                raise
            return repeated


async def claim_retry(
    rt: Runtime,
    session: SessionRef,
    turn_id: TurnId,
    options: TurnOptions,
    model_alias: str,
    key: RequestKey | None = None,
    past_version: int | None = None,
) -> ClaimedTurn:
    """Claims a turn as `retry_turn` runs it: the session's newest one that was not rejected. Raises `NotFound`,
    `TurnInProgress`, `LimitExceeded`."""

    async def found_ended(tx: Transaction) -> _Claimed:
        ended = await existing_in(tx, session, await waiting_turn(tx, session, turn_id), "turn")
        request, lease_s = _stored(options), rt.turn_lease_s
        claim = await reclaim_turn(tx, session, turn_id, ended, (), lease_s, request, ended_as=_ENDED, key=key)
        ours = _ours(claim)
        if not await messages_of_turn(tx, session.id, turn_id):
            raise TurnInProgress("The turn's messages were removed meanwhile.")
        if past_version is not None and ours.session.past_version != past_version + 1:  # the claim counts as a change
            raise TurnInProgress("The session's past changed meanwhile.")
        return ours, options, awake_alias(rt, model_alias, session.tenant_id)

    await prepare_stored_question(rt, session, turn_id)
    try:
        with rt.tracer.span("claim"):
            return await _transaction_one(rt, session, found_ended, turns=1)
    except UniqueViolated:
        raise TurnInProgress(_IN_PROGRESS) from None


async def claim_drafted(
    rt: Runtime, session: SessionRef, draft: NewTurn, options: TurnOptions, additions: Additions | None = None
) -> ClaimedTurn:
    """Claims a turn whose message is counted. Raises the errors of `claim`, and `UniqueViolated` when another turn is
    open or the idempotency key was used."""

    async def stored(tx: Transaction) -> _Claimed:
        claim = existing(await claim_turn(tx, session, draft, rt.turn_lease_s), "session")
        past_version = claim.session.past_version
        if draft.seq not in (None, claim.seq) or draft.past_version not in (None, past_version):
            raise TurnInProgress("The session went on meanwhile, or its past changed.")
        alias = draft.model_alias or claim.session.model_alias
        if options.provider_options:
            check_options(rt, alias, options.provider_options, "body", "options")
        return claim, options, awake_alias(rt, alias, session.tenant_id)

    return await _transaction_one(rt, session, stored, additions, turns=1)


@retried
async def _transaction_one(
    rt: Runtime,
    session: SessionRef,
    claimed: Callable[[Transaction], Awaitable[_Claimed]],
    additions: Additions | None = None,
    *,
    turns: int,
) -> ClaimedTurn:
    """Stores the additions, claims the turn, reads all that a decision needs, and reserves what the call may use.
    `turns` is the number of turns that the round counts as under limits."""
    gathered_at, changes_past, committing = rt.now(), additions is not None, None
    try:
        async with rt.database.begin(locking=session.id) as tx:
            added = None if additions is None else await add(rt, tx, session, additions)
            began_at = perf_counter()
            claim, options, model_alias = await claimed(tx)
            changes_past = changes_past or claim.fence > 1
            policy = policy_of_turn(rt, claim.session.policy, options.policy)
            policy = of_single_request(policy) if options.is_single else policy
            policy = with_whole_past(policy) if options.whole_past else policy
            with rt.tracer.span("gather"):
                rows = await read_window(tx, rt, claim.session, policy, model_alias, turn_seq=claim.seq)
            check_recorded(rows.model, options.recorded_reply)
            if options.note is not None:
                await keep_response(tx, claim, options.note)
            reservation = None
            if claim.limits:
                reservation = await reserve_call(tx, claim, _most_of_call(rt, rows, options, turns=turns))
            if perf_counter() - began_at > rt.turn_lease_s / _OF_THE_LEASE:
                await renew_lease(tx, claim, rt.turn_lease_s)
            committing = claim
    except BaseException as error:
        if changes_past:  # what was cached in the transaction is of a past that is not stored
            rt.pasts.forget(session.id)
        may_be_stored = isinstance(error, DatabaseUnavailable | CancelledError) and not isinstance(error, _NOT_STORED)
        if may_be_stored and committing is not None and committing.fence == 1:
            ending = _end_unacknowledged(rt, session, committing.turn_id)
            rt.chores.start(ending, f"the end of turn {committing.turn_id}")
        raise
    looked_back = tuple(of_sent(claim.turn_id, after_seq, json.loads(sent)) for after_seq, sent in claim.looked_back)
    return ClaimedTurn(claim, rows, gathered_at, options, reservation, looked_back, added=added)


async def _end_unacknowledged(rt: Runtime, session: SessionRef, turn_id: TurnId) -> None:
    """Ends a new turn that nobody runs, if its claim was committed: at the latest its lease does."""

    async def ended() -> int:
        async with rt.database.begin(locking=session.id) as tx:
            await lock_session(tx, session)
            return await fail_unacknowledged_turn(tx, session.id, turn_id)

    rt.telemetry.turns_lost(await once_available(ended, rt.turn_lease_s, f"the end of turn {turn_id}"))


def _most_of_call(rt: Runtime, rows: WindowRows, options: TurnOptions, *, turns: int) -> CallUse:
    """The most that a turn's call may use, of the model and its fallbacks: the whole window before pruning with all
    that may be recalled, calibrated, and capped at the largest prompt that may be sent; and the longest answer. `turns`
    is 0 for a later round of a turn."""
    messages, kept, summary = rows.read_messages(), rows.kept, rows.summary
    blocks = [text for _, text in layers_of(rt, rows.session, options.instructions)]
    blocks += [pin.name + pin.content for pin in rows.pins]
    blocks += [rows.session.room_goal] if rows.session.room_goal else []
    blocks += [render_summary(summary.body)] if summary else []
    tools = [*options.tools, *([LOOK_BACK] if rows.model.takes_tools and rows.policy.look_back != "off" else [])]
    estimated_tokens = sum(map(most_tokens_of, messages))
    estimated_tokens += kept.columns.most_tokens(kept.first_turn, kept.end_turn)
    sizes_bytes = [len(text.encode(errors="surrogatepass")) for text in blocks]
    sizes_bytes += [len(canonical_bytes(tool)) for tool in tools]
    estimated_tokens += sum(ceil(size_bytes / _BYTES_PER_TOKEN) for size_bytes in sizes_bytes)
    estimated_tokens += len(blocks) * _BLOCK_FRAMING_TOKENS + len(tools) * TOOL_DEFINITION_FRAMING_TOKENS
    estimated_tokens += PROMPT_FRAMING_TOKENS
    output_pct = rows.policy.allocation.reserved_for_output_pct if rows.policy.allocation else None
    is_counted = all(message.tokens >= 0 for message in messages)

    def most(model: Model) -> CallUse:
        ceiling, output = largest_of(budget_of(model, rows.policy), output_pct)
        ratio = rt.calibrations.ratio(rows.session.tenant_id, model.alias, encoding_of(model, rows.policy))
        prompt = min(ceil(estimated_tokens * ratio), ceiling) if is_counted else ceiling
        return most_of(model, prompt, min(options.max_output_tokens or output, output))

    fallbacks = [rt.catalogue.model(alias, rows.session.tenant_id) for alias in rows.model.fallbacks]
    uses = [most(model) for model in (rows.model, *fallbacks)]
    return CallUse(turns, max(use.tokens for use in uses), max(use.usd for use in uses))


def _ours(claim: Claim | None) -> Claim:
    if claim is None:
        raise TurnInProgress("The turn was continued meanwhile, or another turn followed it.")
    return claim


async def draft_turn(rt: Runtime, request: TurnRequest, idempotency_key: str | None) -> NewTurn:
    """Counts the user's message before a database connection is taken. The session's model is not known yet, so the
    encoding is guessed. After a wrong guess the message is counted again."""
    alias = request.model_alias or rt.catalogue.default
    with rt.tracer.span("count"):
        encoding = rt.catalogue.model(alias).encoding
        tokens, encoding = await count_message(rt, encoding, request.content, name=request.name)
    (terms,) = await pack_messages([("user", request.content, False, request.name)])
    note = request.options.note
    return record_of(
        NewTurn,
        values_of(request),
        turn_id=TurnId(rt.new_id()),
        message_id=rt.new_id(),
        user_input=None if isinstance(request.content, str) else content_text(request.content),
        content=JsonText(canonical_json(request.content)),
        token_estimate=tokens,
        token_encoding=encoding,
        terms=terms,
        idempotency_key=idempotency_key,
        request=_stored(request.options),
        is_of_response=note is not None and note.form.get("conversation") is None,
    )


def _stored(options: TurnOptions) -> JsonText | None:
    """What later rounds need of the options, as it is stored. Tools of megabytes are encoded once, before the claim."""
    given = options.stored()
    return None if given is None else JsonText(canonical_json(given))


def policy_of_turn(rt: Runtime, stored: JsonObject, own: Mapping[str, Any] | None) -> ContextPolicy:
    """The session's policy with the overrides of the turn's body. Raises `InvalidRequest`, located in the body."""
    if not own:
        return session_policy(rt, stored)
    with located("body"):
        return session_policy(rt, stored, own)


def _options_again(stored: JsonObject | None, request: OutputsRequest) -> TurnOptions:
    """The options of a later round: those posted with the outputs, else the turn's own, as its policy is if they have
    none."""
    own = TurnOptions.of_stored(stored)
    if request.options is not None:
        return replace(request.options, policy=request.options.policy or own.policy)
    # A choice that forces a call applies to the first round only: forced in every round, the turn would never end.
    choice = own.tool_choice if own.tool_choice in (None, "none", "auto") else "auto"
    return replace(own, tool_choice=choice, recorded_reply=request.recorded_reply)


def awake_alias(rt: Runtime, model_alias: str, tenant_id: TenantId) -> str:
    """The alias; while it is known to be down for the tenant, a fallback of it that has an input budget."""
    fallbacks = [rt.catalogue.model(alias, tenant_id) for alias in rt.catalogue.model(model_alias).fallbacks]
    with_room = [model.alias for model in fallbacks if budget_of(model, rt.guarded).input_budget > 0]
    return rt.cooldowns.awake(model_alias, with_room, tenant_id)[0]


def check_recorded(model: Model, recorded_reply: RecordedReply | None) -> None:
    """Raises `InvalidRequest` if a recorded reply is given for a model that is not the built-in offline one."""
    if recorded_reply is not None and model.is_language_model:
        raise InvalidRequest(
            "A recorded_reply is only taken for a model of the provider 'offline'.", ("body", "recorded_reply")
        )


@retried
async def _resolve_conflict(rt: Runtime, session: SessionRef, draft: NewTurn) -> TurnOutcome | None:
    """Resolves a claim that failed: the session has an open turn, or the key was used. Returns the key's outcome, or
    None when the open turn was a dead worker's and has been ended: the claim can then be tried again."""
    async with rt.database.begin() as tx:
        lost = await fail_lost_turns(tx, session.id)
        answered = None
        if draft.idempotency_key is not None:
            found = await turn_by_key(tx, session, draft.idempotency_key)
            if found is not None:
                answered = await answer_again(tx, session, *found, draft.request_sha256)
    rt.telemetry.turns_lost(lost)
    if answered is None and not lost:
        raise TurnInProgress(_IN_PROGRESS)
    return answered


@retried
async def _repeated(rt: Runtime, session: SessionRef, turn_id: TurnId, request: OutputsRequest) -> TurnOutcome | None:
    """The outcome of the turn, if these are the outputs with which it was last continued. Raises as `answer_again`."""
    async with rt.database.read_only() as tx:
        turn = existing(await get_turn(tx, session, turn_id), "turn")
        outputs = {str(output.tool_call_id): output.content for output in request.outputs}
        if outputs != await last_outputs(tx, session.id, turn_id, len(outputs)):
            return None
        return await outcome_again(tx, session, turn)
