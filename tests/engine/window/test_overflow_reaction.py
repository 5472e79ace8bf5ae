"""When a provider says that the prompt is too long: a smaller budget, at most twice, and a plan that fits it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Literal

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from app.domain.errors import StatedOverflow
from app.domain.types import MessageId, Turn, TurnStatus
from app.engine.policy.budget import Budget, budget_for
from app.engine.policy.policy import Allocation
from app.engine.window.plan import Ready, Refused, assert_tool_pairing, plan
from app.engine.window.prompt import pin_text
from app.engine.window.provider_overflow import MAX_REACTIONS, learned_limit, react
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Window, lay_out
from tests.engine.histories import GUARDED, History, chat, estimate, input_tokens_of, snapshot_of
from tests.engine.pictures import image, png
from tests.engine.readings import items_of, ready_of, sent_ids
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import decide

_tokens = st.one_of(st.none(), st.integers(-5, 300_000), st.integers(1, 3000))
_stated = st.builds(StatedOverflow, _tokens, _tokens, _tokens)


def _react(sent: Window, stated: StatedOverflow, *, so_far: int = 0, output_tokens: int = 256) -> Budget:
    budget = react(so_far, stated, sent, output_tokens)
    assert budget is not None
    return budget


def _sent(input_budget: int = 9000) -> Window:
    history = History()
    turns, policy = chat(history, 6, assistant_tokens=1000), replace(GUARDED, auto_summarize=False)
    snapshot = snapshot_of(turns, history.turn(), input_budget=input_budget, policy=policy)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    return ready.window


def test_a_stated_overage_shrinks_the_prompt_by_that_much_in_our_tokens_and_a_margin() -> None:
    sent = _sent()
    wire = sent.wire_tokens
    # The provider counts half as much again as we do, and is 1,500 of its tokens over: 1,000 of ours.
    prompt_tokens = wire * 3 // 2
    limit = prompt_tokens + 256 - 1500
    stated = StatedOverflow(limit, prompt_tokens + 256, prompt_tokens)
    budget = _react(sent, stated)
    room = budget.wire_room(overhead_tokens=sent.overhead_tokens)
    assert wire - 1000 - ceil(wire * 0.04) <= room <= wire - 1000 - int(wire * 0.03)


@pytest.mark.parametrize(
    ("stated", "basis"),
    [
        (StatedOverflow(4096, 6090, 6010), "limit"),
        (StatedOverflow(4096, 6090), "limit"),
        (StatedOverflow(4096, None, 6010), "limit"),
        (StatedOverflow(4096, None, 4000), "limit"),
        (StatedOverflow(4096), "limit"),
        (StatedOverflow(), "share"),
        (StatedOverflow(None, 6090, 6010), "share"),
        (StatedOverflow(200_000, 100), "share"),
        (StatedOverflow(0, 6090), "share"),
        (StatedOverflow(-4, 6090), "share"),
        (StatedOverflow(12), "share"),
    ],
)
def test_what_the_provider_stated_decides_what_the_new_budget_is_based_on(stated: StatedOverflow, basis: str) -> None:
    sent = _sent()
    budget = _react(sent, stated)
    room = budget.wire_room(overhead_tokens=sent.overhead_tokens)
    assert (room == int(sent.wire_tokens * 0.7)) == (basis == "share")
    assert (budget == budget_for(4096, "learned", 2048)) == (basis == "limit")
    assert (budget.limit_source == "learned") == (stated.limit_tokens == 4096)


def test_a_window_that_was_learned_is_kept_with_its_own_reserves() -> None:
    sent = _sent()
    budget = _react(sent, StatedOverflow(4096))
    assert budget == budget_for(4096, "learned", 2048)


def test_what_an_account_may_use_in_a_minute_shrinks_the_prompt_and_is_never_learned() -> None:
    sent = _sent()
    limit = sent.wire_tokens - 1000
    stated = StatedOverflow(limit, sent.wire_tokens + 256, limit_is_window=False)
    configured = sent.budget.limit
    assert learned_limit(stated, configured=configured, sent_wire_tokens=sent.wire_tokens, output_tokens=256) is None
    budget = _react(sent, stated)
    assert (budget.limit, budget.limit_source) == (sent.budget.limit, "test")
    assert budget.wire_room(overhead_tokens=sent.overhead_tokens) <= sent.wire_tokens - 1256


def test_the_second_reaction_is_more_careful_and_there_is_no_third() -> None:
    sent = _sent()
    stated = StatedOverflow(sent.budget.limit, sent.budget.limit + 500)
    first, second = (_react(sent, stated, so_far=so_far).input_budget for so_far in (0, 1))
    assert second < first
    third = react(MAX_REACTIONS, stated, sent, output_tokens=9)
    assert third is None


@pytest.mark.parametrize(
    ("stated", "configured", "sent_wire_tokens", "learned"),
    [
        (StatedOverflow(4096, 6090), 8192, 5000, 4096),
        (StatedOverflow(4096), 8192, 5000, 4096),
        (StatedOverflow(4096, None, 6010), 8192, 5000, 4096),
        (StatedOverflow(8192, 9000), 8192, 8000, None),
        (StatedOverflow(131_072, 140_000), 8192, 5000, None),
        (StatedOverflow(4096, 100), 8192, 5000, None),
        (StatedOverflow(100_000), 128_000, 900, None),
        (StatedOverflow(512, 6090), 8192, 5000, None),
        (StatedOverflow(-1), 8192, 5000, None),
        (StatedOverflow(None, 6090), 8192, 5000, None),
        (StatedOverflow(4096), 8192, 3900, 4096),
        (StatedOverflow(4096), 8192, 3800, None),
        (StatedOverflow(4096, None, 3900), 8192, 3900, 4096),
        (StatedOverflow(4096, None, 20_000), 8192, 5000, None),
        (StatedOverflow(4096, 6090), 8192, 700, None),
        (StatedOverflow(4096, 6090, limit_is_window=False), 8192, 5000, None),
        (StatedOverflow(4096, 6090), 131_072, 5000, 4096),
        (StatedOverflow(4095, 6090), 131_072, 5000, None),
    ],
)
def test_a_window_is_learned_only_from_a_limit_that_can_be_one(
    stated: StatedOverflow, configured: int, sent_wire_tokens: int, learned: int | None
) -> None:
    found = learned_limit(stated, configured=configured, sent_wire_tokens=sent_wire_tokens, output_tokens=256)
    assert found == learned


@given(snapshots(policies()), _stated, st.integers(0, MAX_REACTIONS - 1), st.integers(1, 2048))
def test_the_next_prompt_is_smaller_fits_and_keeps_what_must_survive(
    snapshot: Snapshot, stated: StatedOverflow, so_far: int, output_tokens: int
) -> None:
    taken = decide(snapshot)
    ready = ready_of(taken)
    budget = _react(ready.window, stated, so_far=so_far, output_tokens=output_tokens)
    again = ready.window.after_overflow(budget)
    decision = plan(again, estimate, may_summarize=False)
    sent = decision.prompt.messages()
    assert_tool_pairing(sent)
    systems = [message["content"] for message in sent if message["role"] == "system"]
    assert all(text in systems for _, text in snapshot.layers)
    assert snapshot.policy.allocation is not None or all(pin_text(pin) in systems for pin in snapshot.pins)
    assert snapshot.goal is None or snapshot.goal in systems
    user = next(item for item in items_of(decision.prompt) if item.region == "user")
    assert user.as_sent()["content"] == snapshot.current.messages[0].content
    assert decision.accounts.summary_triggered == taken.summarized
    removed = sum(action.tokens_removed for action in decision.accounts.actions)
    assert decision.accounts.wire_before - removed == decision.prompt.wire_tokens
    if isinstance(decision, Ready):
        assert decision.prompt.wire_tokens < ready.prompt.wire_tokens
        assert input_tokens_of(again, decision.prompt) <= budget.input_budget
    else:
        assert _past_ids(decision, taken.snapshot.past.turns) == set()


@given(snapshots(policies(allocation=Allocation())), st.sampled_from(("on", "auto")), st.sampled_from((0.4, 0.7, 0.9)))
def test_a_retry_with_shares_or_the_look_back_tool_stays_within_the_budget_of_the_rejection(
    snapshot: Snapshot, look_back: Literal["on", "auto"], share: float
) -> None:
    policy = replace(snapshot.policy, look_back=look_back)
    taken = decide(with_shared_budget(replace(snapshot, policy=policy, may_look_back=True), estimate))
    sent = ready_of(taken).window
    budget = replace(sent.budget, input_budget=int(sent.input_tokens * share))
    again = plan(sent.after_overflow(budget), estimate, may_summarize=False)
    assert again.window.budget.input_budget <= budget.input_budget
    assert len(again.prompt.tools) <= len(sent.snapshot.tools)


@given(snapshots(policies()), st.floats(0, 1))
def test_in_an_emergency_whole_turns_leave_oldest_first_and_only_when_nothing_may_be_pruned(
    snapshot: Snapshot, share: float
) -> None:
    taken = decide(snapshot)
    unshielded = replace(taken.snapshot, policy=replace(snapshot.policy, prune_protected=True))
    window = lay_out(unshielded, estimate)
    # Between what is left with no past at all, and what a prune can reach without dropping whole turns.
    staying = [piece for piece in window.pieces if not window.may_drop(piece)]
    running = [piece for piece in staying if piece.stored_messages[0].turn_id == snapshot.current.id]
    least, most = (window.with_pieces(pieces).input_tokens for pieces in (running, staying))
    input_budget = max(1, int(least + share * (most - least)))
    tight = taken.decision.window.after_overflow(replace(taken.snapshot.budget, input_budget=input_budget))
    after = plan(tight, estimate, may_summarize=False)
    gone = [action.target for action in after.accounts.actions if action.kind == "emergency_drop"]
    order = [f"turn:{turn.id}" for turn in taken.snapshot.past.turns]
    assert gone == [target for target in order if target in gone]
    left = [f"turn:{turn.id}" for turn in taken.snapshot.past.turns if _past_ids(after, (turn,))]
    assert all(order.index(first) < order.index(other) for first in gone for other in left)
    event(f"whole turns left: {bool(gone)}")
    if not gone:
        return
    droppable = {message.id for piece in window.pieces if window.may_drop(piece) for message in piece.stored_messages}
    assert not sent_ids(after.prompt) & droppable


def test_media_and_tool_pairs_of_the_running_turn_survive_the_emergency() -> None:
    history = History()
    picture = image(png(640, 480))
    past = tuple(history.turn(("assistant", 300, 1), user_tokens=500) for _ in range(4))
    current = history.turn(("tool_group", 50, 2), status=TurnStatus.RUNNING, media=(picture,))
    snapshot = snapshot_of(past, current, input_budget=6000, policy=replace(GUARDED, protected_share=None))
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    smaller = ready.window.after_overflow(replace(snapshot.budget, input_budget=2800))
    again = plan(smaller, estimate, may_summarize=False)
    assert isinstance(again, Ready)
    kinds = [action.kind for action in again.accounts.actions]
    assert kinds == ["assistant_dropped"] * 4 + ["emergency_drop"] * 2
    sent = again.prompt.messages()
    assert [message["role"] for message in sent] == ["system", "user", "user", "user", "assistant", "tool", "tool"]
    assert sent[3]["content"] == current.messages[0].content


def test_a_running_turn_that_is_too_large_alone_is_refused_after_the_past_has_left() -> None:
    history = History()
    snapshot = snapshot_of(chat(history, 3), history.turn(user_tokens=3000), input_budget=4000)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    smaller = ready.window.after_overflow(replace(snapshot.budget, input_budget=2000))
    assert isinstance(plan(smaller, estimate, may_summarize=False), Refused)


def _past_ids(decision: Ready | Refused, turns: Iterable[Turn]) -> set[MessageId]:
    return sent_ids(decision.prompt) & {message.id for turn in turns for message in turn.messages}


def test_an_overage_is_converted_by_a_plausible_ratio_at_most() -> None:
    sent = _sent()
    # A count ten times ours would make the overage of 3,000 tokens 300 of ours: it is taken for 1,000.
    prompt_tokens = sent.wire_tokens * 10
    budget = _react(sent, StatedOverflow(prompt_tokens + 256 - 3000, prompt_tokens + 256, prompt_tokens))
    assert budget.wire_room(overhead_tokens=sent.overhead_tokens) <= sent.wire_tokens - 1000
