"""Calls of a summarizer, chunk by chunk within its own window, and what is made of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.domain.errors import InvalidRequest, LimitExceeded, ProviderError
from app.domain.types import Completion, CompletionRequest, SummaryBody, Usage
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, PROMPT_FRAMING_TOKENS
from app.engine.summary.block import fit_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import (
    SUMMARY_SCHEMA,
    SummaryRefused,
    accept_summary,
    shrinks,
    split_for_summarizer,
    summarizer_prompt,
    summarizer_room,
)
from app.providers.registry import Model
from app.services.limits import call_within_limits
from app.services.runtime import Runtime
from app.services.turn.gather import WindowRows, budget_of, count_message
from app.services.turn.provider_call import call_model
from app.tokenizers.counting import Estimator

_ANSWER_TOKENS_PER_CAP = 2
"""An answer carries ids and JSON beside the text that is capped."""


@dataclass(frozen=True, slots=True)
class SummarizerCall:
    """Who is called, and for which window; `limited` where the call has to be counted against limits."""

    rows: WindowRows
    alias: str
    estimate: Estimator
    limited: bool = True


@dataclass(frozen=True, slots=True)
class SummarizerResult:
    """What the calls came to. `body` is None when `failure` says why; `usages` are paid for either way."""

    body: SummaryBody | None
    failure: str | None
    usages: tuple[Usage, ...]
    limit: LimitExceeded | None = None
    """The limit that did not allow the call, or the next one."""


async def call_summarizer(rt: Runtime, summarizer: SummarizerCall, fold: Fold, *, turns: int) -> SummarizerResult:
    """Goes chunk by chunk, each with what the one before gave as its previous summary. Never raises for an answer.

    Each call is counted against the limits before it is made; `turns` says as how many turns the first one is.
    """
    usages: list[Usage] = []
    try:
        model = rt.catalogue.model(summarizer.alias, summarizer.rows.session.tenant_id)
        body = await _by_chunks(rt, summarizer, model, fold, usages, turns)
    except LimitExceeded as error:
        return SummarizerResult(None, error.code, tuple(usages), error)
    except SummaryRefused as refusal:
        return SummarizerResult(None, refusal.reason, tuple(usages))
    except ProviderError as error:
        return SummarizerResult(None, error.code, tuple(usages))
    except InvalidRequest:
        # An alias that the catalogue no longer has is a summarizer that can not be had, not a turn that can not run.
        return SummarizerResult(None, "unknown_summarizer", ())
    return SummarizerResult(body, None, tuple(usages))


async def _by_chunks(
    rt: Runtime, summarizer: SummarizerCall, model: Model, fold: Fold, usages: list[Usage], turns: int
) -> SummaryBody:
    policy, estimate = summarizer.rows.policy, summarizer.estimate
    budget = budget_of(model, policy)
    answer_tokens = min(budget.output_reserve, fold.cap_tokens * _ANSWER_TOKENS_PER_CAP)
    room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate, policy.focus)
    if room <= 0:
        raise SummaryRefused("summarizer_window_too_small")
    body = fold.previous.body if fold.previous else None
    extend = policy.incremental
    # What is folded may be thousands of messages, which are counted here.
    chunks = await asyncio.to_thread(split_for_summarizer, fold, room, estimate)
    for at, chunk in enumerate(chunks):
        prompt = summarizer_prompt(
            chunk,
            previous=body,
            context=() if extend else fold.context,
            max_tokens=fold.cap_tokens,
            room_tokens=room,
            estimate=estimate,
            extend=extend,
            focus=policy.focus,
        )
        request = CompletionRequest(
            messages=prompt.messages, max_output_tokens=answer_tokens, purpose="summary", response_schema=SUMMARY_SCHEMA
        )
        completion = await _call(rt, summarizer, model, request, turns=0 if at else turns)
        usages += [completion.usage] if completion.usage else []
        answered = accept_summary(completion.text, prompt.known_ids)
        body = fit_summary(answered, fold.cap_tokens, estimate)
        if body is None:
            raise SummaryRefused("over_cap")
    if body is None:
        raise SummaryRefused("empty")
    if not shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return body


async def _call(
    rt: Runtime, summarizer: SummarizerCall, model: Model, request: CompletionRequest, *, turns: int
) -> Completion:
    session_id = summarizer.rows.session.id
    if not summarizer.limited:
        return await call_model(rt, session_id, model, request)
    prompt_tokens = PROMPT_FRAMING_TOKENS
    for message in request.messages:
        tokens, _ = await count_message(rt, model.encoding, message["content"])
        prompt_tokens += tokens + MESSAGE_FRAMING_TOKENS
    return await call_within_limits(rt, session_id, model, request, prompt_tokens=prompt_tokens, turns=turns)
