"""Calls of a summarizer: chooses a separate call, chunk by chunk within the summarizer's window, or a call that repeats
the session's last prompt with an instruction after it; and checks the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Literal

import orjson

from app.db.claims import Claim
from app.domain.errors import InvalidRequest, LimitExceeded, ProviderError, ProviderOverflow, ProviderRefused
from app.domain.frozen import frozen, replace
from app.domain.types import (
    Completion,
    CompletionRequest,
    JsonObject,
    MessageId,
    Summary,
    SummaryBody,
    SummaryItem,
    Usage,
)
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, framing_tokens
from app.engine.summary.block import fit_summary
from app.engine.summary.cached_call import (
    QUOTED_SHARE,
    CallChoice,
    behind_the_prompt,
    cheaper_call,
    quoted_ids,
    quoted_items,
)
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
from app.providers.base import CallCancelled
from app.providers.registry import Model
from app.services.limits import most_of, use_of, within_limits
from app.services.runtime import Runtime
from app.services.turn.gather import budget_of
from app.services.turn.planning import INLINE_MESSAGES, computed, count_message, planned
from app.services.turn.provider_call import FALLS_BACK, call_model, used_row
from app.services.turn.window_rows import WindowRows
from app.tokenizers.counters import Estimator

logger = logging.getLogger(__name__)

_INLINE_CHARS = 8_192
"""Characters that are processed on the event loop (about 4 ms). A thread would wait longer than it works."""


@frozen
class SummaryJob:
    """What is to be summarized of a window, and for which turn.

    `claim` is the turn that waits for it, if any. The turn count restarts at that turn or at the next one, whose number
    `rows` have, whether or not the attempt succeeds. `still_too_large` returns whether the prompt with a summary would
    still be pruned; then the summary is made once more at half the cap. The session's prompt is laid out from
    `snapshot`. With `whatever_others_do` the summary is made even while another process makes one.
    """

    rows: WindowRows
    fold: Fold
    snapshot: Snapshot
    when: Literal["preflight", "post_turn", "requested"]
    claim: Claim | None = None
    still_too_large: Callable[[Summary], bool] | None = None
    whatever_others_do: bool = False

    @property
    def alias(self) -> str:
        """The model of a separate call."""
        return self.rows.policy.summary_model or self.rows.model.alias


async def chosen_call(rt: Runtime, job: SummaryJob) -> tuple[CallChoice, Prompt | None]:
    """The choice of the call for this job, and the prompt that it repeats; no prompt for a separate call. The prompts
    that this process sent are taken as cached."""
    rows, fold, snapshot, estimate = job.rows, job.fold, job.snapshot, job.rows.estimate
    policy, model = rows.policy, rows.model
    if policy.summary_call == "separate":
        return CallChoice("separate", "policy"), None
    if not model.caches_conversations:
        return CallChoice("separate", "provider"), None
    if policy.summary_call == "auto" and model.prices is None:
        return CallChoice("separate", "no_price"), None
    found = await planned(repeated, snapshot, fold, estimate)
    behind = behind_the_prompt(fold, extend=policy.incremental, focus=policy.focus)
    tokens = found.prompt.wire_tokens + sum(estimate(message["content"]) for message in behind)
    budget = budget_of(model, policy)
    answer_room = budget.output_reserve - model.thinking_tokens(budget.output_reserve)
    has_room = answer_room >= min(budget.output_reserve, QUOTED_SHARE * fold.cap_tokens)
    if tokens * snapshot.calibration_ratio > budget.prompt_ceiling or not has_room:
        return CallChoice("separate", "too_large"), None
    choice = CallChoice("cached", "policy")
    if policy.summary_call == "auto":
        choice = await _by_cost(rt, job, found, tokens)
    return choice, found.prompt if choice.call == "cached" else None


async def _by_cost(rt: Runtime, job: SummaryJob, found: Repeated, tokens: int) -> CallChoice:
    rows, fold, alias = job.rows, job.fold, job.alias
    policy, session, summary = rows.policy, rows.session, rows.summary
    last = rt.pasts.cached_prompt(session.id)
    if last is None or last.model_alias != rows.model.alias or not found.goes_on_from(orjson.loads(last.refs)):
        return CallChoice("separate", "not_cached")
    if summary and summary.call_reason == "refused":
        return CallChoice("separate", "refused")
    own, separate = rows.model.prices, rt.catalogue.model(alias).prices if alias in rt.catalogue.aliases else None
    if own is None or separate is None:
        return CallChoice("separate", "no_price")
    ceiling = budget_of(rt.catalogue.model(alias, session.tenant_id), policy).prompt_ceiling
    usage = await asyncio.to_thread(summarizer_usage, fold, None, ceiling, rows.estimate, extend=policy.incremental)
    cached_tokens, written_tokens = found.cached_tokens, 0
    if rows.model.reports_cache_writes:
        cached_tokens = min(found.sent_tokens, last.cached_tokens)
        written_tokens = found.prompt.wire_tokens - cached_tokens
    thinking_tokens = rows.model.thinking_tokens(budget_of(rows.model, policy).output_reserve)
    repeated_usage = Usage(tokens, thinking_tokens, cached_tokens, written_tokens)
    return cheaper_call(fold.cap_tokens, usage.prompt_tokens, separate, repeated_usage, own)


class Summarizer:
    """The calls for one summary. With `repeats` the session's own model is called first, with that prompt and an
    instruction after it.

    `used` has the usage row of each answered call, also if the answer cannot be used. `alias` is the model that was
    called last. When there is no summary, `failure` says why; `limit` is the limit that did not allow a call.
    """

    def __init__(self, rt: Runtime, job: SummaryJob, choice: CallChoice, repeats: Prompt | None) -> None:
        self._rt = rt
        self._job = job
        self._repeats = repeats
        self._turns = int(job.when == "requested")
        self.choice = choice
        self.limited = True
        self.alias = job.rows.model.alias if repeats else job.alias
        self.used: list[JsonObject] = []
        self.failure: str | None = None
        self.limit: LimitExceeded | None = None

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases that may be called, in their order."""
        return (self.alias, *self._separate()) if self._repeats else self._separate()

    async def made(self, fold: Fold) -> SummaryBody | None:
        """The summary, by the repeated prompt, or chunk by chunk if there is none or it gave nothing. Each call is
        counted under limits first; the first one counts as a turn if a client requested the summary."""
        body = None
        try:
            if self._repeats is not None:
                body = await self._behind_prompt(self._repeats, fold)
            if body is None:
                body = await self._separately(fold)
        except LimitExceeded as error:
            self.failure, self.limit = error.code, error
        except SummaryRefused as refusal:
            self.failure = refusal.reason
        except ProviderError as error:
            self.failure = error.code
        except InvalidRequest:
            # If the summarizer's alias is no longer in the catalogue, the summarizer fails, but not the turn.
            self.failure = "unknown_summarizer"
        return body

    async def made_smaller(self, fold: Fold, body: SummaryBody) -> SummaryBody:
        """The summary at half the cap: by another call, or else the body cut to that."""
        before = self.alias, self.choice
        half = replace(fold, cap_tokens=fold.cap_tokens // 2)
        again = await self.made(half)
        if again is not None:
            return again
        (self.alias, self.choice), self.failure, self.limit = before, None, None
        return fit_summary(body, half.cap_tokens, self._job.rows.estimate) or body

    def _separate(self) -> tuple[str, ...]:
        """The aliases of a separate call: the job's, and its fallbacks that are language models. An offline one would
        write what the deterministic summary has."""
        catalogue, tenant_id = self._rt.catalogue, self._job.rows.session.tenant_id
        if self._job.alias not in catalogue.aliases:
            return (self._job.alias,)
        fallbacks = [catalogue.model(alias) for alias in catalogue.model(self._job.alias).fallbacks]
        able = [model.alias for model in fallbacks if model.is_language_model]
        return self._rt.cooldowns.awake(self._job.alias, able, tenant_id)

    def _note_down(self) -> None:
        """Notes that the alias called last is down."""
        self._rt.cooldowns.rest(self.alias, self._job.rows.session.tenant_id)

    async def _separately(self, fold: Fold) -> SummaryBody:
        """The summary by a model that is not down. Raises the error of the last one that was called."""
        *others, last = self._separate()
        for other in others:
            self.alias = other
            with suppress(*FALLS_BACK):
                return await self._by_chunks(fold)
            self._note_down()
        self.alias = last
        return await self._by_chunks(fold)

    async def _by_chunks(self, fold: Fold) -> SummaryBody:
        rows, estimate = self._job.rows, self._job.rows.estimate
        policy, extend = rows.policy, rows.policy.incremental
        model = self._rt.catalogue.model(self.alias, rows.session.tenant_id)
        body = fold.previous.body if fold.previous else None
        budget = budget_of(model, policy)
        room = summarizer_room(budget.prompt_ceiling, fold.cap_tokens, estimate, policy.focus)
        if room <= 0:
            raise SummaryRefused("summarizer_window_too_small")
        is_long = _is_long(fold)
        for chunk in await computed(split_for_summarizer, fold, room, estimate, is_long=is_long):
            document = partial(summarizer_prompt, fold, chunk, body, room, estimate, extend=extend, focus=policy.focus)
            prompt = await computed(document, is_long=is_long)
            request = CompletionRequest(
                messages=prompt.messages,
                max_output_tokens=budget.output_reserve,  # more than the cap: reasoning models count it as output
                purpose="summary",
                response_schema=SUMMARY_SCHEMA,
            )
            completion = await self._call(model, request)
            body = await _accepted(completion, prompt.known_ids, prompt.items_before, body, fold, estimate)
        return await _kept(model, fold, body, estimate)

    async def _behind_prompt(self, prompt: Prompt, fold: Fold) -> SummaryBody | None:
        """The summary by a call that repeats the prompt; None if the model refuses the call, its answer is unusable, or
        it is down and another one may be called. No further call then repeats it."""
        model, estimate = self._job.rows.model, self._job.rows.estimate
        request, prompt_tokens = _repeating_request(self._job.rows, prompt, fold)
        ids = await computed(quoted_ids, fold, is_long=_is_long(fold))
        choice, self.choice = self.choice, CallChoice("separate", "refused")  # unless it succeeds
        try:
            completion = await self._call(model, request, prompt_tokens)
            previous = fold.previous and fold.previous.body
            body = await _accepted(completion, ids, quoted_items(fold), previous, fold, estimate)
            body = await _kept(model, fold, body, estimate)
        except (SummaryRefused, ProviderRefused, ProviderOverflow, *FALLS_BACK) as refusal:
            if isinstance(refusal, FALLS_BACK):
                self._note_down()
                if self._separate() == (self.alias,):
                    raise
            reason = refusal.reason if isinstance(refusal, SummaryRefused) else refusal.code
            logger.info("no summary behind the repeated prompt (%s): the summarizer is called separately", reason)
            self._repeats = None
            return None
        self.choice = choice
        return body

    async def _call(self, model: Model, request: CompletionRequest, prompt_tokens: int | None = None) -> Completion:
        rt, call = self._rt, partial(self._counted, model, request)
        if not self.limited:
            return await call()
        if prompt_tokens is None:
            counts = [await count_message(rt, model.encoding, message["content"]) for message in request.messages]
            prompt_tokens = sum(tokens for tokens, _ in counts) + framing_tokens(len(counts))
        turns, self._turns, before = self._turns, 0, len(self.used)
        session = self._job.rows.session
        prompt_tokens = ceil(prompt_tokens * rt.calibrations.ratio(session.tenant_id, model.alias, model.encoding))
        most = most_of(model, prompt_tokens, request.max_output_tokens, turns)
        try:
            return await within_limits(
                rt, session.id, most, call, lambda: use_of(self.used[before:], turns), what="this summary"
            )
        except ProviderError:
            if len(self.used) == before:  # it used nothing: the next call is the turn
                self._turns = turns
            raise

    async def _counted(self, model: Model, request: CompletionRequest) -> Completion:
        rt, usages = self._rt, tuple[Usage, ...]()
        try:
            completion = await call_model(rt, self._job.rows.session.id, model, request)
            usages = completion.usages
        except (ProviderError, CallCancelled) as error:
            usages = error.usages
            raise
        finally:
            self.used += [used_row(rt, model, "summary", usage) for usage in usages]
        return completion


def _repeating_request(rows: WindowRows, prompt: Prompt, fold: Fold) -> tuple[CompletionRequest, int]:
    """The request that repeats the prompt as a turn sends it, with an instruction after it; and the request's tokens.
    The schema of the answer is only in the instruction, because a provider would put it before the prompt."""
    policy, model = rows.policy, rows.model
    budget = budget_of(model, policy)
    behind = behind_the_prompt(fold, extend=policy.incremental, focus=policy.focus)
    request = CompletionRequest(
        messages=[*prompt.messages(), *behind],
        max_output_tokens=budget.output_reserve,  # as in a turn: with another, Anthropic's cache may not be used
        purpose="summary",
        tools=prompt.tools,
        # With Anthropic, a tool choice that differs from the turns' prevents cache hits for the messages.
        tool_choice="none" if prompt.tools and not model.reports_cache_writes else None,
        names_as_text=policy.show_names,
        cache_key=rows.cache_key,
        lasting_messages=prompt.message_count,
    )
    more_tokens = sum(rows.estimate(message["content"]) + MESSAGE_FRAMING_TOKENS for message in behind)
    return request, prompt.wire_tokens + more_tokens


async def _accepted(
    completion: Completion,
    known_ids: Mapping[str, tuple[MessageId, ...]],
    items_before: Mapping[str, SummaryItem],
    previous: SummaryBody | None,
    fold: Fold,
    estimate: Estimator,
) -> SummaryBody:
    """The summary in an answer, fitted into its cap. Raises `SummaryRefused`."""
    is_long = len(completion.text or "") > _INLINE_CHARS
    text_before = previous.summary_text if previous else ""

    def accepted() -> SummaryBody | None:
        answered = accept_summary(completion.text, known_ids, items_before, text_before)
        return fit_summary(answered, fold.cap_tokens, estimate)  # megabytes are counted for seconds

    body = await computed(accepted, is_long=is_long)
    if body is None:
        raise SummaryRefused("over_cap")
    return body


async def _kept(model: Model, fold: Fold, body: SummaryBody | None, estimate: Estimator) -> SummaryBody:
    """The summary with lasting items that a model left out (the offline model adds them itself). Raises
    `SummaryRefused` if it is empty or would not shrink the prompt."""
    if body is None:
        raise SummaryRefused("empty")
    if model.is_language_model:
        body = await computed(keep_lasting, body, fold, estimate, is_long=_is_long(fold))
    if not shrinks(fold, body, estimate):
        raise SummaryRefused("would_not_shrink")
    return body


def _is_long(fold: Fold) -> bool:
    """Whether the messages of the fold, or those shown with it, are so many, or so long, that reading them would block
    the event loop."""
    if sum([len(turn.messages) for turn in (*fold.turns, *fold.protected)]) > INLINE_MESSAGES:
        return True
    return sum([len(text) for _, text in (*fold.source_texts, *fold.context_texts)]) > _INLINE_CHARS
