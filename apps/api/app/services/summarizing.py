"""Making a summary: ask the summarizer within its own window, accept or fall back, store it by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter

from app.db.claims import Claim
from app.db.summaries import NewSummary, note_attempt, store_summary
from app.domain.errors import ProviderError
from app.domain.types import (
    CompletionRequest,
    Message,
    SessionId,
    Summary,
    SummaryBody,
    SummaryId,
    SummaryOrigin,
    Usage,
)
from app.engine.fallback import fallback_summary
from app.engine.folding import Fold
from app.engine.summaries import (
    SUMMARY_SCHEMA,
    SourceMessage,
    SummaryRefused,
    accept_summary,
    ask_for_summary,
    split_for_summarizer,
    summarizer_room,
)
from app.engine.summary_block import fit_summary, render_summary
from app.engine.tokens import MESSAGE_FRAMING_TOKENS
from app.providers.registry import Model
from app.services.gathering import Gathered, SessionView, budget_of
from app.services.runtime import Runtime
from app.tokenizers import Estimator

logger = logging.getLogger(__name__)

BREAKER_FAILURES = 3
BREAKER_REST = timedelta(minutes=10)
_ANSWER_TOKENS_PER_CAP = 2
"""An answer carries ids and JSON beside the text that is capped."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of trying. `summary` is None when nothing could be stored; `failure` says why no answer is used.

    `usage` sums over the chunks that were asked for; None when the model was not asked or reported none.
    """

    summary: Summary | None
    origin: SummaryOrigin
    model_alias: str
    chunks: int
    failure: str | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class _Answer:
    body: SummaryBody
    chunks: int
    usage: Usage | None


async def summarize(
    rt: Runtime, gathered: Gathered, fold: Fold, estimate: Estimator, claim: Claim | None, turn_seq: int
) -> Attempt:
    """Makes the fold's summary and stores it as the session's active one.

    A summarizer that fails, answers outside the contract, or would not shrink anything is replaced by the deterministic
    fallback, with a warning; after three failures in a row it is not asked for ten minutes. `claim` is the turn that
    pays for it, `turn_seq` its number: the turn count restarts there, whatever came of it. Holds no connection while
    the model works.
    """
    alias = gathered.session.policy.summary_model or gathered.model.alias
    answer: _Answer | None = None
    failure = "breaker_open" if _breaker_open(rt, gathered.session) else None
    asked = failure is None
    if asked:
        try:
            answer = await _ask(rt, rt.catalogue.model(alias), gathered.session, fold, estimate)
        except ProviderError as error:
            failure = error.code
        except SummaryRefused as refusal:
            failure = refusal.reason
    body = answer.body if answer else fallback_summary(fold, estimate)
    if failure:
        logger.warning(
            "the summarizer %s gave no usable summary (%s); the deterministic fallback stands in, anchors kept",
            alias,
            failure,
        )
    origin: SummaryOrigin = "model" if answer else "fallback"
    summary = _summary(rt, fold, body, origin) if body and _shrinks(fold, body, estimate) else None
    stored = await _store(rt, gathered.session, summary, fold, estimate, alias, answer, claim, turn_seq, asked=asked)
    return Attempt(
        summary=summary if stored else None,
        origin=origin,
        model_alias=alias,
        chunks=answer.chunks if answer else 0,
        failure=failure if stored or summary is None else "stale",
        usage=answer.usage if answer else None,
    )


async def restart_count(rt: Runtime, session_id: SessionId, turn_seq: int) -> None:
    """Lets the turn count towards the mandatory summary begin anew with this turn."""
    async with rt.database.autocommit() as tx:
        await note_attempt(tx, session_id, count_after_seq=turn_seq - 1, asked=False, failed=False)


def _breaker_open(rt: Runtime, session: SessionView) -> bool:
    failed_at = session.summary_failed_at
    return (
        session.summary_failures >= BREAKER_FAILURES and failed_at is not None and rt.now() - failed_at < BREAKER_REST
    )


def _shrinks(fold: Fold, body: SummaryBody, estimate: Estimator) -> bool:
    return estimate(render_summary(body)) + MESSAGE_FRAMING_TOKENS < fold.folded_tokens


async def _ask(rt: Runtime, model: Model, session: SessionView, fold: Fold, estimate: Estimator) -> _Answer:
    """Asks chunk by chunk, each with what the one before gave as its previous summary.

    Raises `ProviderError`, `SummaryRefused`.
    """
    budget = budget_of(model, session.policy)
    answer_tokens = min(budget.output_reserve, fold.cap_tokens * _ANSWER_TOKENS_PER_CAP)
    room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate)
    if room <= 0:
        raise SummaryRefused("summarizer_window_too_small")
    body = fold.previous.body if fold.previous else None
    usages: list[Usage] = []
    chunks = split_for_summarizer(fold, room, estimate)
    for chunk in chunks:
        answered, usage = await _ask_chunk(
            rt, model, chunk, body, fold.context, fold.cap_tokens, answer_tokens, room, estimate
        )
        usages += [usage] if usage else []
        body = fit_summary(answered, fold.cap_tokens, estimate)
        if body is None:
            raise SummaryRefused("over_cap")
    if body is None:
        raise SummaryRefused("empty")
    if not _shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return _Answer(body, len(chunks), _sum(usages))


async def _ask_chunk(
    rt: Runtime,
    model: Model,
    chunk: Sequence[SourceMessage],
    previous: SummaryBody | None,
    context: Sequence[Message],
    cap_tokens: int,
    answer_tokens: int,
    room: int,
    estimate: Estimator,
) -> tuple[SummaryBody, Usage | None]:
    ask = ask_for_summary(
        chunk, previous=previous, context=context, max_tokens=cap_tokens, room_tokens=room, estimate=estimate
    )
    request = CompletionRequest(
        messages=ask.messages, max_output_tokens=answer_tokens, purpose="summary", response_schema=SUMMARY_SCHEMA
    )
    started = perf_counter()
    error_kind: str | None = None
    try:
        completion = await rt.catalogue.provider(model.alias).complete(request)
    except ProviderError as error:
        error_kind = error.kind
        raise
    finally:
        rt.telemetry.provider_call(
            alias=model.alias, purpose="summary", seconds=perf_counter() - started, error_kind=error_kind
        )
    return accept_summary(completion.text, ask.known_ids), completion.usage


def _sum(usages: Sequence[Usage]) -> Usage | None:
    if not usages:
        return None
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_prompt_tokens for usage in usages),
    )


def _summary(rt: Runtime, fold: Fold, body: SummaryBody, origin: SummaryOrigin) -> Summary:
    messages = fold.messages
    return Summary(
        id=SummaryId(rt.new_id()),
        body=body,
        from_message_id=fold.previous.from_message_id if fold.previous else messages[0].id,
        to_message_id=messages[-1].id,
        to_message_seq=messages[-1].seq,
        origin=origin,
    )


async def _store(
    rt: Runtime,
    session: SessionView,
    summary: Summary | None,
    fold: Fold,
    estimate: Estimator,
    alias: str,
    answer: _Answer | None,
    claim: Claim | None,
    turn_seq: int,
    *,
    asked: bool,
) -> bool:
    """One short transaction: the summary, if its ground still stands, and the attempt in any case."""
    usage = answer.usage if answer else None
    async with rt.database.begin() as tx:
        await note_attempt(tx, session.id, count_after_seq=turn_seq - 1, asked=asked, failed=asked and answer is None)
        if summary is None:
            return False
        new = NewSummary(
            id=summary.id,
            body=summary.body,
            from_message_id=summary.from_message_id,
            to_message_id=summary.to_message_id,
            to_message_seq=summary.to_message_seq,
            previous_id=fold.previous.id if fold.previous else None,
            origin=summary.origin,
            model_alias=alias,
            token_estimate=estimate(render_summary(summary.body)),
            token_encoding=estimate.encoding,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            created_by=(claim.turn_id, claim.fence) if claim else None,
        )
        return await store_summary(tx, session.id, new)
