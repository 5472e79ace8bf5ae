"""Asking a summarizer, chunk by chunk within its own window, and what is made of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import InvalidRequest, ProviderError
from app.domain.types import CompletionRequest, SummaryBody, Usage
from app.engine.folding import Fold
from app.engine.summaries import (
    SUMMARY_SCHEMA,
    SummaryAsk,
    SummaryRefused,
    accept_summary,
    ask_for_summary,
    shrinks,
    split_for_summarizer,
    summarizer_room,
)
from app.engine.summary_block import fit_summary
from app.providers.registry import Model
from app.services.calling import call_model
from app.services.gathering import SessionView, budget_of
from app.services.runtime import Runtime
from app.tokenizers import Estimator

_ANSWER_TOKENS_PER_CAP = 2
"""An answer carries ids and JSON beside the text that is capped."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking came to. `body` is None when `failure` says why; `usages` are paid for either way."""

    body: SummaryBody | None
    failure: str | None
    usages: tuple[Usage, ...]


async def ask_summarizer(rt: Runtime, alias: str, session: SessionView, fold: Fold, estimate: Estimator) -> Asked:
    """Asks chunk by chunk, each with what the one before gave as its previous summary. Never raises for an answer."""
    usages: list[Usage] = []
    try:
        body = await _ask_chunks(rt, rt.catalogue.model(alias), session, fold, estimate, usages)
    except SummaryRefused as refusal:
        return Asked(None, refusal.reason, tuple(usages))
    except ProviderError as error:
        return Asked(None, error.code, tuple(usages))
    except InvalidRequest:
        # An alias that the catalogue no longer has is a summarizer that can not be had, not a turn that can not run.
        return Asked(None, "unknown_summarizer", ())
    return Asked(body, None, tuple(usages))


async def _ask_chunks(
    rt: Runtime, model: Model, session: SessionView, fold: Fold, estimate: Estimator, usages: list[Usage]
) -> SummaryBody:
    budget = budget_of(model, session.policy)
    answer_tokens = min(budget.output_reserve, fold.cap_tokens * _ANSWER_TOKENS_PER_CAP)
    room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate)
    if room <= 0:
        raise SummaryRefused("summarizer_window_too_small")
    body = fold.previous.body if fold.previous else None
    extend = session.policy.incremental
    for chunk in split_for_summarizer(fold, room, estimate):
        ask = ask_for_summary(
            chunk,
            previous=body,
            context=() if extend else fold.context,
            max_tokens=fold.cap_tokens,
            room_tokens=room,
            estimate=estimate,
            extend=extend,
        )
        answered = await _ask_chunk(rt, session, model, ask, answer_tokens, usages)
        body = fit_summary(answered, fold.cap_tokens, estimate)
        if body is None:
            raise SummaryRefused("over_cap")
    if body is None:
        raise SummaryRefused("empty")
    if not shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return body


async def _ask_chunk(
    rt: Runtime, session: SessionView, model: Model, ask: SummaryAsk, answer_tokens: int, usages: list[Usage]
) -> SummaryBody:
    request = CompletionRequest(
        messages=ask.messages, max_output_tokens=answer_tokens, purpose="summary", response_schema=SUMMARY_SCHEMA
    )
    completion = await call_model(rt, session.id, model, request)
    usages += [completion.usage] if completion.usage else []
    return accept_summary(completion.text, ask.known_ids)


def sum_of(usages: Sequence[Usage]) -> Usage | None:
    """All of them as one; None when there is none."""
    if not usages:
        return None
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_prompt_tokens for usage in usages),
        sum(usage.cache_write_prompt_tokens for usage in usages),
    )
