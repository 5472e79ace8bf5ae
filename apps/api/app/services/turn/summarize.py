"""Makes a summary: calls the summarizer within its own window, accepts or falls back, and stores by compare-and-set.
That one is due after a turn is noted nowhere: it follows from the stored window, also after a crash."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from time import perf_counter
from uuid import UUID

from app.db import summaries as store
from app.db.claims import Claim
from app.db.database import record_of
from app.db.driver import UniqueViolated
from app.db.summaries import AttemptNote
from app.domain.errors import DatabaseUnavailable, InvalidRequest, NotFound
from app.domain.frozen import frozen, replace, values_of
from app.domain.prices import usd_of_rows
from app.domain.stored import NewSummary
from app.domain.types import (
    OPEN_STATUSES,
    Message,
    SessionId,
    SessionRef,
    SessionState,
    Summary,
    SummaryBody,
    SummaryId,
    SummaryOrigin,
    ToolDefinition,
    TurnStatus,
    Usage,
)
from app.engine.messages.turns import no_turn
from app.engine.policy.policy import MIN_SUMMARY_TOKENS
from app.engine.recall.ranking import Evicted
from app.engine.summary.block import render_summary
from app.engine.summary.cached_call import CallChoice
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import shrinks, summary_of
from app.engine.window.past import Past
from app.engine.window.provider_overflow import emergency_summary
from app.engine.window.triggers import fold_behind_answer, may_fold_behind_answer
from app.services.policies import session_policy
from app.services.process_state import summary_task
from app.services.runtime import Runtime, retried
from app.services.turn.gather import layers_of, session_window, snapshot_of
from app.services.turn.planning import planned
from app.services.turn.provider_call import sum_of
from app.services.turn.recall import start_vectors
from app.services.turn.summarizer_call import Summarizer, SummaryJob, chosen_call
from app.services.turn.types import ClaimedTurn, TurnPlan
from app.services.turn.window_rows import WindowRows, with_settled_kept
from app.telemetry.metrics import SummaryOutcome
from app.tokenizers.counters import Estimator

logger = logging.getLogger(__name__)

BREAKER_FAILURES = 3
BREAKER_REST = timedelta(minutes=10)
_BREAKER_OPEN = "breaker_open"
_LEASE_SLACK_S = 10.0
"""Added to the summarizer's own deadline for the time that counting and storing take."""

IN_PROGRESS = "in_progress"
"""The failure of an attempt that was not made because another summary of the session is in progress."""
STALE = "stale"
"""The failure of an attempt whose previous summary is no longer the active one, whose past was changed meanwhile, or
whose turn is no longer ours, though the summary may have been stored."""


@frozen
class SummaryAttempt:
    """The result of an attempt. `summary` is None when nothing could be stored; `failure` says why no answer is used.
    `usage` and `cost_usd` are sums over the calls that were made, None when no model was called, it reported no usage,
    or has no known price."""

    model_alias: str
    failure: str | None
    summary: Summary | None = None
    origin: SummaryOrigin = "model"
    chunks: int = 0
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    choice: CallChoice | None = None

    @property
    def kept_items(self) -> int:
        """The number of items that the service added because the summarizer had left them out."""
        return sum(item.kept for item in self.summary.body.items) if self.summary else 0


async def summarize(rt: Runtime, job: SummaryJob) -> SummaryAttempt:
    """Makes the job's summary and stores it as the session's active one.

    When the summarizer fails, answers outside the contract, would not shrink anything, or may not be called under the
    limits, the deterministic fallback is used and a warning is logged. After three failures in a row the summarizer is
    not called for ten minutes. Nothing is done while another process makes a summary of the session, for a turn while
    this process makes the one after the previous answer, or when one was made since the window was read. Holds no
    database connection while the model works. Raises `LimitExceeded` when a client requested the summary itself.

    If the turn is cancelled, its summary is finished in the background: it is paid for, and the next turn needs it.
    """
    if job.claim is None:
        return await _attempted(rt, job)
    name = summary_task(job.rows.session.id)
    if not job.whatever_others_do and rt.chores.runs(name):
        return SummaryAttempt(job.alias, IN_PROGRESS)
    return await rt.chores.result_of(_attempted(rt, job), name)


