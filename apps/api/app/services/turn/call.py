"""The answer of a turn's model: its calls, with retries (a smaller prompt if it is too long, a fallback if the model is
down), and its look-backs, which are answered within the turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Final

from app.domain.errors import (
    DatabaseUnavailable,
    ProviderError,
    ProviderOverflow,
    TurnCancelled,
)
from app.domain.frozen import replace
from app.domain.types import Completion, CompletionRequest, JsonObject, Message, ToolCall
from app.engine.recall.dates import day_said
from app.engine.recall.look_back_pages import TextPage, handle_of
from app.engine.window.look_back import (
    AT_THE_CAP,
    MOST_CALLS,
    NOT_THERE,
    NOT_UNDERSTOOD,
    NOTHING_FOUND,
    LookBack,
    is_own,
    look_back_messages,
    next_page_tokens,
    next_search,
    read_call,
    round_tokens,
)
from app.engine.window.plan import Ready
from app.engine.window.provider_overflow import learned_limit, react
from app.engine.window.recalled import looked_back_tokens, room_for_result, seqs_beside_result
from app.providers.base import CallCancelled
from app.services.learned import learn
from app.services.limits import most_of, use_of, within_limits
from app.services.turn.decide import decide, decide_after_look_back, decide_within, read_again
from app.services.turn.planning import assembled, computed
from app.services.turn.provider_call import FALLS_BACK, call_model, with_own_ids
from app.services.turn.recall import read_page
from app.services.turn.record import Record
from app.services.turn.types import TurnPlan

logger = logging.getLogger(__name__)

_MOST_SEARCHED_BYTES: Final = 1024 * 1024
"""Most that is searched for the ids of an answer's calls on the event loop, at most twice (1 ms)."""


async def answered(record: Record, plan: TurnPlan) -> Completion:
    """The model's answer after its look-backs. Its tool calls are calls of the client's tools only. Raises the errors
    of `_call`, and the `LimitExceeded` of a call after a look-back."""
    completion = await _call(record, plan)
    while _wants_look_back(record, completion):
        answer, again = await _look_back(record, completion)
        if answer is not None:
            return answer
        completion = await _call_again(record, await decide_after_look_back(record, again=again))
    return completion


async def _call_again(record: Record, plan: TurnPlan) -> Completion:
    """Calls the model again; limits count this call separately."""
    if record.turn.reservation is None:
        return await _call(record, plan)
    prompt_tokens = ceil(plan.decided.prompt.wire_tokens * plan.snapshot.calibration_ratio)
    most = most_of(plan.model, prompt_tokens, plan.snapshot.budget.output_reserve)
    call, before = partial(_call, record, plan), len(record.usages)
    session_id = record.turn.claim.session_id
    return await within_limits(record.rt, session_id, most, call, lambda: use_of(record.usages[before:]))


async def _call(record: Record, plan: TurnPlan) -> Completion:
    """Calls the model with no database connection held, and retries where that can help: with a smaller prompt, at most
    twice, if the provider rejects it as too long, and with the alias's fallbacks, each with a prompt for its own
    budget, if it is down, times out, is rate-limited or out of quota. Nothing is retried once a delta was delivered.
    Raises a `ProviderError`; the turn is then stored as failed."""
    rt, session_id = record.rt, record.turn.claim.session_id
    started_at, calls = rt.now(), list[JsonObject]()
    fallbacks, reactions = list(plan.model.fallbacks), 0
    while True:
        request = await _prepare(record, plan)
        try:
            completion = await call_model(rt, session_id, plan.model, request, record.on_delta)
        except ProviderError as error:
            calls.append({"model_alias": plan.model.alias, "attempts": error.attempts, "code": error.code})
            await record.note_unanswered(error.usages)
            again = None
            if isinstance(error, ProviderOverflow) and error.partial is None:
                again = await _smaller(record, plan, error, request.max_output_tokens, reactions)
                reactions += 1
            elif isinstance(error, FALLS_BACK) and error.partial is None:
                if not (error.usages and record.repeats) or await record.repeats.are_allowed():
                    again = await _fall_back(record, plan, fallbacks)
                reactions = 0
            if again is None:
                record.steps.add("model_call", started_at, _detail(calls), "failed")
                await record.failed(error)
                raise
            plan = again
        except asyncio.CancelledError as cancelled:
            if isinstance(cancelled, CallCancelled):
                record.stopped_usages = cancelled.usages
            calls.append({"model_alias": plan.model.alias, "code": TurnCancelled.code})
            record.steps.add("model_call", started_at, _detail(calls), "failed")
            raise
        else:
            record.note_answered(plan, completion)  # first: the turn may be cancelled in a wait
            _warn_if_cut_off(record, plan, completion)
            completion = await _with_own_ids(record, completion, request)
            calls.append(
                {
                    "model_alias": plan.model.alias,
                    "attempts": completion.attempts,
                    "finish_reason": completion.finish_reason,
                    "provider_model": completion.provider_model,
                    **({"stop_sequence": completion.stop_sequence} if completion.stop_sequence else {}),
                }
            )
            record.steps.add("model_call", started_at, _detail(calls))
            return completion


