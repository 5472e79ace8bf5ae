"""What a window promises as a value: sums that run along, and a log that accounts for every token, stage by stage."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.engine.window.plan import Ready, SummaryDue, plan
from app.engine.window.snapshot import Snapshot
from app.engine.window.stages import STAGES
from app.engine.window.window import Window, lay_out
from tests.engine.histories import estimate, input_tokens_of
from tests.engine.readings import items_of
from tests.engine.strategies import policies, snapshots


def _is_consistent(window: Window) -> None:
    prompt = window.prompt
    assert window.tokens == sum(item.tokens for item in items_of(prompt))
    assert window.messages == len(items_of(prompt))
    assert window.history_tokens == prompt.regions()["history"]
    assert window.wire_tokens == prompt.wire_tokens
    assert window.input_tokens == input_tokens_of(window.snapshot, prompt)
    removed = sum(action.tokens_removed for action in window.log.actions)
    beside = sum(item.wire_tokens for item in window.beside)
    assert window.log.wire_before - removed + beside == window.wire_tokens


@given(snapshots(policies()), st.booleans())
def test_after_every_stage_the_sums_are_those_of_the_prompt_and_the_log_says_what_left(
    snapshot: Snapshot, overflowed: bool
) -> None:
    window = lay_out(replace(snapshot, overflowed=overflowed), estimate)
    _is_consistent(window)
    for stage, when in STAGES:
        if when(window):
            window = stage(window)
            _is_consistent(window)


@given(snapshots(policies()))
def test_a_stage_that_prunes_leaves_the_running_turns_words_and_the_order_of_what_stays(snapshot: Snapshot) -> None:
    window = lay_out(replace(snapshot, overflowed=True), estimate)
    for stage, when in STAGES:
        if not when(window):
            continue
        before = [piece.seq for piece in window.pieces]
        window = stage(window)
        left = {piece.seq for piece in window.pieces}
        assert [piece.seq for piece in window.pieces] == [seq for seq in before if seq in left]
        assert window.current[0].items[0].message == snapshot.current.messages[0]
        assert all(piece.state == "running" for piece in window.current)
        assert not any(piece.state == "running" for piece in window.past)


@given(snapshots(policies(show_time=False)), st.floats(0.2, 1))
def test_a_plan_that_goes_on_from_another_keeps_its_figures_before(snapshot: Snapshot, share: float) -> None:
    first = plan(snapshot, estimate)
    log = lay_out(snapshot, estimate).log
    if isinstance(first, SummaryDue):
        assert first.snapshot.log == log
        first = plan(first.snapshot, estimate, may_summarize=False)
    if not isinstance(first, Ready):
        return
    smaller = replace(snapshot.budget, input_budget=int(share * snapshot.budget.input_budget))
    again = plan(first.window.after_overflow(smaller), estimate)
    assert not isinstance(again, SummaryDue)
    assert again.accounts.wire_before == log.wire_before
    assert again.accounts.tokens_before == log.tokens_before
