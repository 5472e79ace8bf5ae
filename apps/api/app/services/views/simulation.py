"""Simulations: stored turns read in batches and replayed under other policies and models. Nothing is ever written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import orjson

from app.db.sessions import get_prompt_view, state_of
from app.db.simulation_rows import (
    StoredMessage,
    StoredTurn,
    dated_pins,
    folded,
    later_summaries,
    stored_aliases,
    stored_turns,
    summary_usage,
    trim_actions,
)
from app.domain.errors import InvalidRequest, NotFound
from app.domain.types import JsonObject, Message, Pin, SessionId, SessionState, TenantId, Turn, TurnId
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import Estimate, message_tokens, reasoning_tokens, with_images_by_rule
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.full_history import FullHistory
from app.engine.simulation.simulation import CountKey, PastTurn, Setting, SimulatedModel, Simulation, Summarizer
from app.engine.window.prompt import goal_text
from app.services.policies import given_policy
from app.services.runtime import Runtime
from app.services.sessions import check_alias
from app.services.turn.gather import budget_of, encoding_of, layers_of, session_policy
from app.services.turn.provider_call import prices_of
from app.services.views.simulation_report import Happened, Lane, report

BATCH_TURNS = 100
MOST_TURNS_DECIDED = 8_000
"""Turns times policies times models of one request."""
Progress = Callable[[int, int], None]
"""Told after each batch: turns done, and turns in all."""

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="simulate")
"""One for the process: however many ask for simulations, turns keep the other cores and most of the interpreter."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy to try: overrides over the session's own, and what its column is called."""

    name: str
    overrides: JsonObject


def variant_of(value: str | JsonObject) -> Variant:
    """The name of a preset, or overrides with an optional `name` among them."""
    if isinstance(value, str):
        return Variant(value, {"preset": value})
    overrides = {field: each for field, each in value.items() if field != "name"}
    name = value.get("name") or (orjson.dumps(overrides).decode() if overrides else "as the session has it")
    return Variant(str(name), overrides)


THRESHOLDS = tuple(
    Variant(f"at {percent} %", {"summary_trigger_ratio": percent / 100, "prune_trigger_ratio": max(90, percent) / 100})
    for percent in (70, 80, 90, 95)
)
"""What is tried when nobody says what: a summary at four shares of the budget. A prune never comes before it."""


async def simulate(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    variants: Sequence[Variant],
    model_aliases: Sequence[str] = (),
    *,
    most_turns: int | None = None,
    progress: Progress | None = None,
) -> JsonObject:
    """The session's turns under each policy, for each of the models, beside what happened and the full history.

    Without `model_aliases` every turn is asked of the model that answered it. `most_turns` bounds the work: what lies
    beyond is left out, and the answer says so. Raises `NotFound`, `InvalidRequest`.
    """
    async with rt.heavy.database.read_only() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
        if row is None:
            raise NotFound("session")
        stored: int = row["last_turn_seq"]
        through_seq = stored if most_turns is None else min(stored, most_turns)
        pins = await dated_pins(tx, session_id)
        asked = await stored_aliases(tx, session_id, through_seq)
    policies = [_policy(rt, row["policy"], variant, at) for at, variant in enumerate(variants)]
    known = {alias: alias if alias in rt.catalogue.aliases else row["model_alias"] for alias in asked}
    targets = [dict.fromkeys(asked, alias) for alias in _checked(rt, model_aliases)] or [known]
    own = session_policy(rt, row["policy"])

    def setting(policy: ContextPolicy, target: Mapping[str, str]) -> Setting:
        models = {was: _model(rt, tenant_id, alias, policy) for was, alias in target.items()}
        return Setting(policy, goal_text(row["room_goal"], row["mode"]), models)

    forced = list(model_aliases) or [None]
    lanes = [
        Lane(variant.name, alias, policy, Simulation(setting(policy, target)))
        for variant, policy in zip(variants, policies, strict=True)
        for alias, target in zip(forced, targets, strict=True)
    ]
    # The full history goes to the model's own window, which no policy caps.
    uncapped = replace(own, max_context_tokens=None)
    histories = {alias: FullHistory(setting(uncapped, target)) for alias, target in zip(forced, targets, strict=True)}
    reader = _Reader(
        rt, state_of(row), [lane.simulation.setting for lane in lanes] + [each.setting for each in histories.values()]
    )
    happened = Happened()

    def work(batch: Sequence[StoredTurn]) -> None:
        for turn in batch:
            happened.feed(turn)
            past = reader.past(turn, _pins_at(pins, turn.created_at))
            for fed in (*(lane.simulation for lane in lanes), *histories.values()):
                fed.feed(past)

    done = 0
    while done < through_seq:
        async with rt.heavy.database.read_only() as tx:
            batch = await stored_turns(tx, session_id, after_seq=done, through_seq=through_seq, limit=BATCH_TURNS)
        if not batch:
            break
        await asyncio.get_running_loop().run_in_executor(_thread, work, batch)
        done = batch[-1].seq
        if progress is not None:
            progress(done, through_seq)
    async with rt.heavy.database.read_only() as tx:
        happened.summarizer_tokens = await summary_usage(tx, session_id, through_seq)
        happened.note_later_summaries(await later_summaries(tx, session_id))
        happened.folded = await folded(tx, session_id) if through_seq == stored else None
        happened.actions = await trim_actions(tx, session_id, through_seq)
    gone = [alias for alias in asked if alias not in rt.catalogue.aliases]
    return report(session_id, stored, through_seq, gone, happened, histories, lanes)


