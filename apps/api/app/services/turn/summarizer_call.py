"""Calls of a summarizer: chooses a separate call, chunk by chunk within the summarizer's window, or a call that repeats
the session's last prompt with an instruction after it; and checks the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import orjson

from app.domain.errors import InvalidRequest, LimitExceeded, ProviderError, ProviderOverflow, ProviderRefused
from app.domain.frozen import frozen
from app.domain.types import Completion, CompletionRequest, MessageId, SummaryBody, Usage
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, framing_tokens
from app.engine.policy.budget import Budget
from app.engine.summary.block import fit_summary
from app.engine.summary.cached_call import QUOTED_SHARE, CallChoice, Quotations, behind_the_prompt, cheaper_call
from app.engine.summary.extractive import keep_lasting
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import (
    SUMMARY_SCHEMA,
    SummaryRefused,
    accept_summary,
    shrinks,
    split_for_summarizer,
    summarizer_prompt,
    summarizer_room,
    summarizer_usage,
)
from app.engine.window.cache_break import Repeated, repeated
from app.engine.window.prompt import Prompt
from app.engine.window.snapshot import Snapshot
from app.providers.registry import Model
from app.services.limits import within_limits
from app.services.runtime import Runtime
from app.services.turn.gather import WindowRows, budget_of
from app.services.turn.planning import INLINE_MESSAGES, count_message, planned
from app.services.turn.provider_call import call_model, sum_of
from app.tokenizers.counters import Estimator

logger = logging.getLogger(__name__)

_ANSWER_TOKENS_PER_CAP = 2
"""Output tokens for each token of the cap: an answer has ids and JSON besides the text that is capped."""
_LEAST_CACHED_TOKENS = 1_024
"""Shortest prefix, in tokens, that OpenAI and most other providers cache. Anthropic's minimum depends on the model, and
it reports for each call what it has cached."""
_INLINE_CHARS = 8_192
"""Characters that are processed on the event loop (about 4 ms). A thread would wait longer than it works."""

_T = TypeVar("_T")


@frozen
class SummarizerCall:
    """Which models are called for a summary of which window. With `limited` the calls are counted under limits.

    `alias` is the model of the separate call. With `repeats` the session's own model is called first, with that prompt
    and an instruction after it.
    """

    rows: WindowRows
    alias: str
    estimate: Estimator
    choice: CallChoice
    repeats: Prompt | None
    limited: bool = True

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases that may be called, in their order."""
        return (self.rows.model.alias, self.alias) if self.repeats else (self.alias,)


@frozen
class SummarizerResult:
    """The result of the calls. `body` is None when `failure` says why; `calls` count as usage in either case.

    `model_alias` is the alias that was called last.
    """

    body: SummaryBody | None
    failure: str | None
    model_alias: str
    calls: tuple[tuple[Model, Usage], ...] = ()
    limit: LimitExceeded | None = None
    """The limit that did not allow the first call or a later one."""
    repeated: bool = False
    """Whether the summary was made by a call that repeats the prompt."""

    @property
    def usage(self) -> Usage | None:
        """The sum over all calls."""
        return sum_of([usage for _, usage in self.calls])


async def chosen_call(
    rt: Runtime, rows: WindowRows, fold: Fold, snapshot: Snapshot, estimate: Estimator
) -> tuple[CallChoice, Prompt | None]:
    """The choice of the call for this fold, and the prompt that it repeats; no prompt for a separate call.

    `snapshot` is the session's current one. Reads nothing: the prompts that this process sent are taken as cached.
    """
    policy, model = rows.policy, rows.model
    if policy.summary_call == "separate":
        return CallChoice("separate", "policy"), None
    if not model.caches_conversations:
        return CallChoice("separate", "provider"), None
    if policy.summary_call == "auto" and model.prices is None:
        return CallChoice("separate", "no_price"), None
    found = await planned(snapshot, lambda: repeated(snapshot, fold, estimate))
    behind = behind_the_prompt(fold, extend=policy.incremental, focus=policy.focus)
    tokens = found.prompt.wire_tokens + sum(estimate(message["content"]) for message in behind)
    budget = budget_of(model, policy)
    answer_room = budget.output_reserve - model.thinking_tokens(budget.output_reserve)
    has_room = answer_room >= min(budget.output_reserve, QUOTED_SHARE * fold.cap_tokens)
    if tokens * snapshot.calibration_ratio > budget.prompt_ceiling or not has_room:
        return CallChoice("separate", "too_large"), None
    choice = CallChoice("cached", "policy")
    if policy.summary_call == "auto":
        choice = await _by_cost(rt, rows, fold, found, tokens, estimate)
    return choice, found.prompt if choice.call == "cached" else None


