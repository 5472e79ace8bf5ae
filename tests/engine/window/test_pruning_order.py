"""What leaves first, what only when it must, and what never (contract.md, decisions 5, 7 and 8)."""

from __future__ import annotations

from dataclasses import replace

from app.domain.audit import TrimAction
from app.domain.types import TurnStatus
from app.engine.window.plan import Ready, Refused, plan
from tests.engine.histories import GUARDED, History, UnitShape, chat, estimate, snapshot_of
from tests.engine.pictures import image, png
from tests.engine.readings import items_of

_NO_SUMMARY = replace(GUARDED, protected_share=None, auto_summarize=False)


def _groups(rounds: int, tokens: int, *, calls: int = 1) -> list[tuple[UnitShape, int, int]]:
    return [("tool_group", tokens, calls)] * rounds


def _done(decision: object) -> list[tuple[str, str, str]]:
    assert isinstance(decision, Ready | Refused)
    return [(action.kind, action.target, action.reason) for action in decision.accounts.actions]


def test_older_turns_give_before_protected_ones_and_in_each_long_results_are_shortened_before_anything_leaves() -> None:
    history = History()
    old = history.turn(("tool_group", 800, 1), ("assistant", 100, 1))
    newest = history.turn(("tool_group", 800, 1), ("assistant", 100, 1))
    current = history.turn(user_tokens=100)
    policy = replace(_NO_SUMMARY, protected_turns=1)
    old_call, old_result, old_answer = old.messages[1:]
    new_call, new_result, new_answer = newest.messages[1:]
    order = [
        ("tool_result_shortened", f"message:{old_result.id}", "prune_threshold"),
        ("tool_group_dropped", f"message:{old_call.id}", "prune_threshold"),
        ("assistant_dropped", f"message:{old_answer.id}", "prune_threshold"),
        ("tool_result_shortened", f"message:{new_result.id}", "over_budget"),
        ("tool_group_dropped", f"message:{new_call.id}", "over_budget"),
        ("assistant_dropped", f"message:{new_answer.id}", "over_budget"),
    ]
    seen: set[int] = set()
    for input_budget in range(2300, 130, -10):
        done = _done(plan(snapshot_of((old, newest), current, input_budget=input_budget, policy=policy), estimate))
        assert done == order[: len(done)]
        seen.add(len(done))
    assert seen == set(range(7))


def test_between_the_threshold_and_the_budget_protected_turns_are_not_entered() -> None:
    history = History()
    newest = chat(history, 4, assistant_tokens=230)
    decision = plan(snapshot_of(newest, history.turn(), input_budget=1000, policy=_NO_SUMMARY), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.tokens_before >= 900
    assert _done(decision) == []


def test_below_the_budget_the_media_of_the_first_protected_turn_stay() -> None:
    history = History()
    old = history.turn(("assistant", 100, 1))
    newest = history.turn(media=(image(png(1024, 1024)),))
    policy = replace(_NO_SUMMARY, protected_turns=1)
    media_tokens = newest.messages[0].tokens
    snapshot = snapshot_of((old, newest), history.turn(), input_budget=media_tokens + 70, policy=policy)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    assert _done(decision) == [("assistant_dropped", f"message:{old.messages[1].id}", "prune_threshold")]
    assert decision.window.input_tokens >= snapshot.policy.prune_from(media_tokens + 70)


def test_a_policy_that_shields_protected_turns_is_refused_rather_than_pruned() -> None:
    history = History()
    turns = chat(history, 4, assistant_tokens=300)
    snapshot = snapshot_of(turns, history.turn(), input_budget=1000, policy=_NO_SUMMARY)
    assert isinstance(plan(snapshot, estimate), Ready)
    shielded = plan(replace(snapshot, policy=replace(_NO_SUMMARY, prune_protected=False)), estimate)
    assert isinstance(shielded, Refused)
    assert _done(shielded) == []


def test_in_a_long_tool_loop_earlier_groups_leave_whole_and_the_newest_and_the_users_words_stay() -> None:
    history = History()
    current = history.turn(*_groups(5, 250, calls=2), user_tokens=50, status=TurnStatus.RUNNING)
    decision = plan(snapshot_of((), current, input_budget=1300), estimate)
    assert isinstance(decision, Ready)
    sent = [item.message for item in items_of(decision.prompt) if item.message]
    user, *rest = current.messages
    assert sent == [user, *rest[9:]]
    calls = [rest[0], rest[3], rest[6]]
    assert _done(decision) == [("tool_group_dropped", f"message:{call.id}", "over_budget") for call in calls]


def test_in_a_long_tool_loop_earlier_long_results_are_shortened_first_with_a_mark() -> None:
    history = History()
    current = history.turn(*_groups(3, 800), user_tokens=50, status=TurnStatus.RUNNING)
    decision = plan(snapshot_of((), current, input_budget=1500), estimate)
    assert isinstance(decision, Ready)
    results = [message["content"] for message in decision.prompt.messages() if message["role"] == "tool"]
    assert [len(result) == 3200 for result in results] == [False, False, True]
    assert "characters of this tool result left out" in results[0]
    assert {kind for kind, _, _ in _done(decision)} == {"tool_result_shortened"}


def test_a_long_answer_is_dropped_and_not_shortened_even_if_another_follows_it() -> None:
    history = History()
    old = history.turn(("assistant", 800, 1), ("assistant", 10, 1))
    policy = replace(_NO_SUMMARY, protected_turns=0)
    decision = plan(snapshot_of((old,), history.turn(), input_budget=850, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert _done(decision) == [("assistant_dropped", f"message:{old.messages[1].id}", "prune_threshold")]


def test_an_old_failed_turn_has_no_claim_on_its_tool_groups_but_the_latest_one_has() -> None:
    history = History()
    old = history.turn(("tool_group", 250, 1), status=TurnStatus.FAILED)
    latest = history.turn(("tool_group", 250, 1), status=TurnStatus.FAILED)
    policy = replace(_NO_SUMMARY, protected_turns=0)
    decision = plan(snapshot_of((old, latest), history.turn(), input_budget=400, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert _done(decision) == [("tool_group_dropped", f"message:{old.messages[1].id}", "prune_threshold")]


def test_rejected_turns_push_no_real_turn_out_of_the_protected_window() -> None:
    history = History()
    real = chat(history, 4, assistant_tokens=220)
    rejected = tuple(history.turn(user_tokens=5000, status=TurnStatus.REJECTED) for _ in range(4))
    policy = replace(GUARDED, protected_share=None)
    decision = plan(snapshot_of((*real, *rejected), history.turn(), input_budget=1000, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert decision.accounts.tokens_before >= 900
    assert _done(decision) == []


def test_a_trim_action_is_published_under_the_contracts_names() -> None:
    assert TrimAction("assistant_dropped", "message:1", "over_budget", 7).public() == {
        "kind": "assistant_dropped",
        "target": "message:1",
        "reason": "over_budget",
        "tokens_removed_est": 7,
    }
