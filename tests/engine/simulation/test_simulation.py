"""A simulation goes on with the past it had before; its figures are those of a past that is laid out anew each call."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.extractive import kept_reading
from app.domain.prices import Prices
from app.domain.types import ReasoningRule, Turn
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.inputs import (
    CountedTurn,
    CountKey,
    HeadCost,
    PastTurn,
    Setting,
    SimulatedCall,
    SimulatedModel,
    TurnCounter,
)
from app.engine.simulation.simulation import Simulation
from app.engine.window.past import Past, past_of
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import GUARDED, estimate
from tests.engine.strategies import policies, snapshots

_PRICES = Prices(2.5, 10.0)
_rules = st.sampled_from((None, ReasoningRule("text", "tool_turns"), ReasoningRule("text", "tool_loop")))


class Planned(Simulation):
    """The same with sentences read and the past laid out anew, and a window for every call and after every turn."""

    def _past_for(self, key: CountKey) -> Past:
        return past_of(super()._past_for(key).turns)

    def _whole(self, snapshot: Snapshot, model: SimulatedModel, head: HeadCost, call: SimulatedCall) -> None:
        del snapshot, model, head, call

    def _may_fold(self, sent: object, turn: CountedTurn) -> bool:  # noqa: ARG002 - as if nothing had been sent
        return super()._may_fold(None, turn)


def _thrice(text: str) -> int:
    return 3 * estimate(text)


def _model(alias: str, snapshot: Snapshot, count: Estimate, rule: ReasoningRule | None) -> SimulatedModel:
    return SimulatedModel(
        alias=alias,
        wire_model=alias,
        encoding="test",
        budget=snapshot.budget,
        estimate=count,
        calibration_ratio=snapshot.calibration_ratio,
        prices=_PRICES.of_prompt,
        summarizer_ceiling=snapshot.budget.prompt_ceiling,
        summarizer_prices=_PRICES.of_prompt,
        reasoning_rule=rule,
    )


def _thrice_counted(turn: Turn) -> Turn:
    return replace(turn, messages=tuple(replace(message, tokens=3 * message.tokens) for message in turn.messages))


def _past_turns(snapshot: Snapshot, setting: Setting, other_from: int) -> list[PastTurn]:
    """The snapshot's turns and its running one; those from a place on were answered by the other model."""
    counters = {
        alias: TurnCounter(model.estimate, setting.goal, model.reasoning_rule)
        for alias, model in setting.models.items()
    }
    seen = (snapshot.layers, snapshot.pins, snapshot.tools)
    return [
        PastTurn(
            model_alias="other" if at >= other_from else "one",
            layers=snapshot.layers,
            tools=snapshot.tools,
            pins=snapshot.pins,
            completion_tokens=None if at % 3 else 77,
            versions={
                setting.models["one"].key: counters["one"].version(turn, *seen),
                setting.models["other"].key: counters["other"].version(_thrice_counted(turn), *seen),
            },
            stored_tokens={message.seq: message.tokens for message in turn.messages},
        )
        for at, turn in enumerate((*snapshot.past.turns, snapshot.current))
    ]


def _figures(simulation: Simulation) -> list[Any]:
    bills = simulation.calls_bill.cost_usd, simulation.summaries_bill.cost_usd
    return [*map(asdict, simulation.turns), asdict(simulation.losses), bills]


@given(
    st.one_of(snapshots(), snapshots(long=True)), st.one_of(st.just(GUARDED), policies()), _rules, st.integers(0, 14)
)
def test_simulation_figures_equal_those_of_planning_each_turn_from_scratch(
    snapshot: Snapshot, policy: ContextPolicy, rule: ReasoningRule | None, other_from: int
) -> None:
    models = {"one": _model("one", snapshot, estimate, None), "other": _model("other", snapshot, _thrice, rule)}
    setting = Setting(policy, snapshot.goal, models)
    simulation, planned = (
        Simulation(replace(setting, read=kept_reading(64, 64))),
        Planned(setting),
    )
    for past in _past_turns(snapshot, setting, other_from):
        simulation.feed(past)
        planned.feed(past)
        assert _figures(simulation) == _figures(planned)
