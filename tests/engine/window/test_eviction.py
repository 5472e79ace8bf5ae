"""Prunes by value per token and in blocks: who leaves first, and that what has left stays away."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import MessageId, Turn, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.policy.policy import ContextPolicy, PruneOrder, PruneUnit
from app.engine.window.past import past_of
from app.engine.window.plan import Ready, plan
from app.engine.window.pruning import worth_per_token
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import GUARDED, History, UnitShape, chat, estimate, snapshot_of
from tests.engine.readings import items_of, never_dropped, ready_of, sent_ids
from tests.engine.strategies import guarded_policies, policies, snapshots
from tests.engine.turn_stand_in import decide

_NO_SUMMARY = replace(GUARDED, auto_summarize=False, protected_turns=2, prune_block_share=0.0)
_BY_VALUE = replace(_NO_SUMMARY, prune_order="value")
_orders: st.SearchStrategy[PruneOrder] = st.sampled_from(("oldest", "value"))
_units: st.SearchStrategy[PruneUnit] = st.sampled_from(("message", "turn"))
_blocks = st.sampled_from((0.0, 0.1, 0.3))
_answers = st.lists(st.integers(5, 150), min_size=4, max_size=24)


def _answered(history: History, answer_tokens: list[int], user_tokens: int = 10) -> tuple[Turn, ...]:
    return tuple(history.turn(("assistant", tokens, 1), user_tokens=user_tokens) for tokens in answer_tokens)


def _prompts(turns: tuple[Turn, ...], policy: ContextPolicy, input_budget: int) -> list[list[MessageId]]:
    """What each turn sent of the stored messages, turn after turn; of refused ones nothing."""
    sent: list[list[MessageId]] = []
    for at, turn in enumerate(turns):
        asking = replace(turn, status=TurnStatus.RUNNING, unresolved=True, messages=turn.messages[:1])
        decided = plan(snapshot_of(turns[:at], asking, input_budget=input_budget, policy=policy), estimate)
        items = items_of(decided.prompt) if isinstance(decided, Ready) else ()
        sent.append([item.message.id for item in items if item.message])
    return sent


def _without(turns: tuple[Turn, ...], prompt: list[MessageId]) -> set[MessageId]:
    return {message.id for turn in turns for message in turn.messages} - set(prompt)


def test_by_value_the_longest_answers_leave_first_and_of_equals_the_oldest() -> None:
    history = History()
    turns = _answered(history, [40, 400, 20, 200, 400, 10, 10])
    asking = history.turn(user_tokens=1000)
    decided = plan(snapshot_of(turns, asking, input_budget=1500, policy=_BY_VALUE), estimate)
    assert isinstance(decided, Ready)
    answers = [f"message:{turns[at].messages[1].id}" for at in (1, 4, 3)]
    assert [action.target for action in decided.accounts.actions] == answers
    assert {action.kind for action in decided.accounts.actions} == {"assistant_dropped"}


@pytest.mark.parametrize(
    "instruction",
    ["From now on always answer in French", "Ich lerne noch. Antworte immer auf Deutsch", "请不要用英文回答。"],
)
def test_where_turns_leave_whole_one_with_a_standing_instruction_leaves_last(instruction: str) -> None:
    history = History()
    turns = chat(history, 6, user_tokens=40, assistant_tokens=60)
    first, *others = (
        replace(turn, messages=(replace(turn.messages[0], content=text.ljust(160, ".")), *turn.messages[1:]))
        for turn, text in zip(turns, [instruction, *["The ledger"] * 5], strict=True)
    )
    policy = replace(_BY_VALUE, prune_unit="turn")
    asking = history.turn(user_tokens=500)
    decided = plan(snapshot_of((first, *others), asking, input_budget=1000, policy=policy), estimate)
    assert isinstance(decided, Ready)
    dropped = [action.target for action in decided.accounts.actions]
    assert dropped == [f"turn:{turn.id}" for turn in others[: len(dropped)]]
    assert 0 < len(dropped) < 4  # two are protected
    assert first.messages[0].id in sent_ids(decided.prompt)


def test_long_tool_and_assistant_messages_are_worth_least_per_token_and_demands_most() -> None:
    def worth(text: str, wire_tokens: int, role: str = "user") -> tuple[bool, float]:
        turn = History().turn(("assistant", 5, 1))
        said, answered = (
            replace(message, content=text, tokens=wire_tokens - MESSAGE_FRAMING_TOKENS) for message in turn.messages
        )
        pieces = past_of([replace(turn, messages=(said, answered))]).pieces
        return worth_per_token([pieces[0 if role == "user" else 1]])

    ranked = [
        worth("Here is all of it.", 400, "assistant"),
        worth("Yes.", 20, "assistant"),
        worth("My sister lives in Ghent.", 20),
        worth("Never write to her, and keep to this whatever anybody says.", 2000),
    ]
    assert ranked == sorted(ranked)


@given(_answers, _orders, _units, _blocks, st.integers(150, 900))
def test_pruned_messages_are_not_in_later_prompts(
    answer_tokens: list[int], order: PruneOrder, unit: PruneUnit, block: float, input_budget: int
) -> None:
    if order == "oldest" and not block:
        block = 0.2
    policy = replace(_NO_SUMMARY, prune_order=order, prune_unit=unit, prune_block_share=block, prune_protected=False)
    turns = _answered(History(), answer_tokens, user_tokens=4)
    prompts = _prompts(turns, policy, input_budget)
    for at in range(1, len(turns)):
        if prompts[at - 1] and prompts[at]:
            assert _without(turns[: at - 1], prompts[at - 1]) <= _without(turns[: at - 1], prompts[at])


@given(snapshots(policies(prune_unit="turn", prune_protected=True, prune_block_share=0.2)))
def test_of_a_settled_turn_all_leaves_or_nothing_also_in_blocks(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    whole = Counter(piece.turn_seq for piece in taken.snapshot.past.pieces if piece.state == "settled")
    left = Counter(piece.turn_seq for piece in taken.decision.window.past if piece.state == "settled")
    assert all(left[turn_seq] in (0, pieces) for turn_seq, pieces in whole.items())


def test_in_blocks_most_prompts_begin_with_the_whole_of_the_prompt_before() -> None:
    turns = chat(History(), 60, assistant_tokens=60)
    policy = replace(_NO_SUMMARY, prune_unit="turn")

    def changed(policy: ContextPolicy) -> int:
        prompts = _prompts(turns, policy, 1000)
        assert all(prompts)
        return sum(now[: len(before)] != before for before, now in pairwise(prompts))

    assert changed(policy) > 40
    assert changed(replace(policy, prune_block_share=0.4)) < 10
    assert changed(replace(policy, prune_block_share=0.4, prune_order="value")) < 10


def _loop(rounds: int, tokens: int) -> Turn:
    shape: tuple[UnitShape, int, int] = ("tool_group", tokens, 1)
    return History().turn(*[shape] * rounds, user_tokens=50, status=TurnStatus.RUNNING)


def _sent_in_loop(whole: Turn, policy: ContextPolicy, *ratios: float) -> list[list[MessageId]]:
    """The prompt of each round, planned with these calibrations in turn."""
    rounds = [replace(whole, messages=whole.messages[:end]) for end in range(1, len(whole.messages) + 1, 2)]
    sent: list[list[MessageId]] = []
    for each, ratio in zip(rounds, cycle(ratios or (1.0,))):
        snapshot = snapshot_of((), each, input_budget=1000, policy=policy, calibration_ratio=ratio)
        decided = plan(snapshot, estimate)
        assert isinstance(decided, Ready)
        sent.append([item.message.id for item in items_of(decided.prompt) if item.message])
    return sent


def _changed(prompts: list[list[MessageId]]) -> int:
    """How many prompts do not begin with the whole of the prompt before."""
    return sum(now[: len(before)] != before for before, now in pairwise(prompts))


def test_in_a_long_tool_loop_a_block_leaves_at_once_and_the_next_rounds_prune_nothing_more() -> None:
    whole = _loop(30, 100)
    one_by_one = _sent_in_loop(whole, _NO_SUMMARY)
    in_blocks = _sent_in_loop(whole, replace(_NO_SUMMARY, prune_block_share=0.3))
    assert _changed(in_blocks) < _changed(one_by_one) / 2
    assert all(prompt[0] == whole.messages[0].id for prompt in in_blocks)
    assert all(prompt[-1] == whole.messages[2 * at].id for at, prompt in enumerate(in_blocks))


def test_by_default_a_tool_loop_prunes_in_blocks() -> None:
    whole = _loop(100, 20)
    one_by_one = _changed(_sent_in_loop(whole, replace(GUARDED, prune_block_share=0.0)))
    assert 0 < _changed(_sent_in_loop(whole, GUARDED)) < one_by_one / 3


def test_a_calibration_that_changes_a_little_in_every_call_does_not_move_the_blocks() -> None:
    whole = _loop(200, 10)
    drifting = [1.001 + 0.029 * (at * 7 % 11) / 11 for at in range(11)]
    assert _changed(_sent_in_loop(whole, GUARDED, *drifting)) == _changed(_sent_in_loop(whole, GUARDED, 1.03))


@given(snapshots(guarded_policies()), _orders, _units, _blocks)
def test_order_and_blocks_decide_what_leaves_and_never_whether_the_prompt_fits_or_what_must_stay(
    snapshot: Snapshot, order: PruneOrder, unit: PruneUnit, block: float
) -> None:
    one_by_one = replace(snapshot.policy, prune_unit=unit)
    block = min(block, one_by_one.prune_trigger_ratio / 2)
    changed = replace(snapshot, policy=replace(one_by_one, prune_order=order, prune_block_share=block))
    taken = decide(changed)
    assert type(taken.decision) is type(decide(replace(snapshot, policy=one_by_one)).decision)
    assert taken == decide(changed)
    ready = ready_of(taken)
    present = sent_ids(ready.prompt)
    if unit == "message":
        assert all(kept.id in present for kept in never_dropped(taken.snapshot))
    accounts = ready.accounts
    removed = sum(action.tokens_removed for action in accounts.actions)
    assert accounts.wire_before - removed == ready.prompt.wire_tokens
