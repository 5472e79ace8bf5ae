"""What every fold promises: whole older turns, a smaller prompt, and no summary paid for in vain."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given

from app.engine.messages.turns import wire_tokens_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import lay_out
from tests.engine.histories import estimate
from tests.engine.readings import least_of, protected_turns
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import decide


@given(snapshots(policies(summarizes=True, allocation=None), long=True))
def test_a_fold_takes_whole_older_turns_and_never_a_protected_one(snapshot: Snapshot) -> None:
    first = plan(snapshot, estimate)
    assume(isinstance(first, SummaryDue))
    assert isinstance(first, SummaryDue)
    fold = first.fold
    assert (*fold.turns, *fold.protected) == snapshot.past.turns
    protected = protected_turns(snapshot)
    assert not {turn.id for turn in fold.turns} & {turn.id for turn in protected}
    assert fold.folded_tokens == wire_tokens_of(fold.turns) + fold.previous_tokens
    assert fold.previous is snapshot.summary
    assert 0 < fold.cap_tokens < fold.folded_tokens


@given(snapshots(policies(summarizes=True), long=True))
def test_a_summary_makes_the_prompt_smaller_and_is_within_its_cap(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    assume(taken.summarized)
    assert taken.fold is not None
    block = lay_out(taken.snapshot, estimate).summary
    assert block is not None
    assert block.tokens <= taken.fold.cap_tokens
    assert taken.decision.accounts.tokens_after_summary < taken.decision.accounts.tokens_before


@given(snapshots(policies(summarizes=True), long=True))
def test_a_summary_is_never_due_again_in_the_same_turn(snapshot: Snapshot) -> None:
    first = plan(snapshot, estimate)
    assume(isinstance(first, SummaryDue))
    assert isinstance(first, SummaryDue)
    # Not when the summary failed, and not when it was made (`decide` raises otherwise).
    assert isinstance(plan(first.snapshot, estimate, may_summarize=False), Ready | Refused)
    decide(snapshot)


@given(snapshots(policies(summarizes=True), long=True))
def test_a_turn_is_not_refused_for_the_summary_that_was_paid_for(snapshot: Snapshot) -> None:
    # A summary that keeps citing long protected messages keeps them in; without one nothing is cited.
    taken = decide(replace(snapshot, summary=None))
    assert isinstance(taken.decision, Ready) or not taken.summarized


@given(snapshots(policies()))
def test_no_summary_is_due_where_what_may_never_leave_is_alone_over_the_budget(snapshot: Snapshot) -> None:
    alone = least_of(snapshot).input_tokens
    decision = plan(snapshot, estimate)
    if snapshot.budget.input_budget <= 0 or alone > snapshot.budget.input_budget:
        assert not isinstance(decision, SummaryDue)
        assert not decision.summary_worthless