class _Reader:
    """Stored turns, counted for every model that any of the settings reckons with."""

    def __init__(self, rt: Runtime, session: SessionState, settings: Sequence[Setting]) -> None:
        self._rt = rt
        self._session = session
        self._estimates: dict[CountKey, Estimate] = {
            model.key: model.estimate for setting in settings for model in setting.models.values()
        }

    def past(self, stored: StoredTurn, pins: tuple[Pin, ...]) -> PastTurn:
        request = stored.request or {}
        return PastTurn(
            model_alias=stored.model_alias,
            layers=layers_of(self._rt, self._session, request.get("instructions")),
            tools=tuple(request.get("tools") or ()),
            pins=pins,
            completion_tokens=stored.completion_tokens,
            versions={key: self._version(stored, key) for key in self._estimates},
        )

    def _version(self, stored: StoredTurn, key: CountKey) -> Turn:
        alias, encoding = key
        rule = image_rule_for(self._rt.catalogue.model(alias).model)
        messages = tuple(
            with_images_by_rule(_counted(each, encoding, self._estimates[key]), rule) for each in stored.messages
        )
        return Turn(TurnId(stored.id), stored.seq, stored.status, stored.unresolved, messages)


def _counted(stored: StoredMessage, encoding: str, estimate: Estimate) -> Message:
    message = stored.message
    found = stored.counts.get(encoding)
    if found is not None:
        return replace(message, tokens=found[0], reasoning_tokens=found[1])
    tokens = message_tokens(message.content, estimate, tool_calls=message.tool_calls, tool_call_id=message.tool_call_id)
    of_reasoning = reasoning_tokens(message.reasoning, message.reasoning_blocks, estimate)
    return replace(message, tokens=tokens, reasoning_tokens=of_reasoning)


def _policy(rt: Runtime, stored: JsonObject, variant: Variant, at: int) -> ContextPolicy:
    try:
        policy = session_policy(rt, stored, given_policy(rt, variant.overrides))
        check_alias(rt, policy.summary_model or None)
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, ("body", "policies", str(at), *error.where[-1:])) from error
    return policy


def _checked(rt: Runtime, model_aliases: Sequence[str]) -> Sequence[str]:
    for alias in model_aliases:
        if alias not in rt.catalogue.aliases:
            raise InvalidRequest("The catalogue has no model of this alias.", ("body", "model_aliases"))
    return model_aliases


def _model(rt: Runtime, tenant_id: TenantId, alias: str, policy: ContextPolicy) -> SimulatedModel:
    model = rt.catalogue.model(alias, tenant_id)
    encoding = encoding_of(model, policy)
    summarizer = rt.catalogue.model(policy.summary_model or alias, tenant_id)
    return SimulatedModel(
        alias=alias,
        encoding=encoding,
        budget=budget_of(model, policy),
        estimate=rt.tokenizers.estimator(encoding),
        calibration_ratio=rt.calibrations.ratio(tenant_id, alias, encoding),
        prices=partial(prices_of, model),
        summarizer=Summarizer(
            summarizer.alias, budget_of(summarizer, policy).prompt_ceiling, partial(prices_of, summarizer)
        ),
        reasoning_rule=model.reasoning_rule,
    )


def _pins_at(pins: Sequence[tuple[datetime, Pin]], instant: datetime) -> tuple[Pin, ...]:
    return tuple(pin for since, pin in pins if since <= instant)