async def _attempted(rt: Runtime, job: SummaryJob) -> SummaryAttempt:
    started, session_id = perf_counter(), job.rows.session.id
    summarizer = Summarizer(rt, job, *await chosen_call(rt, job))
    lease_id = job.claim.turn_id if job.claim else rt.new_id()
    known = [alias for alias in summarizer.aliases if alias in rt.catalogue.aliases]
    lease_s = sum(rt.catalogue.model(alias).timeout_s for alias in known) + _LEASE_SLACK_S
    previous_id = job.fold.previous.id if job.fold.previous else None
    try:
        stands, limits = await rt.database.run(
            store.take_summary_lease, session_id, lease_id, lease_s, previous_id, for_turn=job.claim is not None
        )
        if not stands:
            return SummaryAttempt(summarizer.alias, STALE)
        if limits is None and not job.whatever_others_do:
            return SummaryAttempt(summarizer.alias, IN_PROGRESS)
        summarizer.limited = limits != {}
        attempt = await _make(rt, summarizer, job, lease_id)
    except BaseException:  # also when it is cancelled, or the lease's answer lost
        note = AttemptNote(usages=summarizer.used, lease_id=lease_id)
        with suppress(DatabaseUnavailable, UniqueViolated):  # the latter says that the attempt was stored before
            await retried(rt.database.run)(store.store_attempt, job.rows.session, None, note, job.claim)
        raise
    rt.telemetry.summary_finished(when=job.when, outcome=_outcome(attempt), seconds=perf_counter() - started)
    return attempt


async def _make(rt: Runtime, summarizer: Summarizer, job: SummaryJob, lease_id: UUID) -> SummaryAttempt:
    session, estimate, fold = job.rows.session, job.rows.estimate, job.fold
    body = await _called(rt, summarizer, job)
    failure, usage = summarizer.failure, sum_of([record_of(Usage, row) for row in summarizer.used])
    if summarizer.limit and job.when == "requested":
        raise summarizer.limit
    if failure and (left_out := rt.warnings.due((summarizer.alias, failure))) is not None:
        logger.warning(
            "the summarizer %s gave no usable summary (%s); the deterministic fallback stands in, anchors kept; "
            "%d more since the last such line",
            summarizer.alias,
            failure,
            left_out,
        )
    # The fallback reads every sentence of the fold, which takes seconds for megabytes of messages.
    body = body or await asyncio.to_thread(fallback_summary, fold, estimate, focus=job.rows.policy.focus)
    origin: SummaryOrigin = "fallback" if failure else "model"
    summary = summary_of(SummaryId(rt.new_id()), fold, body, origin) if body and shrinks(fold, body, estimate) else None
    # A limit, or a summarizer that was not called, is no failure of the summarizer.
    called = summarizer.limit is None and failure != _BREAKER_OPEN
    note = AttemptNote(job.rows.turn_seq - 1, called, called and failure is not None, summarizer.used, lease_id)
    choice, made_by = summarizer.choice if called else None, summarizer.alias
    new = summary and new_summary(session.id, summary, fold.previous, made_by, estimate, choice, usage, job.claim)
    stored = await retried(rt.database.run)(store.store_attempt, session, new, note, job.claim)
    return SummaryAttempt(
        summary=summary if stored else None,
        origin=origin,
        model_alias=summarizer.alias,
        chunks=len(summarizer.used),
        failure=failure if stored or summary is None else STALE,
        usage=usage,
        cost_usd=usd_of_rows(summarizer.used),
        choice=choice,
    )


async def _called(rt: Runtime, summarizer: Summarizer, job: SummaryJob) -> SummaryBody | None:
    """The summarizer's summary. It is made once more at half the cap if the policy extends its summary and the prompt
    is still too large."""
    if _breaker_open(rt, job.rows.session):
        summarizer.failure = _BREAKER_OPEN
        return None
    body, fold = await summarizer.made(job.fold), job.fold
    if body is None or job.still_too_large is None or fold.cap_tokens // 2 < MIN_SUMMARY_TOKENS:
        return body
    if job.still_too_large(summary_of(SummaryId(rt.new_id()), fold, body, "model")):
        return await summarizer.made_smaller(fold, body)
    return body


def _outcome(attempt: SummaryAttempt) -> SummaryOutcome:
    if attempt.failure == STALE:
        return "stale"
    if attempt.summary is None:
        return "failed"
    return "used" if attempt.origin == "model" else "fallback"


async def note_emergency(rt: Runtime, rows: WindowRows, fold: Fold, claim: Claim) -> Summary | None:
    """Stores the note of turns that an emergency dropped as the session's active summary, without calling a model. None
    when it could not be stored; the turns then stay in the window."""
    body = emergency_summary(fold, rows.estimate)
    if body is None:
        return None
    summary = summary_of(SummaryId(rt.new_id()), fold, body, "emergency")
    new = new_summary(rows.session.id, summary, fold.previous, rows.model.alias, rows.estimate, claim=claim)
    stored = await retried(rt.database.run)(store.store_attempt, rows.session, new, AttemptNote(), claim)
    return summary if stored else None


def _breaker_open(rt: Runtime, session: SessionState) -> bool:
    failed_at = session.summary_failed_at
    return (
        session.summary_failures >= BREAKER_FAILURES and failed_at is not None and rt.now() - failed_at < BREAKER_REST
    )