def _warn_if_cut_off(record: Record, plan: TurnPlan, completion: Completion) -> None:
    """Logs that an answer was cut off at our limit and not at the client's."""
    requested, reserve = record.turn.options.max_output_tokens, plan.snapshot.budget.output_reserve
    if completion.finish_reason != "length" or (requested is not None and requested <= reserve):
        return
    if (left_out := record.rt.warnings.due((plan.model.alias, "length"))) is not None:
        logger.warning(
            "an answer of %s was cut off at the output reserve of %d tokens: CONTEXT_MAX_OUTPUT_TOKENS, or the policy's"
            " max_output_tokens, sets it, up to a fifth of the window; %d more since the last such line",
            plan.model.alias,
            reserve,
            left_out,
        )


async def _with_own_ids(record: Record, completion: Completion, request: CompletionRequest) -> Completion:
    claim = record.turn.claim
    is_long = len(completion.tool_calls) * request.size_bytes > _MOST_SEARCHED_BYTES
    # The first is the same in sessions that are alike; a history of another session may have it.
    marks = [f"{turn}_{claim.round}" for turn in (claim.seq, claim.turn_id.hex[-8:])]
    return await computed(with_own_ids, completion, request, marks, is_long=is_long)


async def _prepare(record: Record, plan: TurnPlan) -> CompletionRequest:
    """The request for a plan whose prompt fits. The prompt is recorded as about to be sent."""
    if not isinstance(plan.decided, Ready):
        raise TypeError("a refused prompt would be sent")
    with record.steps.step("assemble") as detail:
        prompt = await assembled(plan.decided)
        detail |= {"messages": len(prompt.messages), "wire_tokens": plan.decided.prompt.wire_tokens}
    record.sends(plan, prompt)
    options = record.turn.options
    reserve = plan.snapshot.budget.output_reserve
    return CompletionRequest(
        messages=prompt.messages,
        max_output_tokens=min(options.max_output_tokens or reserve, reserve),
        tools=prompt.tools,
        tool_choice=options.tool_choice,
        recorded_reply=options.recorded_reply,
        options=options.provider_options,
        names_as_text=plan.rows.policy.show_names,
        cache_key=plan.rows.cache_key,
        lasting_messages=plan.decided.prompt.lasting_messages,
        size_bytes=prompt.size_bytes,
        may_repeat=record.repeats.are_allowed if record.repeats else None,
    )


async def _smaller(
    record: Record, plan: TurnPlan, error: ProviderOverflow, output_tokens: int, reactions: int
) -> TurnPlan | None:
    """The plan of the turn within the limit that the rejection implies, which is learned; None if nothing can be done.
    `reactions` is the number of prompts that were already made smaller for this model."""
    rt, claim = record.rt, record.turn.claim
    stated, model, wire_tokens = error.stated, plan.model, plan.decided.prompt.wire_tokens
    limit = learned_limit(
        stated, configured=model.context_window, sent_wire_tokens=wire_tokens, output_tokens=output_tokens
    )
    if stated.prompt_tokens is not None and stated.limit_is_window:
        # A rejected call reports no usage. Its error may count the prompt; a figure that may be an echo is not used.
        record.observe(plan, stated.prompt_tokens)
    if limit is not None and model.context_limit_source != "catalogue":
        with suppress(DatabaseUnavailable):
            await learn(rt.database, rt.catalogue, claim.session.tenant_id, claim.turn_id, model.alias, limit)
    if plan.rows.policy.whole_past:
        return None
    budget = react(reactions, stated, plan.decided.window, output_tokens)
    return await decide_within(record, plan, budget) if budget else None


async def _fall_back(record: Record, plan: TurnPlan, fallbacks: list[str]) -> TurnPlan | None:
    """The plan of the turn for the next fallback in whose window it fits. Removes from the list what it tried."""
    cooldowns, tenant_id = record.rt.cooldowns, record.turn.claim.session.tenant_id
    cooldowns.rest(plan.model.alias, tenant_id)
    while fallbacks:
        alias = fallbacks.pop(0)
        if cooldowns.is_resting(alias, tenant_id):
            continue
        plan = await decide(record, await read_again(record, alias))
        if isinstance(plan.decided, Ready):
            return plan
    return None


