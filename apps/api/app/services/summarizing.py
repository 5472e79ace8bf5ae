"""Making a summary: ask the summarizer within its own window, accept or fall back, store it by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from time import perf_counter

from app.db.claims import Claim
from app.db.summaries import NewSummary, note_attempt, store_summary
from app.db.usage import add_usages
from app.domain.errors import InvalidRequest, ProviderError
from app.domain.types import (
    CompletionRequest,
    JsonObject,
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
    shrinks,
    split_for_summarizer,
    summarizer_room,
    summary_of,
)
from app.engine.summary_block import fit_summary, render_summary
from app.providers.registry import Model
from app.services.costing import total_cost, used_row
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

    `usage` and `cost_usd` sum over the calls that were made, of refused answers too; None when the model was not asked,
    reported nothing, or has no known price.
    """

    summary: Summary | None
    origin: SummaryOrigin
    model_alias: str
    chunks: int
    failure: str | None
    usage: Usage | None
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What asking came to. `body` is None when `failure` says why; `usages` are paid for either way."""

    body: SummaryBody | None
    failure: str | None
    usages: tuple[Usage, ...]


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
    asked = None
    if not _breaker_open(rt, gathered.session):
        asked = await _ask(rt, alias, gathered.session, fold, estimate)
    failure = asked.failure if asked else "breaker_open"
    body = asked.body if asked and asked.body else fallback_summary(fold, estimate)
    if failure:
        logger.warning(
            "the summarizer %s gave no usable summary (%s); the deterministic fallback stands in, anchors kept",
            alias,
            failure,
        )
    origin: SummaryOrigin = "fallback" if failure else "model"
    summary = summary_of(SummaryId(rt.new_id()), fold, body, origin) if body and shrinks(fold, body, estimate) else None
    usages = asked.usages if asked else ()
    used = [used_row(rt, rt.catalogue.model(alias), "summary", usage) for usage in usages]
    new = _new_summary(summary, fold, estimate, alias, _sum(usages), claim) if summary else None
    stored = await _store(rt, gathered.session, new, used, claim, turn_seq, asked)
    return Attempt(
        summary=summary if stored else None,
        origin=origin,
        model_alias=alias,
        chunks=len(usages),
        failure=failure if stored or summary is None else "stale",
        usage=_sum(usages),
        cost_usd=total_cost([row["cost_usd"] for row in used]),
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


async def _ask(rt: Runtime, alias: str, session: SessionView, fold: Fold, estimate: Estimator) -> _Asked:
    """Asks chunk by chunk, each with what the one before gave as its previous summary. Never raises for an answer."""
    usages: list[Usage] = []
    try:
        body = await _ask_chunks(rt, rt.catalogue.model(alias), session, fold, estimate, usages)
    except SummaryRefused as refusal:
        return _Asked(None, refusal.reason, tuple(usages))
    except ProviderError as error:
        return _Asked(None, error.code, tuple(usages))
    except InvalidRequest:
        # An alias that the catalogue no longer has is a summarizer that can not be had, not a turn that can not run.
        return _Asked(None, "unknown_summarizer", ())
    return _Asked(body, None, tuple(usages))


async def _ask_chunks(
    rt: Runtime, model: Model, session: SessionView, fold: Fold, estimate: Estimator, usages: list[Usage]
) -> SummaryBody:
    budget = budget_of(model, session.policy)
    answer_tokens = min(budget.output_reserve, fold.cap_tokens * _ANSWER_TOKENS_PER_CAP)
    room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate)
    if room <= 0:
        raise SummaryRefused("summarizer_window_too_small")
    body = fold.previous.body if fold.previous else None
    for chunk in split_for_summarizer(fold, room, estimate):
        answered = await _ask_chunk(
            rt, model, chunk, body, fold.context, fold.cap_tokens, answer_tokens, room, estimate, usages
        )
        body = fit_summary(answered, fold.cap_tokens, estimate)
        if body is None:
            raise SummaryRefused("over_cap")
    if body is None:
        raise SummaryRefused("empty")
    if not shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return body


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
    usages: list[Usage],
) -> SummaryBody:
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
    usages += [completion.usage] if completion.usage else []
    return accept_summary(completion.text, ask.known_ids)


def _sum(usages: Sequence[Usage]) -> Usage | None:
    if not usages:
        return None
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_prompt_tokens for usage in usages),
        sum(usage.cache_write_prompt_tokens for usage in usages),
    )


def _new_summary(
    summary: Summary, fold: Fold, estimate: Estimator, alias: str, usage: Usage | None, claim: Claim | None
) -> NewSummary:
    return NewSummary(
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


async def _store(
    rt: Runtime,
    session: SessionView,
    new: NewSummary | None,
    used: Sequence[JsonObject],
    claim: Claim | None,
    turn_seq: int,
    asked: _Asked | None,
) -> bool:
    """One short transaction: the summary, if its ground still stands, and the attempt and its cost in any case."""
    failed = asked is not None and asked.failure is not None
    async with rt.database.begin() as tx:
        await note_attempt(tx, session.id, count_after_seq=turn_seq - 1, asked=asked is not None, failed=failed)
        if used:
            await add_usages(tx, session.id, claim.turn_id if claim else None, used)
        return await store_summary(tx, session.id, new) if new else False