def new_summary(
    session_id: SessionId,
    summary: Summary,
    previous: Summary | None,
    model_alias: str,
    estimate: Estimator,
    choice: CallChoice | None = None,
    usage: Usage | None = None,
    claim: Claim | None = None,
) -> NewSummary:
    """The row of a summary that replaces `previous`. `choice` is None if no model was called for it."""
    return record_of(
        NewSummary,
        values_of(summary) | values_of(summary.body),
        session_id=session_id,
        previous_summary_id=previous.id if previous else None,
        status="active",
        model_alias=model_alias,
        call=choice and choice.call,
        call_reason=choice and choice.reason,
        token_estimate=estimate(render_summary(summary.body)),
        token_encoding=estimate.encoding,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        created_by_turn_id=claim.turn_id if claim else None,
        created_at=None,
    )


def start_after_turn(
    rt: Runtime, turn: ClaimedTurn, plan: TurnPlan, reply: Message, completed_at: datetime | None, *, is_sound: bool
) -> None:
    """Starts the check of a completed turn's window in the background, if the session's own policy may want a summary.
    `reply` is the turn's last message, said at `completed_at`. `is_sound` says that it is counted in the window's
    encoding and that all steps succeeded."""
    session, options = plan.rows.session, turn.options
    if options.whole_past or options.is_single or "summary_trigger_tokens" in (options.policy or {}):
        return  # none would be sent, or the client controls when summaries are made, and gets each of them
    is_own = not options.policy and plan.model.alias == session.model_alias
    try:
        own = plan.rows.policy if is_own else session_policy(rt, session.policy)
    except InvalidRequest:
        return  # it is no longer allowed; the turn's own policy made the turn possible
    may_be_ahead = own.summarizes_ahead and not _is_first_of_fork(session, plan.snapshot.past)
    if not (own.summarizes_after_turns or may_be_ahead):
        return  # of several edits or regenerations of one message, most have no next turn
    window, reply_tokens = plan.decided.window, reply.tokens + reply.reasoning_tokens
    if not is_own or may_fold_behind_answer(window.snapshot, window.log.tokens_after_summary, reply_tokens):
        is_first = turn.claim.round == turn.claim.fence == 1 and plan.snapshot.summary == plan.rows.summary
        last = replace(reply, said_at=completed_at)
        rows = _rows_after(turn, plan.rows, last) if is_own and is_first and is_sound else None
        work = summarize_after_turn(rt, session, plan.decided.prompt.tools, options.instructions, rows)
        rt.chores.start(work, summary_task(session.id))


def _is_first_of_fork(session: SessionState, past: Past) -> bool:
    """Whether this past ends with the turn through which the session was forked."""
    if session.forked_from is None or not past.turn_count:
        return False
    (newest,) = past.turns_between(past.turn_count - 1, past.turn_count)
    return str(newest.id) == session.forked_from["turn_id"]


def _rows_after(turn: ClaimedTurn, rows: WindowRows, reply: Message) -> WindowRows:
    """The rows that a read of the window would find after this reply completed the turn at its first try."""
    *before, last = [replace(each, unresolved=False) for each in rows.turns]
    assert last.id == turn.claim.turn_id, "the running turn is the newest"
    completed = replace(last, status=TurnStatus.COMPLETED, messages=(*last.messages, reply))
    return replace(rows, turn_seq=turn.claim.seq + 1, turns=(*before, completed), evicted=Evicted())


async def summarize_after_turn(
    rt: Runtime,
    session: SessionRef,
    tools: tuple[ToolDefinition, ...],
    instructions: str | None = None,
    rows: WindowRows | None = None,
) -> None:
    """Makes the summary that is due in the session's window, or that its next turn would have to make, if any.

    `tools` and `instructions` are those of its last turn. `rows` is the window after that turn, counted; it is read if
    it is not given, which may be too late when the client posts the next turn at once. A turn that arrived since is not
    summarized and stays in the window. A result that conflicts with another summary is dropped and logged.
    """
    with rt.tracer.span("after_turn"):
        try:
            rows = await (with_settled_kept(rt, rows) if rows else session_window(rt, session))
        except NotFound:
            return  # erased meanwhile
        turn_seq = next((turn.seq for turn in rows.turns if turn.status in OPEN_STATUSES), rows.turn_seq)
        settled = tuple(turn for turn in rows.turns if turn.status not in OPEN_STATUSES)
        rows = replace(rows, turns=settled, turn_seq=turn_seq, estimate=rt.tokenizers.estimator(rows.encoding))
        snapshot = await snapshot_of(rt, rows, no_turn(rows.turn_seq), tools=tools)
        fold = await planned(fold_behind_answer, snapshot, rows.estimate)
        if fold is None:
            return
        sent = replace(snapshot, layers=layers_of(rt, rows.session, instructions))
        attempt = await summarize(rt, SummaryJob(rows, fold, sent, "post_turn"))
        if attempt.summary is not None and rows.policy.recall.enabled:
            start_vectors(rt, session, attempt.summary.to_message_seq)
        if attempt.failure in (STALE, IN_PROGRESS):
            logger.info("a summary in the background was dropped (%s): another one was faster", attempt.failure)
