"""Simulations: stored turns read in batches and replayed under other policies and models. Nothing is ever written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import orjson

from app.db import simulation_rows as store
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen, replace
from app.domain.prices import Prices
from app.domain.stored import StoredTurn
from app.domain.types import JsonObject, Pin, SessionId, SessionRef, SessionState, TenantId
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.inputs import Setting, SimulatedModel
from app.engine.window.prompt import goal_text
from app.services.policies import given_policy, session_policy
from app.services.runtime import Runtime
from app.services.sessions import check_alias, session_state
from app.services.turn.gather import budget_of, layers_of
from app.services.turn.window_rows import encoding_of
from app.services.views.simulation_job import Plan, PlannedLane, SimulationJob, counted_elsewhere

BATCH_TURNS = 25
"""Turns that are read and passed on at once, which blocks the event loop for a millisecond or two. The next batch is
read while this one is computed."""
SMALL_WORK = 24
"""Work of the turns times policies times models up to which a simulation runs in a thread (a tenth of a second)."""
LARGE_WORK = 2_000
"""The same from which a simulation is divided among two processes (a second)."""
MOST_WORK = 15_000
"""The same, at most, of a request (six seconds)."""
_COST_OF_RECALL: Final = 4
"""What deciding a turn with recall costs, if one without costs 1."""
Progress = Callable[[int, int], None]
"""Called after each batch with the turns done and the turns in all."""


@frozen
class Variant:
    """A policy to try: overrides of the session's own, and the name of its column."""

    name: str
    overrides: JsonObject


def variant_of(value: str | JsonObject) -> Variant:
    """The variant for the name of a preset, or for overrides with an optional `name` among them."""
    if isinstance(value, str):
        return Variant(value, {"preset": value})
    overrides = {field: each for field, each in value.items() if field != "name"}
    name = value.get("name") or (orjson.dumps(overrides).decode() if overrides else "as the session has it")
    return Variant(str(name), overrides)


THRESHOLDS = tuple(
    Variant(f"at {percent} %", {"summary_trigger_ratio": percent / 100, "prune_trigger_ratio": max(90, percent) / 100})
    for percent in (70, 80, 90, 95)
)
"""Variants that are tried by default: a summary at four shares of the budget. A prune never comes before it."""


async def simulate(
    rt: Runtime,
    session: SessionRef,
    variants: Sequence[Variant],
    model_aliases: Sequence[str] = (),
    *,
    most_turns: int | None = None,
    most_work: int | None = None,
    progress: Progress | None = None,
) -> JsonObject:
    """Simulates the session's turns under each policy and model. Also reports what happened, and the full history.
    Without `model_aliases` every turn uses the model that answered it. Turns after `most_turns`, or after `most_work`
    (1 for a short turn with one policy and model), are left out, and the answer says so. Raises `NotFound`,
    `InvalidRequest`."""
    lane_count = len(variants) * max(1, len(model_aliases))
    async with rt.heavy.database.read_only() as tx:
        state = await session_state(tx, session)
        stored = state.last_turn_seq
        through_seq, work_of_lane = await store.turns_within(
            tx,
            session.id,
            stored if most_turns is None else min(stored, most_turns),
            None if most_work is None else most_work // lane_count,
        )
        pins = await store.dated_pins(tx, session.id)
        aliases = await store.stored_aliases(tx, session.id, through_seq)
    plan = _plan(rt, state, variants, model_aliases, through_seq, pins, aliases)
    work = work_of_lane * lane_count
    divided = work >= LARGE_WORK and rt.jobs.has_room_for_two
    parts = _halves(plan.lanes) if divided else [range(len(plan.lanes))]
    async with AsyncExitStack() as stack:
        jobs = [await stack.enter_async_context(rt.jobs.job(SimulationJob, small=work <= SMALL_WORK)) for _ in parts]
        lanes = [tuple(plan.lanes[at] for at in part) for part in parts]
        plans = [replace(plan, lanes=lanes[0]), *(replace(plan, lanes=each, histories={}) for each in lanes[1:])]
        await _all(*(job.do(SimulationJob.begin, each) for job, each in zip(jobs, plans, strict=True)))
        batch = await _batch(rt, session.id, 0, through_seq)
        while batch:
            done = batch[-1].seq
            following = _batch(rt, session.id, done, through_seq)
            batch, *_ = await _all(following, *(job.do(SimulationJob.feed, batch) for job in jobs))
            if progress is not None:
                progress(done, through_seq)
        async with rt.heavy.database.read_only() as tx:
            totals = await store.stored_totals(tx, session.id, through_seq)
        reports = await _all(*(job.do(SimulationJob.report, totals) for job in jobs))
    policies = chain.from_iterable([report["policies"] for report in reports])
    in_order = sorted(zip(chain.from_iterable(parts), policies, strict=True), key=itemgetter(0))
    return {**reports[0], "policies": [policy for _, policy in in_order]}


