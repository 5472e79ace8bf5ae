"""The trim log and prompt references by ranges: bounded by what is different, and as exact as one by one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given

from app.domain.audit import TrimAction
from app.domain.types import JsonObject, Message, MessageId, Turn, TurnId, TurnStatus
from app.engine.policy.policy import ContextPolicy
from app.engine.window.layout import singly
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.prompt import Block
from app.engine.window.prompt_refs import SentHashes, how_sent_of, needed_for
from app.engine.window.snapshot import Removal, Snapshot, in_ranges
from tests.engine.histories import GUARDED, History, UnitShape, chat, estimate, snapshot_of
from tests.engine.pictures import image, png
from tests.engine.readings import ready_of, rebuild
from tests.engine.strategies import guarded_policies, policies, snapshots
from tests.engine.turn_stand_in import decide

_NO_SUMMARY = replace(GUARDED, auto_summarize=False)


@given(snapshots(guarded_policies()))
def test_ranges_sum_to_the_single_actions_and_there_is_one_for_a_kind_and_reason(snapshot: Snapshot) -> None:
    singles = decide(snapshot).decision.accounts.actions
    ranges = in_ranges(singles)
    assert sum(each.count for each in ranges) == len(singles)
    assert sum(each.tokens_removed_est for each in ranges) == sum(each.tokens_removed for each in singles)
    placed = [each for each in ranges if each.seqs]
    assert len({(each.kind, each.reason, each.target[:4]) for each in placed}) == len(placed)


@given(snapshots(policies(clear_tool_results=None)))
def test_ranges_listed_singly_are_the_actions_that_were_taken(snapshot: Snapshot) -> None:
    ready = ready_of(decide(snapshot))
    singles, refs = ready.accounts.actions, assemble(ready).refs
    turns = (*snapshot.past.turns, snapshot.current)
    listed = singly(in_ranges(singles), turns, refs, snapshot.budget.input_budget, estimate)
    taken = Counter((a.kind, a.target, a.reason, a.tokens_removed) for a in singles)
    stayed = [action for action in listed if action.count > 1]
    assert Counter(_row(action) for action in listed if action.count == 1) <= taken
    assert sum(action.count for action in listed) == len(singles)
    # A range of messages may stay one only beside turns that left, with which others of its messages left.
    assert not stayed or {action.kind for action in singles} & {"history_drop", "turn_dropped"}
    # What is one already stays as it is, and a refused prompt's ranges too.
    assert singly(listed, turns, refs, snapshot.budget.input_budget, estimate) == listed
    assert singly(in_ranges(singles), turns, None, snapshot.budget.input_budget, estimate) == list(in_ranges(singles))


def test_actions_without_a_place_in_a_range_stay_single() -> None:
    removals = [Removal("pinned_trim", f"plan:{at}", "low_relevance", 5) for at in range(3)]
    assert [(action.target, action.count) for action in in_ranges(removals)] == [(f"plan:{at}", 1) for at in range(3)]


def _row(action: TrimAction) -> tuple[str, str, str, int]:
    return action.kind, action.target, action.reason, action.tokens_removed_est


def test_messages_of_a_kind_that_left_together_are_one_action() -> None:
    removals = (
        Removal("assistant_dropped", "message:a", "prune_threshold", 10, 2, 2),
        Removal("tool_group_dropped", "message:b", "prune_threshold", 30, 4, 6),
        Removal("assistant_dropped", "message:c", "prune_threshold", 12, 8, 8),
        Removal("summary_shortened", "summary:s", "over_budget", 5),
    )
    assert [action.public() for action in in_ranges(removals)] == [
        {
            "kind": "assistant_dropped",
            "target": "messages:2-8",
            "reason": "prune_threshold",
            "tokens_removed_est": 22,
            "count": 2,
        },
        {"kind": "tool_group_dropped", "target": "message:b", "reason": "prune_threshold", "tokens_removed_est": 30},
        {"kind": "summary_shortened", "target": "summary:s", "reason": "over_budget", "tokens_removed_est": 5},
    ]


def _pruned(pairs: int, policy: ContextPolicy = _NO_SUMMARY) -> tuple[Snapshot, Ready]:
    history = History()
    turns = chat(history, pairs, user_tokens=20, assistant_tokens=60)
    asking = history.turn(status=TurnStatus.RUNNING)
    snapshot = snapshot_of(turns, asking, input_budget=pairs * 60, policy=policy)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    return snapshot, ready


def test_the_stored_size_of_a_prune_does_not_grow_with_the_number_of_pruned_messages() -> None:
    for policy in (_NO_SUMMARY, replace(_NO_SUMMARY, prune_unit="turn"), replace(_NO_SUMMARY, prune_block_share=0.2)):
        small, large = (_stored(_pruned(pairs, policy)[1]) for pairs in (100, 1000))
        assert large < small + 40


def _stored(ready: Ready) -> int:
    actions = [action.public() for action in in_ranges(ready.accounts.actions)]
    return len(json.dumps([actions, assemble(ready).refs]))


def test_users_words_that_a_prune_left_are_one_reference_and_only_they_are_read_of_its_range() -> None:
    snapshot, ready = _pruned(100)
    assembled = assemble(ready)
    (kept,) = [ref for ref in assembled.refs["items"] if ref[0] == "u"]
    assert len(assembled.refs["items"]) == 3
    needed = needed_for(assembled.refs)
    assert needed.user_runs == ((kept[1], kept[2]),)
    blocks = assembled.blocks
    users = {
        message.seq: message
        for turn in (*snapshot.past.turns, snapshot.current)
        for message in turn.messages
        if message.role == "user" or message.seq > kept[2]
    }
    assert rebuild(assembled.refs, blocks, users)[0] == assembled.messages
    assert SentHashes(blocks, users).sha256(assembled.refs) == assembled.sha256


def test_a_range_of_users_words_does_not_reach_over_what_was_refused_or_is_not_there() -> None:
    history = History()
    first = chat(history, 20, user_tokens=20, assistant_tokens=60)
    refused = history.turn(user_tokens=20, status=TurnStatus.REJECTED)
    second = chat(history, 20, user_tokens=20, assistant_tokens=60)
    history.turn(user_tokens=20)  # taken back since: no turn of the window has its numbers
    third = chat(history, 20, user_tokens=20, assistant_tokens=60)
    asking = history.turn(status=TurnStatus.RUNNING)
    snapshot = snapshot_of((*first, refused, *second, *third), asking, input_budget=2200, policy=_NO_SUMMARY)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    ranges = [ref[1:] for ref in assemble(ready).refs["items"] if ref[0] == "u"]
    assert [(first, last) for first, last in ranges[:2]] == [(1, 39), (42, 80)]
    assert ranges[2][0] == 83


def test_a_range_of_users_words_that_does_not_end_with_such_is_refused() -> None:
    turn = History().turn(("assistant", 5, 1))
    stored = {message.seq: message for message in turn.messages}
    for first, last in ((1, 2), (1, 10**15), (2, 2), (3, 5)):
        refs: JsonObject = {"items": [["u", first, last]], "tools": None}
        with pytest.raises(KeyError):
            SentHashes({}, stored).sha256(refs)
        with pytest.raises(KeyError):
            rebuild(refs, {}, stored)


_OLD_REFS: Final[JsonObject] = {
    "items": [["b", "", "system"], ["m", 1, 1], ["m", 3, 3], ["m", 5, 8]],
    "tools": None,
    "regions": [["system", 1], ["history", 5], ["user", 1]],
}
"""As they were stored of a pruned prompt before there were ranges: a run for each message of a user."""
_OLD_SHA256: Final = "075df31d1c2845cc544412d65f93399797b15fa0c78c36d983ae9cfc134a665b"
_OLD_ACTIONS: Final[list[JsonObject]] = [
    {"kind": "assistant_dropped", "target": "message:2", "reason": "prune_threshold", "tokens_removed_est": 9},
    {"kind": "assistant_dropped", "target": "message:4", "reason": "prune_threshold", "tokens_removed_est": 9},
]


def _old_messages() -> dict[int, Message]:
    turn_id = TurnId(History().new_id())
    return {
        seq: Message(MessageId(History().new_id()), turn_id, seq, "user" if seq % 2 else "assistant", f"Line {seq}.", 2)
        for seq in range(1, 9)
    }


def test_how_a_message_was_sent_follows_from_its_reference_with_reasoning_or_without() -> None:
    items = [["m", 1, 1], ["jt", 2, "ab" * 32], ["u", 3, 5], ["kt", 6, 6], ["p", 7, 7], ["sb", 8, "cd" * 32]]
    how_sent = how_sent_of({"items": items, "tools": None})
    assert [how_sent(message) for message in _old_messages().values()] == [
        *("whole", "marked", "whole", None, "whole"),
        *("shortened", "marked", "shortened"),
    ]


def test_a_prompt_that_was_stored_before_ranges_is_rebuilt_to_its_hash_and_its_log_stays_as_it_is() -> None:
    block = Block("system", "Be brief.")
    refs = _OLD_REFS | {"items": [["b", block.sha256, "system"], *_OLD_REFS["items"][1:]]}
    assert SentHashes({block.sha256: block.text}, _old_messages()).sha256(refs) == _OLD_SHA256
    actions = [TrimAction.of_row(action) for action in _OLD_ACTIONS]
    assert [action.public() for action in actions] == _OLD_ACTIONS
    turns: tuple[Turn, ...] = ()
    assert singly(actions, turns, refs, 100, estimate) == actions


def test_a_target_that_no_range_has_is_taken_as_it_is() -> None:
    for target in ("messages:1", "messages:1-", "messages:1-9" + "9" * 20, "turns:-1-2", "pin:1-2", "messages:²-3", ""):
        assert TrimAction("assistant_dropped", target, "over_budget", 1).seqs is None
    assert TrimAction("turn_dropped", "turns:2-14", "over_budget", 1).seqs == ("turns", 2, 14)


def test_a_log_of_more_ranges_than_ours_have_is_not_listed_singly() -> None:
    """An imported log of 10,000 ranges over 10,000 messages would be listed as 100 million actions."""
    turns = chat(History(), 50)
    action = TrimAction("assistant_dropped", "messages:1-100", "over_budget", 1, 50)
    refs: JsonObject = {"items": [], "tools": None}
    assert len(singly([action], turns, refs, 100, estimate)) == 50
    of_many_reasons = [replace(action, reason=str(number)) for number in range(1000)]
    assert singly(of_many_reasons, turns, refs, 100, estimate) == of_many_reasons


def test_a_newest_result_without_its_picture_is_in_no_range_of_what_was_shortened_around_it() -> None:
    history = History()
    group: tuple[UnitShape, int, int] = ("tool_group", 200, 1)
    picture = image(png(1024, 768))
    waiting = history.turn(group, group, unresolved=True, result_media=(picture,))
    asking = history.turn(("tool_group", 300, 1), ("tool_group", 0, 1), status=TurnStatus.RUNNING)
    snapshot = snapshot_of((waiting,), asking, input_budget=983, policy=_NO_SUMMARY)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    singles = ready.accounts.actions
    reasons = {(action.kind, action.reason) for action in singles}
    assert {("tool_result_shortened", "over_budget"), ("media_marked", "newest_result_too_large")} <= reasons
    listed = singly(in_ranges(singles), (waiting, asking), assemble(ready).refs, 983, estimate)
    assert Counter(map(_row, listed)) == Counter((a.kind, a.target, a.reason, a.tokens_removed) for a in singles)


def test_a_long_result_whose_picture_alone_was_marked_is_listed_as_that() -> None:
    """A share that may not be dropped from loses its pictures, and keeps its texts whole."""
    turn = History().turn(("tool_group", 900, 1), result_media=(image(png(1024, 768)),))
    result = next(message for message in turn.messages if message.role == "tool")
    last_seq = turn.messages[-1].seq
    action = TrimAction("media_marked", f"messages:1-{last_seq}", "over_budget", 1593, 1)
    runs = [["m", 1, result.seq - 1], ["j", result.seq, "0" * 64]]
    refs: JsonObject = {"items": runs, "tools": None}
    listed = singly([action], (turn,), refs, 2_500, estimate)
    assert [(each.kind, each.target) for each in listed] == [("media_marked", f"message:{result.id}")]


def test_a_picture_that_left_with_its_turn_is_not_listed_as_marked() -> None:
    history, picture = History(), (image(png(1024, 768)),)
    gone, stayed = (history.turn(("tool_group", 90, 1), result_media=picture) for _ in range(2))
    result = next(message for message in stayed.messages if message.role == "tool")
    actions = [
        TrimAction("turn_dropped", f"turn:{gone.id}", "over_budget", 2_500),
        TrimAction("media_marked", f"messages:1-{stayed.messages[-1].seq}", "over_budget", 1593, 1),
    ]
    refs: JsonObject = {
        "items": [["m", stayed.messages[0].seq, result.seq - 1], ["p", result.seq, result.seq]],
        "tools": None,
    }
    listed = singly(actions, (gone, stayed), refs, 2_500, estimate)
    assert [each.target for each in listed] == [f"turn:{gone.id}", f"message:{result.id}"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_left_with_turns_of_a_history_drop_is_not_listed_as_dropped_by_itself(count: int) -> None:
    """Of the answers of two dropped turns and of one that stayed, `count` were dropped by themselves."""
    history = History()
    turns = [history.turn(("assistant", 60, 1)) for _ in range(3)]
    answers = [f"message:{turn.messages[1].id}" for turn in turns]
    drop = TrimAction("history_drop", "conversation_history", "lowest_priority", 500)
    dropped = TrimAction("assistant_dropped", "messages:2-6", "prune_threshold", 64 * count, count)
    refs: JsonObject = {"items": [["m", 5, 5]], "tools": None}
    listed = singly([drop, dropped], turns, refs, 1000, estimate)
    # With two it is not known which.
    targets = {1: answers[2:], 2: [dropped.target], 3: answers}[count]
    assert [each.target for each in listed] == [drop.target, *targets]


def test_a_turn_that_leaves_after_messages_of_it_is_listed_with_what_was_left_of_it() -> None:
    history = History()
    past = tuple(history.turn(("assistant", 300, 1), user_tokens=500) for _ in range(4))
    asking = history.turn(user_tokens=100, status=TurnStatus.RUNNING)
    snapshot = snapshot_of(past, asking, input_budget=6000, policy=replace(_NO_SUMMARY, protected_share=None))
    first = plan(snapshot, estimate)
    assert isinstance(first, Ready)
    smaller = first.window.after_overflow(replace(snapshot.budget, input_budget=1300))
    ready = plan(smaller, estimate, may_summarize=False)
    assert isinstance(ready, Ready)
    singles = ready.accounts.actions
    assert [action.kind for action in singles] == ["assistant_dropped"] * 4 + ["emergency_drop"] * 2
    listed = singly(in_ranges(singles), (*past, asking), assemble(ready).refs, 1300, estimate)
    assert Counter(map(_row, listed)) == Counter((a.kind, a.target, a.reason, a.tokens_removed) for a in singles)


def test_a_folded_range_does_not_list_refused_turns_although_some_of_it_is_recalled() -> None:
    history = History()
    first, refused, second = (
        history.turn(("assistant", 30, 1)),
        history.turn(status=TurnStatus.REJECTED),
        history.turn(("assistant", 30, 1)),
    )
    action = TrimAction("summary_folded", "turns:1-3", "usage", 96, 2)
    refs: JsonObject = {"items": [["m", 1, 1]], "tools": None, "regions": [["recall", 1]]}
    listed = singly([action], (first, refused, second), refs, 1000, estimate)
    assert [each.target for each in listed] == [f"turn:{first.id}", f"turn:{second.id}"]


def test_messages_of_runs_within_others_are_read_once() -> None:
    items = [["m", 4, 5], ["m", 1, 9], ["m", 2, 3], ["m", 10, 10], ["m", 12, 12]]
    assert needed_for({"items": items, "tools": None}).runs == ((1, 10), (12, 12))