async def _by_cost(
    rt: Runtime, rows: WindowRows, fold: Fold, found: Repeated, tokens: int, estimate: Estimator
) -> CallChoice:
    policy, session, summary = rows.policy, rows.session, rows.context.summary
    last = rt.pasts.cached_prompt(session.id)
    if last is None or last.model_alias != rows.model.alias or not found.goes_on_from(orjson.loads(last.refs)):
        return CallChoice("separate", "not_cached")
    if summary and summary.call_reason == "refused":
        return CallChoice("separate", "refused")
    alias = policy.summary_model or rows.model.alias
    own, separate = rows.model.prices, rt.catalogue.model(alias).prices if alias in rt.catalogue.aliases else None
    if own is None or separate is None:
        return CallChoice("separate", "no_price")
    ceiling = budget_of(rt.catalogue.model(alias, session.tenant_id), policy).prompt_ceiling
    usage = await asyncio.to_thread(summarizer_usage, fold, None, ceiling, estimate, extend=policy.incremental)
    cached_tokens = found.prompt.wire_tokens - found.new_tokens
    if rows.model.reports_cache_writes:
        cached_tokens = min(cached_tokens, last.cached_tokens)
    elif cached_tokens < _LEAST_CACHED_TOKENS:
        cached_tokens = 0
    return cheaper_call(
        separate_tokens=usage.prompt_tokens,
        separate=separate,
        repeated_tokens=tokens,
        cached_tokens=cached_tokens,
        written_tokens=found.prompt.wire_tokens - cached_tokens if rows.model.reports_cache_writes else 0,
        own=own,
        answer_tokens=fold.cap_tokens,
        thinking_tokens=rows.model.thinking_tokens(budget_of(rows.model, policy).output_reserve),
    )


async def call_summarizer(rt: Runtime, summarizer: SummarizerCall, fold: Fold, *, turns: int) -> SummarizerResult:
    """Calls the summarizer with the repeated prompt, or chunk by chunk if there is none or it gave nothing.

    Each chunk gets the summary of the chunk before as its previous summary. A failed call or an unusable answer is
    returned as a failure. Each call is counted under limits before it is made; the first counts as `turns` turns.
    """
    calls: list[tuple[Model, Usage]] = []
    alias, *others = summarizer.aliases
    body, repeated, failure, limit = None, False, None, None
    try:
        if summarizer.repeats is not None:
            body = await _behind_prompt(rt, summarizer, summarizer.repeats, fold, calls, turns)
            repeated, turns = body is not None, 0
        if body is None:
            alias = others[0] if others else alias
            body = await _by_chunks(rt, summarizer, fold, calls, turns)
    except LimitExceeded as error:
        failure, limit = error.code, error
    except SummaryRefused as refusal:
        failure = refusal.reason
    except ProviderError as error:
        failure = error.code
    except InvalidRequest:
        # If the summarizer's alias is no longer in the catalogue, the summarizer fails, but not the turn.
        failure = "unknown_summarizer"
    return SummarizerResult(body, failure, alias, tuple(calls), limit, repeated)


async def _by_chunks(
    rt: Runtime, summarizer: SummarizerCall, fold: Fold, calls: list[tuple[Model, Usage]], turns: int
) -> SummaryBody:
    policy, estimate, extend = summarizer.rows.policy, summarizer.estimate, summarizer.rows.policy.incremental
    model = rt.catalogue.model(summarizer.alias, summarizer.rows.session.tenant_id)
    body = fold.previous.body if fold.previous else None
    budget = budget_of(model, policy)
    room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate, policy.focus)
    if room <= 0:
        raise SummaryRefused("summarizer_window_too_small")
    chunks = await _computed(split_for_summarizer, fold, room, estimate, is_long=_is_long(fold))
    for at, chunk in enumerate(chunks):
        prompt = await asyncio.to_thread(
            summarizer_prompt,
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
            messages=prompt.messages,
            max_output_tokens=_answer_tokens(budget, fold),
            purpose="summary",
            response_schema=SUMMARY_SCHEMA,
        )
        completion = await _call(rt, summarizer, model, request, calls, turns=0 if at else turns)
        body = await _accepted(completion, prompt.known_ids, fold, estimate)
    return await _kept(model, fold, body, estimate)


