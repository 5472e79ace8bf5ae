"""The model call of a round, with retries: a smaller prompt if it is too long, a fallback if the model is down."""

from __future__ import annotations

from contextlib import suppress

from app.domain.errors import (
    DatabaseUnavailable,
    ProviderDown,
    ProviderError,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderTimeout,
)
from app.domain.types import Completion, CompletionRequest, JsonObject
from app.engine.window.plan import Ready
from app.engine.window.provider_overflow import learned_limit, react
from app.services.learned import learn
from app.services.runtime import Runtime
from app.services.turn.decide import decide, decide_within, read_again
from app.services.turn.planning import assembled
from app.services.turn.provider_call import call_model
from app.services.turn.record import Record
from app.services.turn.types import ClaimedTurn, TurnOptions, TurnPlan


async def call(rt: Runtime, turn: ClaimedTurn, plan: TurnPlan, record: Record) -> Completion:
    """Calls the model with no database connection held, and retries where that can help.

    A prompt that the provider rejects as too long is made smaller, at most twice. If the alias is down, times out or is
    rate-limited, its fallbacks are called, each with a prompt for its own budget. Nothing is retried once a delta was
    delivered. Raises a `ProviderError`; the turn is then stored as failed.
    """
    started_at, calls = rt.now(), list[JsonObject]()
    fallbacks, reactions = list(plan.model.fallbacks), 0
    while True:
        request = await _prepare(plan, turn.options, record)
        answer: JsonObject = {"model_alias": plan.model.alias}
        try:
            completion = await call_model(rt, turn.claim.session_id, plan.model, request, record.on_delta)
        except ProviderError as error:
            calls.append(answer | {"attempts": error.attempts, "code": error.code})
            again = None
            if isinstance(error, ProviderOverflow) and error.partial is None:
                again = await _smaller(rt, turn, plan, record, error, request.max_output_tokens, reactions)
                reactions += 1
            elif isinstance(error, ProviderDown | ProviderTimeout | ProviderRateLimited) and error.partial is None:
                again = await _fall_back(rt, turn, plan, record, fallbacks)
                reactions = 0
            if again is None:
                record.steps.add("model_call", started_at, _detail(calls), "failed")
                await record.failed(error)
                raise
            plan = again
        else:
            if completion.usage:
                rt.pasts.note_cached(turn.claim.session_id, completion.usage)
            calls.append(
                answer
                | {
                    "attempts": completion.attempts,
                    "finish_reason": completion.finish_reason,
                    "provider_model": completion.provider_model,
                }
            )
            record.steps.add("model_call", started_at, _detail(calls))
            return completion


async def _prepare(plan: TurnPlan, options: TurnOptions, record: Record) -> CompletionRequest:
    """The request for a plan whose prompt fits. The prompt is recorded as about to be sent."""
    if not isinstance(plan.decided, Ready):
        raise TypeError("a refused prompt would be sent")
    with record.steps.step("assemble") as detail:
        prompt = await assembled(plan.decided)
        detail |= {"messages": len(prompt.messages), "wire_tokens": plan.decided.prompt.wire_tokens}
    record.sends(plan, prompt)
    reserve = plan.snapshot.budget.output_reserve
    return CompletionRequest(
        messages=prompt.messages,
        max_output_tokens=min(options.max_output_tokens or reserve, reserve),
        tools=prompt.tools,
        tool_choice=options.tool_choice,
        recorded_reply=options.recorded_reply,
        options=options.provider_options,
        names_as_text=plan.rows.policy.show_names,
        cache_key=str(plan.rows.session.id),
        lasting_messages=plan.decided.prompt.lasting_messages,
        size_bytes=prompt.size_bytes,
    )


async def _smaller(
    rt: Runtime,
    turn: ClaimedTurn,
    plan: TurnPlan,
    record: Record,
    error: ProviderOverflow,
    output_tokens: int,
    reactions: int,
) -> TurnPlan | None:
    """The plan of the turn within the limit that the rejection implies, which is learned; None if nothing can be done.

    `reactions` is the number of prompts that were already made smaller for this model.
    """
    stated, model, policy, prompt = error.stated, plan.model, plan.rows.policy, plan.decided.prompt
    limit = learned_limit(
        stated, configured=model.context_window, sent_wire_tokens=prompt.wire_tokens, output_tokens=output_tokens
    )
    if stated.prompt_tokens is not None and stated.limit_is_window:
        # A rejected call reports no usage. Its error may count the prompt; a figure that may be an echo is not used.
        record.observe(plan, stated.prompt_tokens)
    if limit is not None and model.context_limit_source != "catalogue":
        with suppress(DatabaseUnavailable):
            await learn(rt.database, rt.catalogue, turn.claim.session.tenant_id, turn.claim.turn_id, model.alias, limit)
    if policy.whole_past:
        return None
    budget = react(
        reactions,
        stated,
        sent=prompt,
        output_tokens=output_tokens,
        budget=plan.snapshot.budget,
        max_output_tokens=policy.max_output_tokens,
        calibration_ratio=plan.snapshot.calibration_ratio,
    )
    return await decide_within(rt, turn, record, plan, budget) if budget else None


async def _fall_back(
    rt: Runtime, turn: ClaimedTurn, plan: TurnPlan, record: Record, fallbacks: list[str]
) -> TurnPlan | None:
    """The plan of the turn for the next fallback in whose window it fits. Removes from the list what it tried."""
    rt.cooldowns.rest(plan.model.alias)
    while fallbacks:
        alias = fallbacks.pop(0)
        if rt.cooldowns.is_resting(alias):
            continue
        plan = await decide(rt, turn, record, await read_again(rt, turn, alias))
        if isinstance(plan.decided, Ready):
            return plan
    return None


def _detail(calls: list[JsonObject]) -> JsonObject:
    """The detail of the `model_call` step: the newest outcome, and the earlier ones if there are any."""
    *before, newest = calls
    return newest | ({"before": before} if before else {})
