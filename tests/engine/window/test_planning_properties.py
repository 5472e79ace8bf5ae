"""What every plan promises, whatever the history, the policy and the window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import TurnStatus
from app.engine.policy.policy import of_single_request, with_whole_past
from app.engine.window.plan import Ready, Refused, assemble, assert_tool_pairing, plan
from app.engine.window.prompt_refs import SentHashes, needed_for
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import lay_out
from tests.engine.histories import History, estimate, input_tokens_of, snapshot_of
from tests.engine.prompt_hash import prompt_sha256
from tests.engine.readings import (
    all_units,
    counted_tokens,
    items_of,
    read_back,
    ready_of,
    rebuild,
    sendable,
    sent_ids,
    sent_turns,
)
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import decide


@given(snapshots(policies()))
def test_a_ready_prompt_has_at_most_the_tokens_of_the_input_budget_and_a_refused_one_more(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    decision, budget = taken.decision, taken.snapshot.budget
    counted = input_tokens_of(taken.snapshot, decision.prompt)
    assert decision.window.input_tokens == counted
    if isinstance(decision, Ready):
        assert counted <= budget.input_budget
        assert budget.input_budget > 0
    else:
        assert budget.input_budget <= 0 or counted > budget.input_budget
        assert decision.overflow.budget["over_by"] == counted - budget.input_budget


@given(snapshots(policies()))
def test_a_count_of_the_messages_that_are_sent_agrees_with_the_prompts_wire_tokens(snapshot: Snapshot) -> None:
    prompt = decide(snapshot).decision.prompt
    assert counted_tokens(prompt.messages()) + prompt.framing_tokens + prompt.tools_tokens == prompt.wire_tokens


@given(snapshots(policies()))
def test_the_same_snapshot_gives_the_same_decision(snapshot: Snapshot) -> None:
    assert plan(snapshot, estimate) == plan(snapshot, estimate)
    once, again = decide(snapshot), decide(snapshot)
    assert once == again
    if isinstance(once.decision, Ready) and isinstance(again.decision, Ready):
        assert assemble(once.decision) == assemble(again.decision)


@given(snapshots(policies()))
def test_the_prompt_is_in_order_head_then_summary_then_messages_in_time_order(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    prompt = taken.decision.prompt
    order = ("system", "goal", "pins", "summary", "history")
    ranks = [order.index("history" if item.region == "user" else item.region) for item in items_of(prompt)]
    assert ranks == sorted(ranks)
    seqs = [item.message.seq for item in items_of(prompt) if item.message]
    assert seqs == sorted(set(seqs))
    summary = taken.snapshot.summary
    assert [item.region for item in items_of(prompt)].count("summary") == (summary is not None)


@given(snapshots(policies()))
def test_tool_groups_stay_whole_with_no_orphaned_call_or_result(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    assert_tool_pairing(taken.decision.prompt.messages())
    present = sent_ids(taken.decision.prompt)
    for unit in all_units((*taken.snapshot.past.turns, taken.snapshot.current)):
        there = [message.id in present for message in unit.messages]
        assert all(there) or not any(there)


@given(snapshots(policies()))
def test_messages_of_incomplete_turns_that_may_not_be_sent_are_not_sent(snapshot: Snapshot) -> None:
    present = sent_ids(decide(snapshot).decision.prompt)
    allowed = {message.id for message in sendable((*snapshot.past.turns, snapshot.current))}
    assert present <= allowed
    for turn in snapshot.past.turns:
        if turn.status is TurnStatus.REJECTED:
            assert not present & {message.id for message in turn.messages}


@given(snapshots(policies(show_time=False)))
def test_the_logs_removals_sum_to_what_the_prompt_lost(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    accounts = taken.decision.accounts
    removed = sum(action.tokens_removed for action in accounts.actions)
    assert accounts.wire_before - removed == taken.decision.prompt.wire_tokens
    before = lay_out(snapshot, estimate).prompt
    assert accounts.wire_before == before.wire_tokens
    assert accounts.tokens_before == input_tokens_of(snapshot, before)
    assert accounts.summary_triggered == taken.summarized
    kinds = {action.kind for action in accounts.actions}
    assert accounts.prune_triggered == bool(kinds - {"summary_folded"})
    if not accounts.prune_triggered:
        assert taken.decision.window.input_tokens == accounts.tokens_after_summary
    if not accounts.summary_triggered:
        assert accounts.tokens_after_summary == accounts.tokens_before


@given(snapshots(policies()))
def test_regions_sum_to_the_wire_tokens(snapshot: Snapshot) -> None:
    prompt = decide(snapshot).decision.prompt
    assert sum(prompt.regions().values()) == prompt.wire_tokens


@given(snapshots(policies()))
def test_references_rebuild_the_exact_prompt_and_its_hash(snapshot: Snapshot) -> None:
    taken = decide(snapshot)
    assembled = assemble(ready_of(taken))
    blocks = assembled.blocks
    stored = {message.seq: message for turn in (*snapshot.past.turns, snapshot.current) for message in turn.messages}
    needed = needed_for(assembled.refs)
    messages, tools = rebuild(assembled.refs, *read_back(needed, blocks, stored))
    assert messages == assembled.messages
    assert tools == list(assembled.tools)
    assert prompt_sha256(messages, tools) == assembled.sha256
    assert SentHashes(blocks, stored).sha256(assembled.refs) == assembled.sha256


def test_the_assembled_prompt_is_checked_for_torn_tool_groups() -> None:
    history = History()
    turn = history.turn(("tool_group", 20, 2), status=TurnStatus.RUNNING)
    ready = plan(snapshot_of((), turn, input_budget=1000), estimate)
    assert isinstance(ready, Ready)
    *before, group = ready.window.pieces
    items = group.items
    for torn, fault in ((items[:-1], "a tool call without its result"), (items + items[-1:], "a tool result without")):
        window = ready.window.with_pieces([*before, group._replace(made=torn)])
        with pytest.raises(AssertionError, match=fault):
            assemble(replace(ready, window=window))


@given(snapshots(policies()), st.booleans())
def test_a_whole_past_policy_sends_every_stored_message_unchanged_or_refuses(
    snapshot: Snapshot, overflowed: bool
) -> None:
    snapshot = replace(snapshot, policy=with_whole_past(snapshot.policy), summary=None, overflowed=overflowed)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready | Refused)
    assert (decision.accounts.actions, decision.accounts.recalled) == ((), ())
    assert sent_ids(decision.prompt) == {
        message.id for message in sendable(sent_turns((*snapshot.past.turns, snapshot.current)))
    }
    assert not any(item.message and item.block for item in items_of(decision.prompt))


@given(snapshots(policies(allocation=None)))
def test_a_request_without_a_later_one_makes_no_summary_and_is_refused_only_for_what_may_never_leave(
    snapshot: Snapshot,
) -> None:
    decision = plan(replace(snapshot, policy=of_single_request(snapshot.policy)), estimate)
    assert isinstance(decision, Ready | Refused)
    if isinstance(decision, Refused) and snapshot.budget.input_budget > 0:
        assert sent_ids(decision.prompt) <= {message.id for message in snapshot.current.messages}