async def _behind_prompt(
    rt: Runtime,
    summarizer: SummarizerCall,
    prompt: Prompt,
    fold: Fold,
    calls: list[tuple[Model, Usage]],
    turns: int,
) -> SummaryBody | None:
    """The summary by a call that repeats the prompt; None if the model refuses the call or its answer is unusable."""
    model, estimate = summarizer.rows.model, summarizer.estimate
    request, prompt_tokens = _repeating_request(summarizer, prompt, model, fold)
    quotations = await _computed(Quotations, fold, is_long=_is_long(fold))
    try:
        completion = await _call(rt, summarizer, model, request, calls, turns=turns, prompt_tokens=prompt_tokens)
        return await _kept(model, fold, await _accepted(completion, quotations, fold, estimate), estimate)
    except (SummaryRefused, ProviderRefused, ProviderOverflow) as refusal:
        reason = refusal.reason if isinstance(refusal, SummaryRefused) else refusal.code
        logger.info("no summary behind the repeated prompt (%s): the summarizer is called separately", reason)
        return None


def _repeating_request(
    summarizer: SummarizerCall, prompt: Prompt, model: Model, fold: Fold
) -> tuple[CompletionRequest, int]:
    """The request that repeats the prompt as a turn sends it, with an instruction after it; and the request's tokens.

    The schema of the answer is only in the instruction, because a provider would put it before the prompt.
    """
    policy = summarizer.rows.policy
    budget = budget_of(model, policy)
    thinks = model.thinking_tokens(budget.output_reserve) > 0
    behind = behind_the_prompt(fold, extend=policy.incremental, focus=policy.focus)
    request = CompletionRequest(
        messages=[*prompt.messages(), *behind],
        # A thinking model gets a turn's output limit: with another thinking budget Anthropic's cache is not used.
        max_output_tokens=budget.output_reserve if thinks else _answer_tokens(budget, fold),
        purpose="summary",
        tools=prompt.tools,
        # With Anthropic, a tool choice that differs from the turns' prevents cache hits for the messages.
        tool_choice="none" if prompt.tools and not model.reports_cache_writes else None,
        names_as_text=policy.show_names,
        cache_key=str(summarizer.rows.session.id),
        lasting_messages=prompt.message_count,
    )
    more_tokens = sum(summarizer.estimate(message["content"]) + MESSAGE_FRAMING_TOKENS for message in behind)
    return request, prompt.wire_tokens + more_tokens


def _answer_tokens(budget: Budget, fold: Fold) -> int:
    return min(budget.output_reserve, fold.cap_tokens * _ANSWER_TOKENS_PER_CAP)


async def _accepted(
    completion: Completion,
    known_ids: Mapping[str, tuple[MessageId, ...]],
    fold: Fold,
    estimate: Estimator,
) -> SummaryBody:
    """The summary in an answer, fitted into its cap. Raises `SummaryRefused`."""
    is_long = len(completion.text or "") > _INLINE_CHARS
    answered = await _computed(accept_summary, completion.text, known_ids, is_long=is_long)
    body = fit_summary(answered, fold.cap_tokens, estimate)
    if body is None:
        raise SummaryRefused("over_cap")
    return body


async def _kept(model: Model, fold: Fold, body: SummaryBody | None, estimate: Estimator) -> SummaryBody:
    """The summary with lasting items that a model left out (the offline model adds them itself). Raises
    `SummaryRefused` if it is empty or would not shrink the prompt."""
    if body is None:
        raise SummaryRefused("empty")
    if model.is_language_model:
        body = await _computed(keep_lasting, body, fold, estimate, is_long=_is_long(fold))
    if not shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return body


def _is_long(fold: Fold) -> bool:
    """Whether the messages of the fold are so many, or so long, that reading them would block the event loop."""
    if sum([len(turn.messages) for turn in fold.turns]) > INLINE_MESSAGES:
        return True
    return sum([len(text) for _, text in fold.source_texts]) > _INLINE_CHARS


async def _computed(work: Callable[..., _T], *given: Any, is_long: bool) -> _T:
    """The result of a computation, which runs in a thread if its input is long."""
    return await asyncio.to_thread(work, *given) if is_long else work(*given)


async def _call(
    rt: Runtime,
    summarizer: SummarizerCall,
    model: Model,
    request: CompletionRequest,
    calls: list[tuple[Model, Usage]],
    *,
    turns: int,
    prompt_tokens: int | None = None,
) -> Completion:
    """The answer of a call. Its usage is added to `calls`, even if the answer cannot be used."""
    session_id = summarizer.rows.session.id
    call = partial(call_model, rt, session_id, model, request)
    if not summarizer.limited:
        completion = await call()
    else:
        if prompt_tokens is None:
            counts = [await count_message(rt, model.encoding, message["content"]) for message in request.messages]
            prompt_tokens = sum(tokens for tokens, _ in counts) + framing_tokens(len(counts))
        most = Usage(prompt_tokens, request.max_output_tokens)
        completion = await within_limits(rt, session_id, model, most, call, turns=turns, what="this summary")
    calls += [(model, completion.usage)] if completion.usage else []
    return completion