def _detail(calls: list[JsonObject]) -> JsonObject:
    """The detail of the `model_call` step: the newest outcome, and the earlier ones if there are any."""
    *before, newest = calls
    return newest | ({"before": before} if before else {})


def _wants_look_back(record: Record, completion: Completion) -> bool:
    """Whether the model called the look-back tool, which its prompt or an earlier one of the turn offered."""
    offered = bool(record.turn.looked_back) or record.sent.snapshot.offers_look_back
    return offered and any(map(is_own, completion.tool_calls))


async def _look_back(record: Record, completion: Completion) -> tuple[Completion | None, bool]:
    """Answers the model's look-back calls. A call beyond the turn's limits gets a result that says so.

    Returns an answer or None, and whether the model may look back once more. There is an answer if the model also
    called tools of the client, which must be run first, or if look-backs were not offered any more; it has the client's
    calls only. With None the turn is in its next round. No database connection is held except while reading.
    """
    plan, turn = record.sent, record.turn
    claim = turn.claim
    others = tuple(call for call in completion.tool_calls if not is_own(call))
    finish = completion.finish_reason if others or completion.finish_reason != "tool_calls" else "stop"
    text = completion.text if others else completion.text or ""  # a message with neither would be refused later
    answer = replace(completion, text=text, tool_calls=others, finish_reason=finish)
    if not plan.snapshot.offers_look_back:
        return answer, False  # no more look-backs: a result has said so
    started_at = record.rt.now()
    results = [message.content for message in turn.looked_back if message.role == "tool"]
    calls, used_tokens = len(results), sum(plan.rows.estimate(text) for text in results if isinstance(text, str))
    # Of many calls at once, the first one beyond the limit gets the result that says so; the rest are left out.
    own = tuple(call for call in completion.tool_calls if is_own(call))[: MOST_CALLS + 1]
    answered: list[tuple[ToolCall, LookBack | None, str]] = []
    rows: list[JsonObject] = []
    for call in own:
        lookup = read_call(call)
        unread = look_back_messages(claim.turn_id, claim.assistant_seq - 1, completion, [*answered, (call, lookup, "")])
        page, text = await _result(record, plan, lookup, calls, used_tokens, unread)
        if lookup is not None and page is not None:
            record.read += ((lookup, page),)
        tokens = plan.rows.estimate(text)
        calls, used_tokens = calls + 1, used_tokens + tokens
        answered.append((call, lookup, text))
        found = [handle_of(seq) for seq in page.seqs] if page else []
        rows.append({**(lookup.arguments() if lookup else {}), "messages": found, "tokens": tokens})
    again = all(text != AT_THE_CAP for _, _, text in answered)
    new = look_back_messages(claim.turn_id, claim.assistant_seq - 1, completion, answered)
    record.turn = replace(turn, looked_back=(*turn.looked_back, *new))
    record.note_look_back(plan, new, started_at, {"calls": rows, "may_look_back_again": again})
    if others:
        return answer, again
    record.goes_on(completion)
    return None, again


async def _result(
    record: Record, plan: TurnPlan, lookup: LookBack | None, calls: int, used_tokens: int, unread: Sequence[Message]
) -> tuple[TextPage | None, str]:
    """The page that a call reads, and the text of its result. `calls` is the number of the turn's look-back calls so
    far, `used_tokens` those of their results, `unread` the messages of this round without this result's text."""
    window = plan.decided.window
    if lookup is None:
        return None, NOT_UNDERSTOOD if calls < MOST_CALLS else AT_THE_CAP
    of_round = round_tokens(unread, plan.rows.estimate)
    size = next_page_tokens(
        lookup,
        window.budget.input_budget,
        calls,
        used_tokens,
        room_for_result(window, of_round, len(unread)),
        looked_back_tokens(window),
    )
    if size is None:
        return None, AT_THE_CAP
    claim = record.turn.claim
    last_seq, said_day = claim.assistant_seq - 1, day_said(window.snapshot.current.messages[0])
    wanted = next_search(lookup, record.read, seqs_beside_result(window, of_round + size, len(unread)), said_day)
    page = await read_page(record.rt, claim.session, lookup, wanted, last_seq, size, plan.rows.estimate)
    nothing = NOT_THERE if lookup.handle else NOTHING_FOUND
    return page, page.text if page else nothing
