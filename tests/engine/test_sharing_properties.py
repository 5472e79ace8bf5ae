"""What a window that is shared out promises (preset `allocated`), whatever the history, the shares and their order."""

from __future__ import annotations

from dataclasses import replace
from math import floor

from hypothesis import assume, event, given
from hypothesis import strategies as st

from app.domain.types import Pin
from app.engine.allocation import divide
from app.engine.assembly import Ready, Refused
from app.engine.budget import budget_for
from app.engine.policy import PRIORITY_REGIONS, Allocation, ContextPolicy
from app.engine.prompt import Prompt, pin_text
from app.engine.sharing import with_shared_budget
from app.engine.window import Snapshot, Window
from tests.engine.histories import charged_before, estimate, text_of
from tests.engine.readings import never_dropped, sent_ids
from tests.engine.shortened import shortened
from tests.engine.strategies import allocations, policies, snapshots
from tests.engine.turn_stand_in import decide

_shared = policies(presets=("allocated",)).filter(lambda policy: policy.allocation is not None)
_tokens = st.integers(0, 5000)
_by_region = st.fixed_dictionaries(dict.fromkeys(PRIORITY_REGIONS, _tokens))
_orders = st.permutations(PRIORITY_REGIONS[1:]).map(lambda rest: ("goal", *rest))


_large_pins = st.lists(st.tuples(st.integers(100, 2000), st.sampled_from((None, 0.0, 0.5, 1.0))), max_size=4)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Snapshot, ContextPolicy]:
    """A snapshot with the budget that its own shares make, mostly one that is too small for all there is."""
    policy, snapshot = draw(_shared), draw(snapshots())
    pins = tuple(
        Pin(f"large-{at}", text_of(tokens, at), relevance) for at, (tokens, relevance) in enumerate(draw(_large_pins))
    )
    snapshot = replace(snapshot, pins=(*snapshot.pins, *pins))
    least = charged_before(replace(snapshot, goal=None, pins=(), summary=None, turns=()))
    share = draw(st.floats(0.0, 1.4))
    limit = 1100 + least + int((charged_before(snapshot) - least) * share)
    budget = budget_for(draw(st.sampled_from((limit, limit, limit, 1100, 4000))), "test", 2048)
    return with_shared_budget(replace(snapshot, budget=budget), policy, estimate), policy


@given(_tokens, allocations, _orders, _by_region, _by_region)
def test_shares_sum_to_the_room_and_no_region_is_offered_less_than_its_share(
    room: int,
    allocation: Allocation,
    order: tuple[str, ...],
    wanted: dict[str, int],
    least: dict[str, int],
) -> None:
    needed = {region: min(wanted[region], least[region]) for region in PRIORITY_REGIONS}
    division = divide(room, allocation, order, wanted=wanted, least=needed)  # type: ignore[arg-type]
    assert sum(division.shares.values()) == room
    assert all(division.offered[region] >= division.shares[region] for region in PRIORITY_REGIONS)
    if sum(needed.values()) <= room:
        assert all(division.shares[region] >= needed[region] for region in PRIORITY_REGIONS)
    used = {region: min(wanted[region], division.offered[region]) for region in PRIORITY_REGIONS}
    assert sum(used.values()) <= room
    # Nothing is wanting while there is room that nobody uses, but for what flowed past it down the order.
    if used["history"] < wanted["history"]:
        assert sum(used.values()) == room


@given(_cases())
def test_the_output_has_its_share_of_what_system_text_message_and_tools_leave(
    case: tuple[Snapshot, ContextPolicy],
) -> None:
    snapshot, policy = case
    assert policy.allocation is not None
    budget = snapshot.budget
    bare = replace(snapshot, goal=None, pins=(), summary=None, turns=())
    window = Window(bare, policy, estimate)
    fixed = window.charge(window.prompt([piece for piece in window.pieces if piece.items[0].region == "user"]))
    share = (budget.limit - budget.overhead_reserve - fixed) * policy.allocation.reserved_for_output_pct / 100
    assert budget.output_reserve == max(16, floor(share))
    assert budget.input_budget == budget.limit - budget.output_reserve - budget.overhead_reserve


@given(_cases())
def test_system_text_goal_the_users_message_and_what_is_unresolved_are_whole(
    case: tuple[Snapshot, ContextPolicy],
) -> None:
    snapshot, policy = case
    taken = decide(snapshot, policy)
    texts = _texts(taken.decision.prompt)
    assert all(text in texts for _, text in snapshot.layers)
    assert snapshot.goal is None or snapshot.goal in texts
    unresolved = {message.id for message in never_dropped(replace(taken.snapshot, turns=()))}
    latest = [turn for turn in taken.snapshot.turns if turn.status.value != "rejected"][-1:]
    if latest and latest[0].unresolved:
        kept = never_dropped(replace(taken.snapshot, turns=(latest[0],)))
        unresolved |= {message.id for message in kept}
    assert unresolved <= sent_ids(taken.decision.prompt)


