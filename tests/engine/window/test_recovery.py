"""A refusal says what to do, and doing it works."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine.policy.policy import MIN_SUMMARY_TOKENS
from app.engine.window.plan import Ready, Refused
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import room_beside
from tests.engine.histories import budget_of
from tests.engine.readings import least_of
from tests.engine.shortened import shortened
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import decide


@st.composite
def nearly_fitting(draw: st.DrawFn) -> Snapshot:
    """A snapshot whose budget is about what may never leave, so that a little less text would do."""
    snapshot = draw(snapshots(policies()))
    least = least_of(snapshot).input_tokens
    return replace(snapshot, budget=budget_of(max(1, least + draw(st.integers(-120, 120)))))


@given(nearly_fitting())
def test_a_turn_is_refused_only_where_it_has_no_room_for_the_smallest_summary_of_its_past(snapshot: Snapshot) -> None:
    assume(snapshot.policy.summarizes and snapshot.policy.prune_protected)
    taken = decide(snapshot)
    assume(isinstance(taken.decision, Refused))
    least = least_of(taken.snapshot)
    room_tokens = room_beside(least, least.pieces)
    smallest = taken.snapshot.past.wire_tokens() * 3 // 4 < MIN_SUMMARY_TOKENS
    assert room_tokens < MIN_SUMMARY_TOKENS or smallest


@given(nearly_fitting())
def test_shortening_any_item_a_refusal_names_by_its_tokens_makes_the_turn_fit(snapshot: Snapshot) -> None:
    decision = decide(snapshot).decision
    assume(isinstance(decision, Refused))
    assert isinstance(decision, Refused)
    for advice in decision.overflow.recovery["shorten"]:
        shorter = shortened(snapshot, advice["item"], advice["by_tokens"])
        if shorter is not None:
            assert isinstance(decide(shorter).decision, Ready), advice


@given(snapshots(policies()))
def test_the_figures_of_a_refusal_are_one_sum(snapshot: Snapshot) -> None:
    decision = decide(snapshot).decision
    assume(isinstance(decision, Refused))
    assert isinstance(decision, Refused)
    overflow, prompt = decision.overflow, decision.prompt
    budget, sizes = overflow.budget, [item["tokens"] for item in overflow.largest_items]
    assert sum(overflow.regions.values()) == budget["estimated"] == decision.window.input_tokens
    assert budget["estimated"] - budget["input_budget"] == budget["over_by"]
    assert overflow.regions.keys() == prompt.regions().keys()
    assert sizes == sorted(sizes, reverse=True)
    assert all(item["tokens"] <= overflow.regions[item["region"]] + 1 for item in overflow.largest_items)
    if snapshot.calibration_ratio == 1:
        of_overhead = {"tools", "framing"}
        assert all(overflow.regions[each] == of for each, of in prompt.regions().items() if each not in of_overhead)
    if overflow.budget["input_budget"] <= 0:
        assert overflow.recovery == {"shorten": [], "or": "use a model with a larger window"}
