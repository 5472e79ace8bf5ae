"""A summary made ahead is what the next turn would have made before its call, or it is not made."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import MessageId, TurnStatus
from app.engine.window.plan import SummaryDue, plan
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import fold_after_turn, fold_behind_answer, may_fold_behind_answer
from app.engine.window.window import lay_out
from tests.engine.histories import History, chat, estimate, snapshot_of
from tests.engine.strategies import policies, snapshots


def _behind(snapshot: Snapshot, reply_tokens: int) -> Snapshot:
    """The session's snapshot once the running turn has completed, with no turn running."""
    answer = replace(
        History().turn(("assistant", reply_tokens, 1)).messages[-1],
        id=MessageId(UUID(int=2**99)),
        turn_id=snapshot.current.id,
        seq=max((message.seq for message in snapshot.current.messages), default=0) + 1,
    )
    messages = (*snapshot.current.messages, answer)
    done = replace(snapshot.current, status=TurnStatus.COMPLETED, unresolved=False, messages=messages)
    nobody = replace(snapshot.current, seq=snapshot.current.seq + 1, messages=())
    behind = replace(
        snapshot,
        past=snapshot.past.extended([done]),
        current=nobody,
        completed_since_summary=snapshot.completed_since_summary + 1,
        log=None,
    )
    return with_shared_budget(behind, estimate)


def _with_message(behind: Snapshot, tokens: int) -> Snapshot:
    """The next turn's snapshot, of a message of so many tokens."""
    message = replace(behind.past.turns[-1].messages[-1], role="user", content="", tokens=tokens)
    message = replace(message, seq=message.seq + 1)
    current = replace(behind.current, messages=(message,))
    return with_shared_budget(replace(behind, current=current), estimate)


@given(snapshots(policies(summarizes=True), long=True), st.integers(1, 800))
def test_a_summary_made_ahead_folds_the_turns_that_the_next_turn_would_fold(
    snapshot: Snapshot, reply_tokens: int
) -> None:
    behind = _behind(with_shared_budget(snapshot, estimate), reply_tokens)
    fold = fold_behind_answer(behind, estimate)
    if fold is None or fold_after_turn(behind, estimate) is not None:
        return
    assert snapshot.policy.summarizes_ahead
    past = behind.past
    average = -(-past.wire_tokens() // past.turn_count)
    due = plan(_with_message(behind, average), estimate)
    assert isinstance(due, SummaryDue)
    assert due.fold == fold


@given(snapshots(policies(summarizes=True), long=True), st.integers(1, 800))
def test_with_the_setting_off_nothing_is_made_ahead(snapshot: Snapshot, reply_tokens: int) -> None:
    snapshot = replace(snapshot, policy=replace(snapshot.policy, summarize_ahead=False))
    behind = _behind(with_shared_budget(snapshot, estimate), reply_tokens)
    assert fold_behind_answer(behind, estimate) == fold_after_turn(behind, estimate)


@given(snapshots(policies(summarizes=True), long=True), st.integers(1, 800))
def test_no_fold_is_found_when_the_quick_token_check_rules_it_out(snapshot: Snapshot, reply_tokens: int) -> None:
    snapshot = with_shared_budget(snapshot, estimate)
    input_tokens = lay_out(snapshot, estimate).input_tokens
    if not may_fold_behind_answer(snapshot, input_tokens, reply_tokens):
        assert fold_behind_answer(_behind(snapshot, reply_tokens), estimate) is None


@pytest.mark.parametrize(("completed", "made"), [(6, False), (7, False), (8, True)])
def test_by_the_turn_count_it_is_made_behind_the_eighth_turn(completed: int, made: bool) -> None:
    history = History()
    turns = chat(history, completed, assistant_tokens=60)
    snapshot = snapshot_of(
        turns, replace(history.turn(), messages=()), input_budget=100_000, completed_since_summary=completed
    )
    fold = fold_behind_answer(snapshot, estimate)
    assert (fold is not None) == made
    if fold is not None:
        assert (fold.reason, [turn.seq for turn in fold.turns]) == ("turn_count", [1, 2, 3, 4])