def _halves(lanes: Sequence[PlannedLane]) -> Sequence[Sequence[int]]:
    """The places of the lanes in two parts that cost about the same, or in one part if there is one lane."""
    parts: tuple[list[int], list[int]] = [], []
    costs = [_COST_OF_RECALL if lane.setting.policy.recall.enabled else 1 for lane in lanes]
    for at in sorted(range(len(lanes)), key=costs.__getitem__, reverse=True):
        min(parts, key=lambda part: sum([costs[each] for each in part])).append(at)
    return [part for part in parts if part]


async def _all(*steps: Awaitable[Any]) -> list[Any]:
    """The steps' results. After an error or a cancellation, none of them goes on."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _batch(rt: Runtime, session_id: SessionId, after_seq: int, through_seq: int) -> list[StoredTurn]:
    if after_seq >= through_seq:
        return []
    async with rt.heavy.database.read_only() as tx:
        return await store.stored_turns(tx, session_id, after_seq, through_seq, limit=BATCH_TURNS)


def _plan(
    rt: Runtime,
    session: SessionState,
    variants: Sequence[Variant],
    model_aliases: Sequence[str],
    through_seq: int,
    pins: Sequence[tuple[datetime, Pin]],
    aliases: Sequence[str],
) -> Plan:
    policies = [_policy(rt, session.policy, variant, at) for at, variant in enumerate(variants)]
    known = {alias: alias if alias in rt.catalogue.aliases else session.model_alias for alias in aliases}
    if any(alias not in rt.catalogue.aliases for alias in model_aliases):
        raise InvalidRequest("The catalogue has no model of this alias.", ("body", "model_aliases"))
    forced = model_aliases or (None,)
    targets = {alias: known if alias is None else dict.fromkeys(aliases, alias) for alias in forced}
    own = session_policy(rt, session.policy)

    def setting(policy: ContextPolicy, target: Mapping[str, str]) -> Setting:
        models = {was: _model(rt, session.tenant_id, alias, policy) for was, alias in target.items()}
        return Setting(policy, goal_text(session.room_goal, session.mode), models)

    # The full history is compared with the model's own window, which no policy caps.
    uncapped = replace(own, max_context_tokens=None)
    return Plan(
        session_id=session.id,
        stored_turns=session.last_turn_seq,
        through_seq=through_seq,
        gone_aliases=tuple(alias for alias in aliases if alias not in rt.catalogue.aliases),
        layers=layers_of(rt, session),
        lanes=tuple(
            PlannedLane(variant.name, alias, setting(policy, targets[alias]))
            for variant, policy in zip(variants, policies, strict=True)
            for alias in forced
        ),
        histories={alias: setting(uncapped, target) for alias, target in targets.items()},
        pins=tuple(pins),
    )


def _policy(rt: Runtime, stored: JsonObject, variant: Variant, at: int) -> ContextPolicy:
    try:
        policy = session_policy(rt, stored, given_policy(rt, variant.overrides))
        if policy.summary_model:
            check_alias(rt, policy.summary_model)
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, ("body", "policies", str(at), *error.where[-1:])) from error
    return policy


def _model(rt: Runtime, tenant_id: TenantId, alias: str, policy: ContextPolicy) -> SimulatedModel:
    model = rt.catalogue.model(alias, tenant_id)
    encoding = encoding_of(model, policy)
    summarizer = rt.catalogue.model(policy.summary_model or alias, tenant_id)
    return SimulatedModel(
        alias=alias,
        wire_model=model.model,
        encoding=encoding,
        budget=budget_of(model, policy),
        estimate=counted_elsewhere,
        calibration_ratio=rt.calibrations.ratio(tenant_id, alias, encoding),
        prices=(model.prices or Prices()).of_prompt,
        summarizer_ceiling=budget_of(summarizer, policy).prompt_ceiling,
        summarizer_prices=(summarizer.prices or Prices()).of_prompt,
        reasoning_rule=model.reasoning_rule,
        takes_tools=model.takes_tools,
    )
