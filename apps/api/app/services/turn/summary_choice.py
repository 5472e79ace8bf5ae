"""By which call a summary is made: a summarizer's own, or the session's model behind its last prompt again."""

from __future__ import annotations

import asyncio

import orjson

from app.engine.summary.cached_call import QUOTED_SHARE, CallChoice, behind_the_prompt, cheaper_call
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import summarizer_usage
from app.engine.window.cache_break import Repeated, repeated
from app.engine.window.prompt import Prompt
from app.engine.window.snapshot import Snapshot
from app.services.runtime import Runtime
from app.services.turn.gather import WindowRows, budget_of
from app.services.turn.planning import planned
from app.tokenizers.counters import Estimator

_LEAST_CACHED_TOKENS = 1_024
"""Shorter beginnings are cached by neither OpenAI nor most others. Anthropic's least differs by model, and it says of
each call what it has cached."""


async def chosen_call(
    rt: Runtime, rows: WindowRows, fold: Fold, snapshot: Snapshot, estimate: Estimator
) -> tuple[CallChoice, Prompt | None]:
    """The call for this fold, and the prompt that it repeats; None where it is a separate one.

    `snapshot` is the session's, as it stands. Reads nothing: what a provider has cached is what this process sent.
    """
    policy, model = rows.policy, rows.model
    if policy.summary_call == "separate":
        return CallChoice("separate", "policy"), None
    if not model.caches_conversations:
        return CallChoice("separate", "provider"), None
    if policy.summary_call == "auto" and model.prices is None:
        return CallChoice("separate", "no_price"), None
    found = await planned(snapshot, lambda: repeated(snapshot, policy, fold, estimate))
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
