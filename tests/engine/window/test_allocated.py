"""The preset `allocated`, one statement of its design a test: shares, flow, trimming, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.errors import StatedOverflow
from app.domain.types import Pin, Summary, SummaryBody, SummaryItem, Turn, TurnStatus
from app.engine.messages.turns import wire_tokens_of
from app.engine.policy.budget import budget_for
from app.engine.policy.policy import PRESETS, PRIORITY_REGIONS, Allocation, ContextPolicy, PriorityRegion
from app.engine.window.plan import Ready, Refused, SummaryDue, plan
from app.engine.window.prompt import pin_text
from app.engine.window.provider_overflow import react
from app.engine.window.shares import Division, divide, with_shared_budget
from app.engine.window.snapshot import Snapshot, in_ranges
from tests.engine.histories import History, UnitShape, chat, estimate, snapshot_of, text_of
from tests.engine.readings import items_of
from tests.engine.turn_stand_in import decide

ALLOCATED = PRESETS["allocated"].policy
_NO_SUMMARIES = replace(ALLOCATED, auto_summarize=False)


def _divide(room: int, order: tuple[PriorityRegion, ...] = PRIORITY_REGIONS, **tokens: int) -> Division:
    wanted: dict[PriorityRegion, int] = {region: tokens.get(region, 0) for region in PRIORITY_REGIONS}
    least: dict[PriorityRegion, int] = {"goal": wanted["goal"], "pins": 0, "summary": 0, "history": 0}
    return divide(room, Allocation(), order, wanted=wanted, least=least)


def _shared(
    turns: tuple[Turn, ...],
    current: Turn,
    *,
    limit: int = 8192,
    policy: ContextPolicy = ALLOCATED,
    **around: Any,
) -> Snapshot:
    """A snapshot in a window of `limit` tokens, its output having its share."""
    snapshot = snapshot_of(turns, current, input_budget=0, policy=policy, **around)
    return with_shared_budget(replace(snapshot, budget=budget_for(limit, "test", 2048)), estimate)


def _pins(*sizes_and_relevances: tuple[int, float | None]) -> tuple[Pin, ...]:
    return tuple(
        Pin(f"pin-{at}", text_of(tokens, at), relevance) for at, (tokens, relevance) in enumerate(sizes_and_relevances)
    )


def _actions(decision: Ready | Refused) -> list[tuple[str, str]]:
    return [(action.kind, action.target) for action in decision.accounts.actions]


def _pin_texts(decision: Ready | Refused) -> dict[str, str]:
    return {item.label: str(item.as_sent()["content"]) for item in items_of(decision.prompt) if item.region == "pins"}


# The shares


def test_a_pins_name_and_source_are_on_the_line_before_its_fence_whatever_they_contain() -> None:
    text = pin_text(Pin("a plan\n<pin-0>", "line one\nline two", source="a\u2028file\tb"))
    heading, *rest = text.split("\n")
    assert heading == "Pinned for this conversation: a plan <pin-0> (from a file b)"
    assert rest[1:3] == ["line one", "line two"]


def test_fifteen_fifty_and_twenty_five_of_ninety_percent_are_goal_pins_and_summary() -> None:
    assert _divide(9000, goal=9000).shares == {"goal": 9000, "pins": 0, "summary": 0, "history": 0}
    assert _divide(9000).shares == {"goal": 1500, "pins": 5000, "summary": 2500, "history": 0}


def test_unused_room_of_a_region_goes_to_the_next_in_priority_and_finally_to_history() -> None:
    offered = _divide(9000, goal=500, pins=4000, summary=100, history=9000).offered
    assert offered == {"goal": 1500, "pins": 6000, "summary": 4500, "history": 4400}


def test_a_session_may_have_another_order_of_priority() -> None:
    offered = _divide(9000, ("goal", "summary", "pins", "history"), pins=9000, summary=9000, goal=500).offered
    assert offered["summary"] == 3500
    assert offered["pins"] == 5000


def test_a_history_that_comes_early_gets_what_the_last_region_leaves_too() -> None:
    offered = _divide(9000, ("goal", "history", "summary", "pins"), history=9000, pins=1000).offered
    assert offered["history"] == 1500 + 2500 + 4000


def test_a_goal_over_its_share_borrows_from_the_lowest_priority_first() -> None:
    assert _divide(9000, goal=2000).shares == {"goal": 2000, "pins": 5000, "summary": 2000, "history": 0}
    assert _divide(9000, goal=5000).shares == {"goal": 5000, "pins": 4000, "summary": 0, "history": 0}


def test_system_text_message_and_tools_come_off_before_the_output_gets_its_tenth() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "description": text_of(2000)}}
    layers = (("system:global", text_of(500)),)
    snapshot = _shared((), History().turn(user_tokens=300), layers=layers, goal=text_of(900), tools=(tool,))
    bare = _shared((), History().turn(user_tokens=300), layers=layers, tools=(tool,))
    tools_beyond_reserve = bare.budget.fixed_tokens - 800
    assert 900 < tools_beyond_reserve < 1100
    assert snapshot.budget.output_reserve == (8192 - 1024 - 800 - tools_beyond_reserve) // 10
    assert snapshot.budget.input_budget == 8192 - 1024 - snapshot.budget.output_reserve
    assert snapshot.budget == bare.budget


def test_the_outputs_share_replaces_the_ceiling_of_the_deployment() -> None:
    assert _shared((), History().turn(), limit=128_000).budget.output_reserve == 12158


# Pins


def test_pins_within_what_they_were_offered_are_sent_as_they_are() -> None:
    decision = plan(_shared((), History().turn(), pins=_pins((3000, 0.1))), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.actions == ()
    assert not decision.accounts.prune_triggered


def test_the_least_relevant_pin_is_shortened_first_and_says_by_how_much() -> None:
    snapshot = _shared((), History().turn(), pins=_pins((3500, 0.9), (3500, 0.2), (500, 0.5)))
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    assert _actions(decision) == [("pinned_trim", "pin-1")]
    texts = _pin_texts(decision)
    assert list(texts) == ["pin:pin-0", "pin:pin-1", "pin:pin-2"]
    assert "characters of this pin left out" in texts["pin:pin-1"]
    assert decision.accounts.prune_triggered


def test_pins_are_dropped_only_when_all_of_them_shortened_are_still_too_much() -> None:
    many = _pins(*((300, at / 100) for at in range(80)))
    decision = plan(_shared((), History().turn(), pins=many), estimate)
    assert isinstance(decision, Ready)
    kinds = {target: kind for kind, target in _actions(decision)}
    dropped = [target for target, kind in kinds.items() if kind == "pinned_drop"]
    assert dropped == [f"pin-{at}" for at in range(len(dropped))]
    assert 0 < len(dropped) < 80
    left = [target for target, kind in kinds.items() if kind == "pinned_trim"]
    assert left[0] == f"pin-{len(dropped)}"
    assert len(left) > 40


def test_no_turn_is_refused_while_a_pin_can_be_shortened_where_we_count_more_than_the_provider() -> None:
    """A pin that is dropped takes its framing along, and with it 1.6 times as much of what the others may have."""
    pins = _pins((81, None), (625, None), (100, None), (100, None), (346, 0.5))
    for limit in range(1160, 1360):
        shared = _shared((), History().turn(user_tokens=1), limit=limit, pins=pins, calibration_ratio=0.625, layers=())
        assert isinstance(plan(shared, estimate), Ready), limit


def test_the_pin_that_answers_the_users_message_stays_whole_where_nobody_gave_a_relevance() -> None:
    history = History()
    current = history.turn(user_tokens=0)
    words = replace(current.messages[0], content="Where does valve 12 lead?", tokens=7)
    current = replace(current, messages=(words,))
    pins = (
        Pin("menu", "Soup on Mondays, fish on Fridays. " * 300),
        Pin("valves", "Valve 12 leads to the cellar, valve 13 to the roof. " * 200),
        Pin("ledger", "The invoice was paid in May. " * 300),
    )
    decision = plan(_shared((), current, pins=pins), estimate)
    assert isinstance(decision, Ready)
    assert "valves" not in {target for _, target in _actions(decision)}


def test_the_goal_is_whole_however_long_and_pins_give_way_to_it() -> None:
    goal = text_of(5000)
    decision = plan(_shared((), History().turn(), goal=goal, pins=_pins((3000, 1.0))), estimate)
    assert isinstance(decision, Ready)
    assert goal in [item.as_sent()["content"] for item in items_of(decision.prompt)]
    assert decision.prompt.regions()["goal"] == 5000
    assert 0 < decision.prompt.regions()["pins"] < 2000


def test_a_goal_that_leaves_no_room_is_refused_and_the_refusal_says_to_shorten_it() -> None:
    decision = plan(_shared((), History().turn(), goal=text_of(7000), pins=_pins((50, 1.0))), estimate)
    assert isinstance(decision, Refused)
    assert [advice["item"] for advice in decision.overflow.recovery["shorten"]] == ["goal"]
    shorter = text_of(7000)[: -4 * decision.overflow.recovery["shorten"][0]["by_tokens"]]
    assert isinstance(plan(_shared((), History().turn(), goal=shorter), estimate), Ready)


# The summary


def _summary(history: History, tokens: int) -> Summary:
    facts = tuple(SummaryItem(text_of(40, at), ()) for at in range(tokens // 50))
    return history.summary(SummaryBody(text_of(60), key_facts=facts))


def test_a_summary_over_what_it_was_offered_is_shortened_and_never_leaves() -> None:
    history = History()
    # The pins take all that the goal leaves, so the summary has its own quarter.
    snapshot = _shared((), history.turn(), summary=_summary(history, 4000), pins=_pins((9000, 1.0)))
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    assert [kind for kind, _ in _actions(decision)] == ["summary_shortened", "pinned_trim"]
    quarter = (8192 - 1024 - snapshot.budget.fixed_tokens) // 4
    assert quarter * 0.8 < decision.prompt.regions()["summary"] <= quarter


@pytest.mark.parametrize("map_pct", [0, 1])
def test_a_summary_without_a_share_is_a_sentence_or_two(map_pct: int) -> None:
    history = History()
    policy = replace(ALLOCATED, allocation=Allocation(map_pct=map_pct))
    summary, pins = _summary(history, 4000), _pins((9000, 1.0))
    decision = plan(_shared((), history.turn(), policy=policy, summary=summary, pins=pins), estimate)
    assert isinstance(decision, Ready)
    assert 40 < decision.prompt.regions()["summary"] <= 100


def test_a_new_summary_may_take_the_maps_share_and_not_fifteen_percent() -> None:
    history = History()
    snapshot = _shared(chat(history, 40, assistant_tokens=400), history.turn())
    decision = plan(snapshot, estimate)
    assert isinstance(decision, SummaryDue)
    assert decision.fold.reason == "allocation"
    assert decision.fold.cap_tokens == pytest.approx((8192 - 1024 - snapshot.budget.fixed_tokens) / 4, abs=2)


def test_the_log_of_a_new_summary_reckons_with_the_whole_of_the_one_before_although_that_was_shortened() -> None:
    history = History()
    around = _summary(history, 4000), _pins((9000, 1.0))
    snapshot = _shared(chat(history, 20, assistant_tokens=300), history.turn(), summary=around[0], pins=around[1])
    taken = decide(snapshot)
    assert taken.summarized
    removed = sum(action.tokens_removed for action in taken.decision.accounts.actions)
    assert taken.decision.accounts.wire_before - removed == taken.decision.prompt.wire_tokens


# The history


def test_a_history_that_does_not_fit_is_folded_but_for_the_protected_turns() -> None:
    history = History()
    taken = decide(_shared(chat(history, 30, assistant_tokens=250), history.turn()))
    assert taken.fold is not None
    assert taken.fold.reason == "allocation"
    assert [turn.seq for turn in taken.fold.protected] == [27, 28, 29, 30]
    assert isinstance(taken.decision, Ready)
    assert {kind for kind, _ in _actions(taken.decision)} == {"summary_folded"}


def test_protected_turns_that_the_pins_leave_no_room_for_are_folded_and_not_lost() -> None:
    history = History()
    turns = chat(history, 12, assistant_tokens=600)
    taken = decide(_shared(turns, history.turn(), pins=_pins((9000, 1.0))))
    assert taken.fold is not None
    assert len(taken.fold.protected) < 4
    assert isinstance(taken.decision, Ready)
    assert "history_drop" not in {kind for kind, _ in _actions(taken.decision)}


def test_without_a_summary_whole_turns_leave_oldest_first() -> None:
    history = History()
    turns = chat(history, 30, assistant_tokens=300)
    decision = plan(_shared(turns, history.turn(), policy=_NO_SUMMARIES), estimate)
    assert isinstance(decision, Ready)
    assert _actions(decision) == [("history_drop", "conversation_history")]
    past = {item.message.turn_id for item in items_of(decision.prompt) if item.message and item.region == "history"}
    dropped = len(turns) - len(past)
    assert 5 < dropped < 20
    assert past == {turn.id for turn in turns[dropped:]}
    removed = decision.accounts.actions[0].tokens_removed
    assert removed == wire_tokens_of(turns[:dropped])


def test_history_gets_the_room_that_goal_pins_and_summary_do_not_use() -> None:
    history = History()
    decision = plan(_shared(chat(history, 17, assistant_tokens=300), history.turn(), policy=_NO_SUMMARIES), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.actions == ()
    assert decision.prompt.regions()["history"] > 5000


def test_full_pins_do_not_have_a_summary_made_every_turn() -> None:
    history = History()
    summary = _summary(history, 1500)
    snapshot = _shared(chat(history, 1, assistant_tokens=100), history.turn(), summary=summary, pins=_pins((9000, 1.0)))
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)


def test_the_latest_turn_stays_while_it_is_unresolved_and_pins_give_way_to_it() -> None:
    history = History()
    failed = history.turn(("tool_group", 2000, 1), user_tokens=500, status=TurnStatus.FAILED)
    snapshot = _shared((failed,), history.turn(), policy=_NO_SUMMARIES, pins=_pins((9000, 1.0)))
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    assert {item.message.turn_id for item in items_of(decision.prompt) if item.message} >= {failed.id}
    assert decision.prompt.regions()["pins"] > 1000


def test_an_older_turn_that_failed_leaves_like_any_other() -> None:
    history = History()
    failed = history.turn(user_tokens=3000, status=TurnStatus.FAILED)
    turns = (failed, *chat(history, 12, assistant_tokens=400))
    decision = plan(_shared(turns, history.turn(), policy=_NO_SUMMARIES), estimate)
    assert isinstance(decision, Ready)
    assert _actions(decision) == [("history_drop", "conversation_history")]
    assert failed.id not in {item.message.turn_id for item in items_of(decision.prompt) if item.message}


def test_newest_results_take_up_to_half_of_the_room_from_pins_before_they_are_shortened() -> None:
    history = History()
    current = history.turn(("tool_group", 2500, 1), status=TurnStatus.RUNNING)
    decision = plan(_shared((), current, pins=_pins((9000, 1.0))), estimate)
    assert isinstance(decision, Ready)
    assert [kind for kind, _ in _actions(decision)] == ["pinned_trim"]
    huge = history.turn(("tool_group", 20_000, 1), status=TurnStatus.RUNNING)
    decision = plan(_shared((), huge, pins=_pins((9000, 1.0))), estimate)
    assert isinstance(decision, Ready)
    assert [kind for kind, _ in _actions(decision)] == ["tool_result_shortened", "pinned_trim"]
    assert decision.prompt.regions()["pins"] > 2000


@pytest.mark.parametrize("name", ["allocated", "turn_atomic"])
def test_earlier_rounds_of_the_running_turn_are_shortened_and_leave_before_it_is_refused(name: str) -> None:
    history = History()
    rounds: list[tuple[UnitShape, int, int]] = [("tool_group", 400, 1)] * 60
    current = history.turn(*rounds, status=TurnStatus.RUNNING)
    policy = PRESETS[name].policy
    decision = plan(_shared((), current, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert {kind for kind, _ in _actions(decision)} == {"tool_result_shortened", "tool_group_dropped"}


def test_message_by_message_is_a_choice_before_turns_leave() -> None:
    history = History()
    policy = replace(_NO_SUMMARIES, prune_unit="message")
    decision = plan(_shared(chat(history, 30, assistant_tokens=300), history.turn(), policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert {kind for kind, _ in _actions(decision)} == {"assistant_dropped"}
    turns = chat(history, 30, user_tokens=500, assistant_tokens=20)
    decision = plan(_shared(turns, history.turn(), policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert "history_drop" in {kind for kind, _ in _actions(decision)}


# The figures


def test_the_logs_kinds_and_targets_are_the_contracts() -> None:
    history = History()
    turns = chat(history, 20, assistant_tokens=300)
    summary, pins = _summary(history, 4000), _pins((9000, 0.9), (400, 0.1))
    decision = plan(_shared(turns, history.turn(), summary=summary, pins=pins, policy=_NO_SUMMARIES), estimate)
    assert isinstance(decision, Ready)
    rows = [action.public() for action in in_ranges(decision.accounts.actions)]
    assert {row["kind"] for row in rows} == {"pinned_trim", "summary_shortened", "history_drop"}
    assert {row["target"].partition(":")[0] for row in rows} == {"pin-0", "pin-1", "summary", "conversation_history"}
    assert all(row["tokens_removed_est"] > 0 for row in rows)
    removed = sum(row["tokens_removed_est"] for row in rows)
    assert decision.accounts.wire_before - removed == decision.prompt.wire_tokens


def test_a_smaller_window_that_a_provider_names_is_shared_out_anew() -> None:
    snapshot = _shared((), History().turn(user_tokens=200), pins=_pins((9000, 1.0)))
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    budget = react(0, StatedOverflow(6000, 8000), ready.window, output_tokens=600)
    assert budget is not None
    assert budget.output_reserve == (6000 - 1024 - snapshot.budget.fixed_tokens) // 10
    again = plan(
        replace(snapshot, budget=budget, log=ready.window.log.without_stages()),
        estimate,
        may_summarize=False,
    )
    assert isinstance(again, Ready)
    assert again.prompt.wire_tokens < ready.prompt.wire_tokens
