"""What every plan promises, whatever the history, the policy and the window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import assume, given

from app.domain.types import JsonObject, Message, MessageId, Turn, TurnStatus
from app.engine.assembly import (
    Ready,
    Refused,
    SummaryDue,
    SummaryWorthless,
    assemble,
    assert_tool_pairing,
    plan,
    plan_after_summary,
)
from app.engine.folding import wire_tokens_of
from app.engine.policy import ContextPolicy
from app.engine.prompt import Prompt, pin_text, prompt_sha256
from app.engine.replay import Needed, needed_for, rebuild
from app.engine.summaries import anchors_of
from app.engine.turns import Unit, sendable_units
from app.engine.window import Snapshot, Window
from tests.engine.histories import History, estimate, snapshot_of
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import Taken, decide


@given(snapshots(), policies())
def test_a_ready_prompt_is_charged_at_most_the_input_budget_and_a_refused_one_more(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    taken = decide(snapshot, policy)
    decision, budget = taken.decision, taken.snapshot.budget
    charged = Window(taken.snapshot, policy, estimate).charge(decision.prompt)
    assert decision.accounts.tokens_after_prune == charged
    if isinstance(decision, Ready):
        assert charged <= budget.input_budget
        assert budget.input_budget > 0
    else:
        assert budget.input_budget <= 0 or charged > budget.input_budget
        assert decision.overflow.budget["over_by"] == charged - budget.input_budget


@given(snapshots(), policies())
def test_a_count_of_the_messages_that_are_sent_agrees_with_the_prompts_wire_tokens(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    prompt = decide(snapshot, policy).decision.prompt
    assert _counted(prompt.messages()) + prompt.overhead_tokens == prompt.wire_tokens


@given(snapshots(), policies())
def test_the_same_snapshot_gives_the_same_decision(snapshot: Snapshot, policy: ContextPolicy) -> None:
    assert plan(snapshot, policy, estimate) == plan(snapshot, policy, estimate)
    once, again = decide(snapshot, policy), decide(snapshot, policy)
    assert once == again
    if isinstance(once.decision, Ready) and isinstance(again.decision, Ready):
        assert assemble(once.decision) == assemble(again.decision)


@given(snapshots(), policies())
def test_nothing_that_may_never_be_dropped_is_missing(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    ready = _ready(taken)
    sent = ready.prompt.messages()
    systems = [message["content"] for message in sent if message["role"] == "system"]
    for _, text in snapshot.layers:
        assert text in systems
    for pin in snapshot.pins:
        assert pin_text(pin) in systems
    assert snapshot.goal is None or snapshot.goal in systems
    present = _sent_ids(ready.prompt)
    for kept in _never_dropped(taken.snapshot):
        assert kept.id in present


@given(snapshots(), policies())
def test_what_is_cited_by_facts_decisions_and_questions_stays(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    ready = _ready(taken)
    anchors = anchors_of(taken.snapshot.summary)
    present = _sent_ids(ready.prompt)
    for message in _sendable(taken.snapshot.turns):
        assert message.id not in anchors or message.id in present


@given(snapshots(), policies())
def test_the_prompt_is_in_order_head_then_summary_then_messages_in_time_order(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    taken = decide(snapshot, policy)
    prompt = taken.decision.prompt
    order = ("system", "goal", "pins", "summary", "history")
    ranks = [order.index("history" if item.region == "user" else item.region) for item in prompt.items]
    assert ranks == sorted(ranks)
    seqs = [item.message.seq for item in prompt.items if item.message]
    assert seqs == sorted(set(seqs))
    summary = taken.snapshot.summary
    assert [item.region for item in prompt.items].count("summary") == (summary is not None)


@given(snapshots(), policies())
def test_tool_groups_stay_whole_with_no_orphaned_call_or_result(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    assert_tool_pairing(taken.decision.prompt.messages())
    present = _sent_ids(taken.decision.prompt)
    for unit in _units((*taken.snapshot.turns, taken.snapshot.current)):
        there = [message.id in present for message in unit.messages]
        assert all(there) or not any(there)


@given(snapshots(), policies())
def test_what_may_not_be_sent_of_turns_that_did_not_complete_is_not_sent(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    present = _sent_ids(decide(snapshot, policy).decision.prompt)
    allowed = {message.id for message in _sendable((*snapshot.turns, snapshot.current))}
    assert present <= allowed
    for turn in snapshot.turns:
        if turn.status is TurnStatus.REJECTED:
            assert not present & {message.id for message in turn.messages}


@given(snapshots(), policies())
def test_the_logs_removals_sum_to_what_the_prompt_lost(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    accounts = taken.decision.accounts
    removed = sum(action.tokens_removed for action in accounts.actions)
    assert accounts.wire_before - removed == taken.decision.prompt.wire_tokens
    before = Window(snapshot, policy, estimate)
    assert accounts.wire_before == before.prompt(before.pieces).wire_tokens
    assert accounts.tokens_before == before.charge(before.prompt(before.pieces))
    assert accounts.summary_triggered == taken.summarized
    kinds = {action.kind for action in accounts.actions}
    assert accounts.prune_triggered == bool(kinds - {"summary_folded"})
    if not accounts.prune_triggered:
        assert accounts.tokens_after_prune == accounts.tokens_after_summary
    if not accounts.summary_triggered:
        assert accounts.tokens_after_summary == accounts.tokens_before


@given(snapshots(), policies())
def test_regions_sum_to_the_wire_tokens(snapshot: Snapshot, policy: ContextPolicy) -> None:
    prompt = decide(snapshot, policy).decision.prompt
    assert sum(prompt.regions().values()) == prompt.wire_tokens


@given(snapshots(), policies())
def test_references_rebuild_the_exact_prompt_and_its_hash(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    assembled = assemble(_ready(taken))
    blocks = {block.sha256: block.text for block in assembled.blocks}
    stored = {message.seq: message for turn in (*snapshot.turns, snapshot.current) for message in turn.messages}
    needed = needed_for(assembled.refs)
    messages, tools = rebuild(assembled.refs, *_read(needed, blocks, stored))
    assert messages == assembled.messages
    assert tools == list(assembled.tools)
    assert prompt_sha256(messages, tools) == assembled.sha256


@given(snapshots(), policies())
def test_a_prune_enters_protected_turns_only_for_a_prompt_over_its_budget(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    taken = decide(snapshot, policy)
    accounts = taken.decision.accounts
    protected = _labels(_protected(taken.snapshot, policy))
    touched = [action for action in accounts.actions if action.target in protected]
    if not policy.prune_protected or accounts.tokens_after_summary <= snapshot.budget.input_budget:
        assert touched == []
    older = [action.reason for action in accounts.actions if action.kind not in {"summary_folded", "summary_shortened"}]
    assert older == sorted(older, key=("prune_threshold", "over_budget").index)
    assert all(action.reason == "over_budget" for action in touched)


@given(snapshots(), policies())
def test_a_prune_takes_the_oldest_first_and_shortens_before_it_drops(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    seqs = {
        f"message:{message.id}": message.seq
        for turn in (*snapshot.turns, snapshot.current)
        for message in turn.messages
    }
    for reason in ("prune_threshold", "over_budget"):
        actions = [
            action for action in taken.decision.accounts.actions if action.reason == reason and action.target in seqs
        ]
        kinds = [action.kind != "tool_result_shortened" for action in actions]
        assert kinds == sorted(kinds)
        for dropped in (False, True):
            order = [seqs[a.target] for a in actions if (a.kind != "tool_result_shortened") == dropped]
            assert order == sorted(order)


@given(snapshots(), policies())
def test_a_prune_leaves_no_older_candidate_behind_and_stops_when_it_may(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    taken = decide(snapshot, policy)
    accounts = taken.decision.accounts
    dropped = {
        action.target for action in accounts.actions if action.kind in {"tool_group_dropped", "assistant_dropped"}
    }
    if not accounts.prune_triggered:
        return
    window = Window(taken.snapshot, policy, estimate)
    protected = _labels(_protected(taken.snapshot, policy))
    for reason in ("prune_threshold", "over_budget"):
        of_reason = [a.target for a in accounts.actions if a.reason == reason and a.target in dropped]
        if not of_reason:
            continue
        candidates = [
            f"message:{piece.unit.messages[0].id}"
            for piece in window.pieces
            if piece.droppable and (reason == "over_budget" or piece.items[0].label not in protected)
        ]
        # What an earlier stage dropped is gone by then; of the rest the oldest went, without a gap.
        gone_before = dropped - set(of_reason) if reason == "over_budget" else set[str]()
        left = [target for target in candidates if target not in gone_before]
        assert of_reason == left[: len(of_reason)]


@given(snapshots(), policies())
def test_a_tool_result_is_shortened_at_most_once_in_a_prompt(snapshot: Snapshot, policy: ContextPolicy) -> None:
    actions = decide(snapshot, policy).decision.accounts.actions
    shortened = [action.target for action in actions if action.kind == "tool_result_shortened"]
    assert len(shortened) == len(set(shortened))
    assert all(action.tokens_removed > 0 for action in actions if action.kind == "tool_result_shortened")


@given(snapshots(long=True), policies(summarizes=True))
def test_a_fold_takes_whole_older_turns_and_never_a_protected_one(snapshot: Snapshot, policy: ContextPolicy) -> None:
    first = plan(snapshot, policy, estimate)
    assume(isinstance(first, SummaryDue))
    assert isinstance(first, SummaryDue)
    fold = first.fold
    assert (*fold.turns, *fold.protected) == snapshot.turns
    protected = _protected(snapshot, policy)
    assert not {turn.id for turn in fold.turns} & {turn.id for turn in protected}
    assert fold.folded_tokens == wire_tokens_of(fold.turns) + fold.previous_tokens
    assert fold.previous is snapshot.summary
    assert 0 < fold.cap_tokens < fold.folded_tokens


@given(snapshots(long=True), policies(summarizes=True))
def test_a_summary_makes_the_prompt_smaller_and_is_within_its_cap(snapshot: Snapshot, policy: ContextPolicy) -> None:
    taken = decide(snapshot, policy)
    assume(taken.summarized)
    assert taken.fold is not None
    block = Window(taken.snapshot, policy, estimate).summary_item
    assert block is not None
    assert block.tokens <= taken.fold.cap_tokens
    assert taken.decision.accounts.tokens_after_summary < taken.decision.accounts.tokens_before


@given(snapshots(long=True), policies(summarizes=True))
def test_a_summary_is_never_due_again_in_the_same_turn(snapshot: Snapshot, policy: ContextPolicy) -> None:
    first = plan(snapshot, policy, estimate)
    assume(isinstance(first, SummaryDue))
    assert isinstance(first, SummaryDue)
    # Not when the summary failed, and not when it was made (`decide` raises otherwise).
    assert isinstance(plan_after_summary(snapshot, policy, estimate, first.earlier), Ready | Refused)
    decide(snapshot, policy)


@given(snapshots(long=True), policies(summarizes=True))
def test_a_turn_is_not_refused_for_the_summary_that_was_paid_for(snapshot: Snapshot, policy: ContextPolicy) -> None:
    # A summary that keeps citing long protected messages keeps them in; without one nothing is cited.
    taken = decide(replace(snapshot, summary=None), policy)
    assert isinstance(taken.decision, Ready) or not taken.summarized


@given(snapshots(), policies())
def test_no_summary_is_due_where_what_may_never_leave_is_alone_over_the_budget(
    snapshot: Snapshot, policy: ContextPolicy
) -> None:
    window = Window(snapshot, policy, estimate)
    alone = window.charge(window.prompt(window.untouchable(), with_summary=False))
    decision = plan(snapshot, policy, estimate)
    if snapshot.budget.input_budget <= 0 or alone > snapshot.budget.input_budget:
        assert not isinstance(decision, SummaryDue | SummaryWorthless)


def test_the_assembled_prompt_is_checked_for_torn_tool_groups() -> None:
    history = History()
    turn = history.turn(("tool_group", 20, 2), status=TurnStatus.RUNNING)
    ready = plan(snapshot_of((), turn, input_budget=1000), ContextPolicy(), estimate)
    assert isinstance(ready, Ready)
    torn = Prompt(ready.prompt.items[:-1], (), 0)
    with pytest.raises(AssertionError, match="a tool call without its result"):
        assemble(Ready(torn, ready.accounts))
    with pytest.raises(AssertionError, match="a tool result without its call"):
        assemble(Ready(Prompt((*ready.prompt.items, ready.prompt.items[-1]), (), 0), ready.accounts))


def _ready(taken: Taken) -> Ready:
    assume(isinstance(taken.decision, Ready))
    assert isinstance(taken.decision, Ready)
    return taken.decision


def _units(turns: Iterable[Turn]) -> list[Unit]:
    return [unit for turn in turns for unit in sendable_units(turn)]


def _sendable(turns: Iterable[Turn]) -> list[Message]:
    return [message for unit in _units(turns) for message in unit.messages]


def _sent_ids(prompt: Prompt) -> set[MessageId]:
    return {item.message.id for item in prompt.items if item.message}


def _labels(turns: Iterable[Turn]) -> set[str]:
    return {f"message:{message.id}" for turn in turns for message in turn.messages}


def _sent_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of which later prompts know: a rejected one was never there (contract, decision 7)."""
    return [turn for turn in turns if turn.status is not TurnStatus.REJECTED]


