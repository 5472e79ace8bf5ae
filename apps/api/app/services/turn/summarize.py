"""Making a summary: ask the summarizer within its own window, accept or fall back, store it by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from time import perf_counter
from typing import Literal, TypeAlias

from app.db.claims import Claim
from app.db.records import add_usages
from app.db.summaries import note_attempt, release_summary_lease, store_summary, take_summary_lease
from app.domain.errors import DatabaseUnavailable
from app.domain.stored import NewSummary
from app.domain.types import (
    JsonObject,
    SessionId,
    SessionState,
    Summary,
    SummaryId,
    SummaryOrigin,
    Usage,
)
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fallback import fallback_summary
from app.engine.summary.fold import MIN_SUMMARY_TOKENS, Fold
from app.engine.summary.summarizer_prompt import shrinks, summary_of
from app.engine.window.provider_overflow import emergency_summary
from app.services.runtime import Runtime, retried
from app.services.turn.ask_summarizer import SummarizerResult, ask_summarizer, sum_of
from app.services.turn.gather import WindowRows
from app.services.turn.provider_call import total_cost, used_row
from app.telemetry import SummaryOutcome
from app.tokenizers import Estimator

logger = logging.getLogger(__name__)

BREAKER_FAILURES = 3
BREAKER_REST = timedelta(minutes=10)
_LEASE_SLACK_S = 10.0
"""On top of the summarizer's own deadline: what counting and storing take."""


SummaryWhen: TypeAlias = Literal["preflight", "post_turn", "requested"]
IN_PROGRESS = "in_progress"
"""The failure of an attempt that was not made, because another process makes a summary of the session."""
STALE = "stale"
"""The failure of one whose ground somebody else changed meanwhile."""


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """What is to be summarized, and for whom.

    `claim` is the turn that pays for it, None when no turn waits. `turn_seq` is that turn's number or the next: the
    turn count restarts there, whatever comes of it. `still_too_large` says of a summary whether the prompt with it
    still has to lose something; then it is made once more at half the cap. With `whatever_others_do` it is made even
    while another process makes one; whose is kept is decided by compare-and-set.
    """

    fold: Fold
    when: SummaryWhen
    turn_seq: int
    claim: Claim | None = None
    still_too_large: Callable[[Summary], bool] | None = None
    whatever_others_do: bool = False


@dataclass(frozen=True, slots=True)
class SummaryAttempt:
    """What came of trying. `summary` is None when nothing could be stored; `failure` says why no answer is used.

    `usage` and `cost_usd` sum over the calls that were made, of refused answers too; None where the model was not
    called, reported nothing, or has no known price.
    """

    summary: Summary | None
    origin: SummaryOrigin
    model_alias: str
    chunks: int
    failure: str | None
    usage: Usage | None
    cost_usd: Decimal | None


async def summarize(rt: Runtime, rows: WindowRows, job: SummaryJob, estimate: Estimator) -> SummaryAttempt:
    """Makes the fold's summary and stores it as the session's active one.

    A summarizer that fails, answers outside the contract, would not shrink anything, or may not be called under the
    limits is replaced by the deterministic fallback, with a warning; after three failures in a row it is not called for
    ten minutes. Nothing is done while another process makes a summary of the session. Holds no connection while the
    model works. Raises `LimitExceeded` where a client requested the summary itself.
    """
    alias = rows.policy.summary_model or rows.model.alias
    started = perf_counter()
    session_id = rows.session.id
    lease_id = job.claim.turn_id if job.claim else rt.new_id()
    lease_s = _deadline_s(rt, alias) + _LEASE_SLACK_S
    async with rt.database.autocommit() as tx:
        free = await take_summary_lease(tx, session_id, lease_id, lease_s, for_turn=job.claim is not None)
    if not free and not job.whatever_others_do:
        return SummaryAttempt(None, "model", alias, 0, IN_PROGRESS, None, None)
    try:
        attempt = await _make(rt, rows, job, estimate, alias)
    finally:
        with suppress(DatabaseUnavailable):
            async with rt.database.autocommit() as tx:
                await release_summary_lease(tx, session_id, lease_id)
    rt.telemetry.summary_finished(when=job.when, outcome=_outcome(attempt), seconds=perf_counter() - started)
    return attempt


async def _make(rt: Runtime, rows: WindowRows, job: SummaryJob, estimate: Estimator, alias: str) -> SummaryAttempt:
    session, fold = rows.session, job.fold
    result = None
    if not _breaker_open(rt, session):
        result = await ask_summarizer(rt, alias, rows, fold, estimate, turns=int(job.when == "requested"))
    if result is not None and result.body is not None:
        result = await _again_if_too_large(rt, alias, rows, job, result, estimate)
    usages = result.usages if result else ()
    used = [used_row(rt, rt.catalogue.model(alias), "summary", usage) for usage in usages]
    if result and result.limit and job.when == "requested":
        async with rt.database.autocommit() as tx:
            await add_usages(tx, session.id, None, used)
        raise result.limit
    failure = result.failure if result else "breaker_open"
    body = result.body if result and result.body else fallback_summary(fold, estimate)
    if failure:
        logger.warning(
            "the summarizer %s gave no usable summary (%s); the deterministic fallback stands in, anchors kept",
            alias,
            failure,
        )
    origin: SummaryOrigin = "fallback" if failure else "model"
    summary = summary_of(SummaryId(rt.new_id()), fold, body, origin) if body and shrinks(fold, body, estimate) else None
    new = _new_summary(rows, summary, fold, estimate, alias, sum_of(usages), job.claim) if summary else None
    stored = await _store(rt, rows, new, used, job, result)
    return SummaryAttempt(
        summary=summary if stored else None,
        origin=origin,
        model_alias=alias,
        chunks=len(usages),
        failure=failure if stored or summary is None else STALE,
        usage=sum_of(usages),
        cost_usd=total_cost([row["cost_usd"] for row in used]),
    )