@given(_cases())
def test_pins_and_summary_are_within_what_they_were_offered(case: tuple[Snapshot, ContextPolicy]) -> None:
    snapshot, policy = case
    decision = decide(snapshot, policy).decision
    assume(isinstance(decision, Ready))
    assert policy.allocation is not None
    regions, budget = decision.prompt.regions(), snapshot.budget
    trimmed = {action.kind for action in decision.accounts.actions}
    for region in ("pins", "summary"):
        before = policy.context_priority[: policy.context_priority.index(region)]
        above = {"goal": policy.allocation.goal_pct, "pins": policy.allocation.pinned_files_pct}
        above |= {"summary": policy.allocation.map_pct}
        above["history"] = 100 - policy.allocation.reserved_for_output_pct - sum(above.values())
        # What a region may use at most: its own share and all that those before it could leave.
        percent = above[region] + sum(above[each] for each in before)
        room = budget.input_budget / snapshot.calibration_ratio + budget.overhead_reserve
        most = room * percent / (100 - policy.allocation.reserved_for_output_pct)
        assert regions[region] <= most + 100  # tokens: the smallest summary there is
    event(f"pins trimmed: {bool(trimmed & {'pinned_trim', 'pinned_drop'})}")
    event(f"summary shortened: {'summary_shortened' in trimmed}")
    event(f"history dropped: {'history_drop' in trimmed}")


@given(_cases())
def test_the_less_relevant_pin_is_trimmed_before_the_more_relevant_and_order_of_sending_stays(
    case: tuple[Snapshot, ContextPolicy],
) -> None:
    snapshot, policy = case
    rated = tuple(replace(pin, relevance=pin.relevance or 0.25) for pin in snapshot.pins)
    snapshot = replace(snapshot, pins=rated)
    decision = decide(snapshot, policy).decision
    rows = {action.target: action for action in decision.accounts.actions if action.kind.startswith("pinned_")}
    items = {item.label: item for item in decision.prompt.items if item.region == "pins"}
    assert list(items) == [f"pin:{pin.name}" for pin in rated if f"pin:{pin.name}" in items]
    for pin in rated:
        label = f"pin:{pin.name}"
        action = rows.get(label)
        whole = estimate(pin_text(pin))
        if action is None:
            assert items[label].tokens == whole
        elif action.kind == "pinned_drop":
            assert label not in items
            assert action.tokens_removed == whole + 4
        else:
            assert items[label].tokens == whole - action.tokens_removed < whole
            assert "of this pin left out" in items[label].as_sent()["content"]
        if action is not None and action.kind == "pinned_drop":
            less = [other for other in rated if (other.relevance or 0) < (pin.relevance or 0)]
            assert all(f"pin:{other.name}" not in items for other in less)


@given(_cases())
def test_whole_turns_leave_oldest_first_and_none_while_all_would_fit(case: tuple[Snapshot, ContextPolicy]) -> None:
    snapshot, policy = case
    taken = decide(snapshot, policy)
    dropped = [a.target for a in taken.decision.accounts.actions if a.kind == "history_drop"]
    order = [f"turn:{turn.id}" for turn in taken.snapshot.turns]
    present = sent_ids(taken.decision.prompt)
    assert dropped == [target for target in order if target in dropped]
    for turn in taken.snapshot.turns:
        if f"turn:{turn.id}" in dropped:
            assert not present & {message.id for message in turn.messages}
    if charged_before(snapshot, policy) < policy.prune_trigger_ratio * snapshot.budget.input_budget:
        assert not dropped


@given(_cases())
def test_a_turn_is_refused_only_when_all_that_may_leave_has_left(case: tuple[Snapshot, ContextPolicy]) -> None:
    snapshot, policy = case
    decision = decide(snapshot, policy).decision
    assume(isinstance(decision, Refused) and snapshot.budget.input_budget > 0)
    assert decision.prompt.regions()["pins"] == 0
    if policy.prune_protected:
        latest = [turn for turn in snapshot.turns if turn.status.value != "rejected"][-1:]
        kept = {snapshot.current.id} | {turn.id for turn in latest if turn.unresolved}
        assert {item.message.turn_id for item in decision.prompt.items if item.message} <= kept


@given(_cases())
def test_shortening_what_a_refusal_names_by_its_tokens_makes_the_turn_fit_its_new_shares(
    case: tuple[Snapshot, ContextPolicy],
) -> None:
    snapshot, policy = case
    decision = decide(snapshot, policy).decision
    assume(isinstance(decision, Refused))
    assert isinstance(decision, Refused)
    for advice in decision.overflow.recovery["shorten"]:
        shorter = shortened(snapshot, advice["item"], advice["by_tokens"])
        if shorter is not None:
            decision = decide(with_shared_budget(shorter, policy, estimate), policy).decision
            assert isinstance(decision, Ready), advice


def _texts(prompt: Prompt) -> list[object]:
    return [message["content"] for message in prompt.messages()]
