"""When a summary is due, when a prune is, and when neither is worth it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from app.domain.types import SummaryBody, SummaryId, SummaryItem, Turn, TurnId, TurnStatus
from app.engine.policy.budget import budget_for
from app.engine.policy.policy import MIN_SUMMARY_TOKENS, ContextPolicy
from app.engine.summary.summarizer_prompt import anchors_of, split_for_summarizer, summarizer_prompt, summary_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan, with_summary
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import fold_after_turn, fold_on_request, trigger_tokens
from tests.engine.histories import (
    GUARDED,
    History,
    chat,
    estimate,
    input_tokens_before,
    snapshot_of,
    text_of,
)
from tests.engine.readings import items_of
from tests.engine.turn_stand_in import decide

_COUNT_OFF = replace(GUARDED, mandatory_summary_turn=1000)


def _at(share_percent: int, policy: ContextPolicy, *, off_by: int = 0) -> Snapshot:
    """Six turns that take exactly so many percent of the budget, give or take `off_by` tokens."""
    history = History()
    turns, current = chat(history, 6, assistant_tokens=300), history.turn()
    bare = input_tokens_before(snapshot_of(turns, current, input_budget=1, layers=(("system:global", ""),)))
    input_budget = 4000
    padding = input_budget * share_percent // 100 + off_by - bare
    layers = (("system:global", text_of(padding)),)
    return snapshot_of(turns, current, input_budget=input_budget, policy=policy, layers=layers)


@pytest.mark.parametrize(("off_by", "due"), [(-1, False), (0, True), (1, True)])
def test_a_summary_is_due_from_exactly_seventy_percent_of_the_budget(off_by: int, due: bool) -> None:
    snapshot = _at(70, replace(_COUNT_OFF, protected_share=None), off_by=off_by)
    assert input_tokens_before(snapshot) == 2800 + off_by
    decision = plan(snapshot, estimate)
    assert isinstance(decision, SummaryDue) == due
    if isinstance(decision, SummaryDue):
        assert decision.fold.reason == "threshold"
        assert [turn.seq for turn in decision.fold.turns] == [1, 2]
        assert [turn.seq for turn in decision.fold.protected] == [3, 4, 5, 6]


@pytest.mark.parametrize(("off_by", "due"), [(-1, False), (0, True)])
def test_a_summary_is_due_at_a_number_of_tokens_in_a_window_of_any_size(off_by: int, due: bool) -> None:
    policy = replace(_COUNT_OFF, summary_trigger_ratio=None, summary_trigger_tokens=2000)
    snapshot = _at(50, policy, off_by=off_by)
    assert input_tokens_before(snapshot) == 2000 + off_by
    wide = replace(snapshot, budget=replace(snapshot.budget, input_budget=1_000_000))
    for each in (snapshot, wide):
        decision = plan(each, estimate)
        assert isinstance(decision, SummaryDue) == due
        if isinstance(decision, SummaryDue):
            # A quarter of the trigger, not of the window, is protected.
            assert (decision.fold.reason, [turn.seq for turn in decision.fold.protected]) == ("threshold", [6])
            assert decision.fold.cap_tokens <= 300


@pytest.mark.parametrize(("completed", "due"), [(0, False), (7, False), (8, True), (9, True)])
def test_a_summary_is_due_at_eight_completed_turns_and_not_at_seven(completed: int, due: bool) -> None:
    history = History()
    turns = chat(history, 9, assistant_tokens=60)
    snapshot = snapshot_of(turns, history.turn(), input_budget=100_000, completed_since_summary=completed)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, SummaryDue) == due
    if isinstance(decision, SummaryDue):
        assert decision.fold.reason == "turn_count"
        assert [turn.seq for turn in decision.fold.turns] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("turns", "protected_turns", "folded"), [(3, 1, None), (4, 1, [1, 2, 3]), (4, 2, [1, 2]), (4, 3, None)]
)
def test_a_summary_is_due_at_a_number_of_messages_if_it_replaces_half_of_them(
    turns: int, protected_turns: int, folded: list[int] | None
) -> None:
    history = History()
    policy = replace(
        _COUNT_OFF,
        summary_trigger_ratio=None,
        max_messages=8,
        protected_turns=protected_turns,
        protected_share=None,
        summarize_when="post_turn",
    )
    past = chat(history, turns, assistant_tokens=300)
    nothing_said = Turn(TurnId(UUID(int=0)), turns + 1, TurnStatus.RUNNING, unresolved=True, messages=())
    fold = fold_after_turn(snapshot_of(past, nothing_said, input_budget=100_000, policy=policy), estimate)
    assert (fold and [turn.seq for turn in fold.turns]) == folded
    assert fold is None or fold.reason == "message_count"


@pytest.mark.parametrize(("completed", "due"), [(7, False), (8, True), (9, True)])
def test_a_summary_behind_an_answer_is_due_at_eight_completed_turns_too(completed: int, due: bool) -> None:
    history = History()
    past, policy = chat(history, 9, assistant_tokens=60), replace(GUARDED, summarize_when="post_turn")
    nothing_said = Turn(TurnId(UUID(int=0)), 10, TurnStatus.RUNNING, unresolved=True, messages=())
    snapshot = snapshot_of(past, nothing_said, input_budget=100_000, policy=policy, completed_since_summary=completed)
    fold = fold_after_turn(snapshot, estimate)
    assert (fold and fold.reason) == ("turn_count" if due else None)


def test_the_lowest_of_a_policys_triggers_is_the_one_that_it_summarizes_at() -> None:
    policy = replace(GUARDED, summary_trigger_ratio=0.7, usage_threshold=0.5, prune_trigger_ratio=0.9)
    changes: list[tuple[dict[str, Any], int | None]] = [
        ({}, 2800),
        ({"usage_threshold": 0.35}, 2450),
        ({"summary_trigger_ratio": None}, 3500),
        ({"summary_trigger_ratio": None, "usage_threshold": None}, 3600),
        ({"summary_trigger_ratio": None, "usage_threshold": 0.8}, 3600),
        ({"summary_trigger_tokens": 1000}, 1000),
        ({"summarize_when": "never"}, None),
    ]
    for change, tokens in changes:
        assert trigger_tokens(replace(policy, **change), 7000, 4000) == tokens, change


@pytest.mark.parametrize(("off_by", "pruned"), [(-1, False), (0, True), (1, True)])
def test_a_prune_starts_at_exactly_ninety_percent_and_ends_below(off_by: int, pruned: bool) -> None:
    decision = plan(_at(90, replace(_COUNT_OFF, auto_summarize=False), off_by=off_by), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.tokens_after_summary == 3600 + off_by
    assert decision.accounts.prune_triggered == pruned
    assert decision.window.input_tokens < 3600


def test_a_summary_due_by_the_count_that_would_shrink_nothing_is_worthless_and_the_turn_goes_on() -> None:
    history = History()
    snapshot = snapshot_of(chat(history, 8, user_tokens=2, assistant_tokens=2), history.turn(), input_budget=10_000)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    assert decision.summary_worthless
    assert decision.accounts.actions == ()


def test_the_threshold_alone_asks_for_no_summary_that_would_reclaim_next_to_nothing() -> None:
    snapshot = _with_little_to_fold(input_budget=5000)
    assert 3500 <= input_tokens_before(snapshot) < 4500
    assert isinstance(plan(snapshot, estimate), Ready)


def test_a_summary_comes_before_a_prune_even_if_it_reclaims_next_to_nothing() -> None:
    assert isinstance(plan(_with_little_to_fold(input_budget=4000), estimate), SummaryDue)


def _with_little_to_fold(*, input_budget: int) -> Snapshot:
    history = History()
    old, new = chat(history, 1, assistant_tokens=100), chat(history, 4, assistant_tokens=800)
    summary = history.summary(SummaryBody(text_of(400)))
    policy = replace(GUARDED, protected_share=None)
    return snapshot_of((*old, *new), history.turn(), input_budget=input_budget, policy=policy, summary=summary)


@pytest.mark.parametrize("policy", [replace(GUARDED, auto_summarize=False), replace(GUARDED, summarize_when="never")])
def test_a_policy_that_makes_no_summaries_gets_none(policy: ContextPolicy) -> None:
    history = History()
    turns = chat(history, 20, assistant_tokens=400)
    decision = plan(snapshot_of(turns, history.turn(), input_budget=4000, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.prune_triggered


_SMALLEST_SUMMARY_TOKENS = 96


@pytest.mark.parametrize(
    ("room_tokens", "due"),
    [(-2000, False), (-5, False), (0, False), (95, False), (96, True), (200, True), (2000, True)],
)
def test_no_summary_is_made_when_undroppable_content_leaves_no_room_for_it(room_tokens: int, due: bool) -> None:
    history = History()
    turns = chat(history, 10, user_tokens=50, assistant_tokens=300)
    current = history.turn(user_tokens=6000)
    layer, block_framing = 3, 4  # users' words in the protected turns may be summarized too, before a refusal
    snapshot = snapshot_of(turns, current, input_budget=6000 + layer + block_framing + room_tokens)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, SummaryDue if due else Refused)
    if isinstance(decision, SummaryDue):
        assert decision.fold.cap_tokens == min(room_tokens, int(0.15 * snapshot.budget.input_budget))
        assert isinstance(decide(snapshot).decision, Ready)


def test_protected_turns_that_a_policy_shields_are_weighed_before_a_summary_is_paid_for() -> None:
    history = History()
    turns = (*chat(history, 6, assistant_tokens=300), *chat(history, 4, assistant_tokens=600))
    protected = replace(GUARDED, protected_share=None)
    snapshot = snapshot_of(turns, history.turn(), input_budget=2000, policy=protected)
    assert isinstance(plan(snapshot, estimate), SummaryDue)
    shielded = replace(snapshot, policy=replace(protected, prune_protected=False))
    assert isinstance(plan(shielded, estimate), Refused)


@pytest.mark.parametrize("limit_is", ["nought", "below"])
def test_a_window_without_an_input_budget_refuses_every_turn(limit_is: str) -> None:
    history = History()
    snapshot = snapshot_of((), history.turn(user_tokens=1), input_budget=0 if limit_is == "nought" else -1023)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Refused)
    assert decision.overflow.recovery == {"shorten": [], "or": "use a model with a larger window"}


def test_only_facts_decisions_and_questions_anchor_messages_not_action_items() -> None:
    history = History()
    turns = chat(history, 2, assistant_tokens=500)
    answers = [turn.messages[1] for turn in turns]
    body = SummaryBody(
        "So far.",
        decisions=(SummaryItem("Keep it.", (answers[0].id,)),),
        action_items=(SummaryItem("Do it.", (answers[1].id,)),),
    )
    policy, summary = replace(GUARDED, auto_summarize=False), history.summary(body)
    decision = plan(snapshot_of(turns, history.turn(), input_budget=700, policy=policy, summary=summary), estimate)
    assert isinstance(decision, Ready)
    sent = {item.message.id for item in items_of(decision.prompt) if item.message}
    assert answers[0].id in sent
    assert answers[1].id not in sent


def test_a_window_too_small_for_a_useful_share_gets_the_smallest_summary() -> None:
    """A window of 2,048 tokens has an input budget of 615, of which 15 % are 92: four too few for a summary, without
    which every session in it ended with a refusal."""
    budget = budget_for(2048, "catalogue", GUARDED.max_output_tokens)
    assert (budget.input_budget, GUARDED.summary_max_ratio) == (615, 0.15)
    history = History()
    turns = chat(history, 4, user_tokens=110, assistant_tokens=190)
    decision = plan(snapshot_of(turns, history.turn(), input_budget=budget.input_budget), estimate)
    assert isinstance(decision, SummaryDue)
    assert [turn.seq for turn in decision.fold.turns] == [1, 2, 3]
    assert decision.fold.cap_tokens == MIN_SUMMARY_TOKENS


@pytest.mark.parametrize("prune_protected", [True, False])
def test_a_summary_behind_an_answer_does_not_count_unprotected_turns_as_protected(prune_protected: bool) -> None:
    history = History()
    turns = chat(history, 10, user_tokens=390, assistant_tokens=1)
    policy = replace(GUARDED, protected_turns=0, prune_protected=prune_protected, summarize_when="post_turn")
    nothing_said = Turn(TurnId(UUID(int=0)), 11, TurnStatus.RUNNING, unresolved=True, messages=())
    snapshot = snapshot_of(turns, nothing_said, input_budget=4000, policy=policy)
    for fold in (fold_after_turn(snapshot, estimate), fold_on_request(snapshot, estimate)):
        assert fold is not None
        assert fold.turns == turns
        assert fold.cap_tokens == policy.most_summary_tokens(4000)


def test_a_summary_that_was_paid_for_does_not_refuse_the_turn_by_what_it_cites_of_the_turns_that_stay() -> None:
    history = History()
    turns = chat(history, 6, assistant_tokens=230)

    def decided(user_tokens: int) -> tuple[SummaryDue, Ready | Refused]:
        snapshot = snapshot_of(turns, history.turn(user_tokens=user_tokens), input_budget=1000)
        due = plan(snapshot, estimate, may_summarize=True)
        assert isinstance(due, SummaryDue)
        (chunk,) = split_for_summarizer(due.fold, 10_000, estimate)
        prompt = summarizer_prompt(due.fold, chunk, None, 10_000, estimate)
        item = SummaryItem("It cites all.", tuple(id_ for ids in prompt.known_ids.values() for id_ in ids))
        body = SummaryBody(text_of(40), key_facts=(item,))
        summary = summary_of(SummaryId(UUID(int=2**99)), due.fold, body, "model")
        found = plan(with_summary(due.snapshot, due.fold, summary, estimate), estimate, may_summarize=False)
        return due, found

    tight, fits = decided(700)
    assert isinstance(fits, Ready)
    assert [action.kind for action in fits.accounts.actions if action.kind != "summary_folded"] == ["assistant_dropped"]
    assert not {message.id for message in tight.fold.context} & anchors_of(fits.window.snapshot.summary)
    wide, fits = decided(300)
    assert {message.id for message in wide.fold.context} <= anchors_of(fits.window.snapshot.summary)