def _outcome(attempt: SummaryAttempt) -> SummaryOutcome:
    if attempt.failure == STALE:
        return "stale"
    if attempt.summary is None:
        return "failed"
    return "used" if attempt.origin == "model" else "fallback"


def _deadline_s(rt: Runtime, alias: str) -> float:
    """Of the summarizer's whole call; an alias that the catalogue no longer has is never called."""
    return rt.catalogue.model(alias).timeout_s if alias in rt.catalogue.aliases else 0.0


async def _again_if_too_large(
    rt: Runtime, alias: str, rows: WindowRows, job: SummaryJob, result: SummarizerResult, estimate: Estimator
) -> SummarizerResult:
    """Once more at half the cap where the policy extends its summary and the prompt is still too large with it.

    When that gives nothing, the first answer is cut to the half.
    """
    fold, body = job.fold, result.body
    half = replace(fold, cap_tokens=fold.cap_tokens // 2)
    if body is None or job.still_too_large is None or half.cap_tokens < MIN_SUMMARY_TOKENS:
        return result
    if not job.still_too_large(summary_of(SummaryId(rt.new_id()), fold, body, "model")):
        return result
    again = await ask_summarizer(rt, alias, rows, half, estimate, turns=0)
    shorter = again.body or fit_summary(body, half.cap_tokens, estimate) or body
    return SummarizerResult(shorter, None, (*result.usages, *again.usages))


@retried
async def note_emergency(
    rt: Runtime, rows: WindowRows, fold: Fold, estimate: Estimator, claim: Claim
) -> Summary | None:
    """Stores the note of turns that left at once as the session's active summary, without calling a model.

    None when it could not be stored; the prompt has nothing of the turns then.
    """
    body = emergency_summary(fold, estimate)
    if body is None:
        return None
    summary = summary_of(SummaryId(rt.new_id()), fold, body, "emergency")
    async with rt.database.begin() as tx:
        stored = await store_summary(tx, _new_summary(rows, summary, fold, estimate, rows.model.alias, None, claim))
    return summary if stored else None


@retried
async def restart_count(rt: Runtime, session_id: SessionId, turn_seq: int) -> None:
    """Lets the turn count towards the mandatory summary begin anew with this turn."""
    async with rt.database.autocommit() as tx:
        await note_attempt(tx, session_id, count_after_seq=turn_seq - 1, asked=False, failed=False)


def _breaker_open(rt: Runtime, session: SessionState) -> bool:
    failed_at = session.summary_failed_at
    return (
        session.summary_failures >= BREAKER_FAILURES and failed_at is not None and rt.now() - failed_at < BREAKER_REST
    )


def _new_summary(
    rows: WindowRows,
    summary: Summary,
    fold: Fold,
    estimate: Estimator,
    alias: str,
    usage: Usage | None,
    claim: Claim | None,
) -> NewSummary:
    body = summary.body
    return NewSummary(
        id=summary.id,
        session_id=rows.session.id,
        from_message_id=summary.from_message_id,
        to_message_id=summary.to_message_id,
        to_message_seq=summary.to_message_seq,
        previous_summary_id=fold.previous.id if fold.previous else None,
        summary_text=body.summary_text,
        key_facts=body.key_facts,
        open_questions=body.open_questions,
        decisions=body.decisions,
        action_items=body.action_items,
        status="active",
        origin=summary.origin,
        model_alias=alias,
        token_estimate=estimate(render_summary(body)),
        token_encoding=estimate.encoding,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        created_by_turn_id=claim.turn_id if claim else None,
        fence=claim.fence if claim else None,
        created_at=None,
    )


@retried
async def _store(
    rt: Runtime,
    rows: WindowRows,
    new: NewSummary | None,
    used: Sequence[JsonObject],
    job: SummaryJob,
    result: SummarizerResult | None,
) -> bool:
    """One short transaction: the summary, if its ground still stands, and the attempt and its cost in any case."""
    answered = result is not None and result.limit is None  # a limit says nothing of the summarizer
    failed = result is not None and result.failure is not None and answered
    async with rt.database.begin() as tx:
        await note_attempt(tx, rows.session.id, count_after_seq=job.turn_seq - 1, asked=answered, failed=failed)
        if used:
            await add_usages(tx, rows.session.id, job.claim.turn_id if job.claim else None, used)
        return await store_summary(tx, new) if new else False