def _protected(snapshot: Snapshot, policy: ContextPolicy) -> list[Turn]:
    """The newest turns by the policy, an unresolved last one whatever the policy, and the running one."""
    sent = _sent_turns(snapshot.turns)
    unresolved = 1 if sent and sent[-1].unresolved else 0
    kept = max(policy.protected_turns, unresolved)
    return [*sent[max(0, len(sent) - kept) :], snapshot.current]


def _never_dropped(snapshot: Snapshot) -> list[Message]:
    """Users' words in the raw window, and the newest assistant and tool messages of what is unresolved."""
    kept = [message for message in _sendable((*snapshot.turns, snapshot.current)) if message.role == "user"]
    sent = _sent_turns(snapshot.turns)
    for turn in (*(sent[-1:] if sent and sent[-1].unresolved else ()), snapshot.current):
        for kind in ("assistant", "tool_group"):
            newest = [unit for unit in sendable_units(turn) if unit.kind == kind][-1:]
            kept += [message for unit in newest for message in unit.messages]
    return kept


def _counted(messages: list[JsonObject]) -> int:
    """Tokens of neutral messages, counted from what is sent and not from what is stored."""
    total = 0
    for message in messages:
        content = message["content"] or ""
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        for call in message.get("tool_calls", ()):
            texts += [call["id"], call["function"]["name"], call["function"]["arguments"]]
            total += 3
        texts.append(message.get("tool_call_id", ""))
        total += sum(estimate(text) for text in texts)
    return total


def _read(
    needed: Needed, blocks: dict[str, str], stored: dict[int, Message]
) -> tuple[dict[str, str], dict[int, Message]]:
    """What a store gives back for what is needed, and nothing beside it."""
    seqs = [seq for first, last in needed.runs for seq in range(first, last + 1)]
    return {sha256: blocks[sha256] for sha256 in needed.sha256s}, {seq: stored[seq] for seq in seqs}
