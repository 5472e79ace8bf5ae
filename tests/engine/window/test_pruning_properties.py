"""What every prune promises: what stays, what leaves, and in which order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from app.engine.summary.summarizer_prompt import anchors_of
from app.engine.window.prompt import pin_text
from app.engine.window.snapshot import Removal, Snapshot
from app.engine.window.window import lay_out
from tests.engine.histories import estimate
from tests.engine.readings import labels_of, never_dropped, protected_turns, ready_of, sendable, sent_ids
from tests.engine.strategies import guarded_policies, snapshots
from tests.engine.turn_stand_in import decide

_STEPS = {"tool_result_shortened": 0, "assistant_shortened": 0, "media_marked": 1}
"""In the order a prune takes them; dropping comes after all."""
_DROPPING = {"tool_group_dropped", "assistant_dropped"}


@given(snapshots(guarded_policies()))
def test_nothing_that_may_never_be_dropped_is_missing(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    ready = ready_of(taken)
    sent = ready.prompt.messages()
    systems = [message["content"] for message in sent if message["role"] == "system"]
    for _, text in snapshot.layers:
        assert text in systems
    for pin in snapshot.pins:
        assert pin_text(pin) in systems
    assert snapshot.goal is None or snapshot.goal in systems
    present = sent_ids(ready.prompt)
    for kept in never_dropped(taken.snapshot):
        assert kept.id in present


@given(snapshots(guarded_policies()))
def test_what_is_cited_by_facts_decisions_and_questions_stays(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    ready = ready_of(taken)
    anchors = anchors_of(taken.snapshot.summary)
    present = sent_ids(ready.prompt)
    for message in sendable(taken.snapshot.past.turns):
        assert message.id not in anchors or message.id in present


@given(snapshots(guarded_policies()))
def test_a_prune_enters_protected_turns_only_for_a_prompt_over_its_budget(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    accounts = taken.decision.accounts
    protected = labels_of(protected_turns(taken.snapshot))
    # The newest results of an open turn are shortened rather than refused, whatever the policy shields (decision 8).
    pruned = [action for action in accounts.actions if action.reason != "newest_result_too_large"]
    touched = [action for action in pruned if action.target in protected]
    if not snapshot.policy.prune_protected or accounts.tokens_after_summary <= snapshot.budget.input_budget:
        assert touched == []
    older = [action.reason for action in pruned if action.kind not in {"summary_folded", "summary_shortened"}]
    assert older == sorted(older, key=("prune_threshold", "over_budget").index)
    assert all(action.reason == "over_budget" for action in touched)


@given(snapshots(guarded_policies()))
def test_a_prune_takes_the_oldest_first_and_shortens_before_it_drops(snapshot: Snapshot) -> None:
    """Without blocks: with them the prunes of earlier calls come first, each with its own shortening and dropping."""
    taken = decide(replace(snapshot, policy=replace(snapshot.policy, prune_block_share=0.0)))
    seqs = {
        f"message:{message.id}": message.seq
        for turn in (*snapshot.past.turns, snapshot.current)
        for message in turn.messages
    }
    for reason in ("prune_threshold", "over_budget"):
        actions = [
            action for action in taken.decision.accounts.actions if action.reason == reason and action.target in seqs
        ]
        steps = [_step(action) for action in actions]
        assert steps == sorted(steps)
        for step in set(steps):
            order = [seqs[action.target] for action in actions if _step(action) == step]
            assert order == sorted(order)


@given(snapshots(guarded_policies()))
def test_a_prune_leaves_no_older_candidate_behind_and_stops_when_it_may(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    accounts = taken.decision.accounts
    dropped = {action.target for action in accounts.actions if action.kind in _DROPPING}
    if not accounts.prune_triggered:
        return
    window = lay_out(taken.snapshot, estimate)
    protected = labels_of(protected_turns(taken.snapshot))
    for reason in ("prune_threshold", "over_budget"):
        of_reason = [a.target for a in accounts.actions if a.reason == reason and a.kind in _DROPPING]
        if not of_reason:
            continue
        candidates = [
            f"message:{piece.stored_messages[0].id}"
            for piece in window.pieces
            if window.may_drop(piece) and (reason == "over_budget" or piece.items[0].label not in protected)
        ]
        # What an earlier stage dropped is gone by then; of the rest the oldest went, without a gap.
        gone_before = dropped - set(of_reason) if reason == "over_budget" else set[str]()
        left = [target for target in candidates if target not in gone_before]
        assert of_reason == left[: len(of_reason)]


@given(snapshots(guarded_policies()))
def test_a_message_is_shortened_at_most_once_and_marked_at_most_once_in_a_prompt(snapshot: Snapshot) -> None:
    actions = decide(snapshot).decision.accounts.actions
    for kind in _STEPS:
        touched = [action.target for action in actions if action.kind == kind]
        assert len(touched) == len(set(touched))
        assert all(action.tokens_removed > 0 for action in actions if action.kind == kind)


def _step(action: Removal) -> int:
    return _STEPS.get(action.kind, len(_STEPS))
