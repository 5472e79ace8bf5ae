"""Tool results that a policy has cleared: which leave, which stay, and that what was cleared stays cleared."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

from app.domain.types import Pin, Turn, TurnStatus
from app.engine.policy.policy import PRESETS, ClearToolResults
from app.engine.window.columns import Columns
from app.engine.window.layout import layout_of, singly
from app.engine.window.past import past_of_columns
from app.engine.window.plan import Ready, SummaryDue, assemble, plan
from app.engine.window.prompt import PromptItem
from app.engine.window.prompt_refs import SentHashes
from app.engine.window.snapshot import in_ranges
from tests.engine.histories import GUARDED, History, UnitShape, chat, estimate, snapshot_of, text_of
from tests.engine.readings import items_of, rebuild

_ROOMY = 100_000


def _rounds(count: int, tokens: int = 400, *, calls: int = 1) -> list[tuple[UnitShape, int, int]]:
    return [("tool_group", tokens, calls)] * count


def _history(rounds: int) -> tuple[Turn, ...]:
    """A turn of tool calls, and the running one; call and result are the messages 2 and 3, 4 and 5, …."""
    history = History()
    worked = history.turn(*_rounds(rounds), ("assistant", 10, 1))
    return worked, history.turn(status=TurnStatus.RUNNING)


def _plan(turns: tuple[Turn, ...], rule: ClearToolResults, input_budget: int = _ROOMY, **changes: Any) -> Ready:
    policy = replace(GUARDED, clear_tool_results=rule, **changes)
    decided = plan(snapshot_of(turns[:-1], turns[-1], input_budget=input_budget, policy=policy), estimate)
    assert isinstance(decided, Ready)
    return decided


def _cleared(ready: Ready) -> list[int]:
    """The numbers of the messages of which something was cleared."""
    return [item.message.seq for item in items_of(ready.prompt) if item.message and item.is_shortened]


def test_at_the_trigger_all_results_but_the_newest_leave_a_mark_and_below_it_none() -> None:
    turns = _history(5)
    assert _cleared(_plan(turns, ClearToolResults(trigger_tokens=4000))) == []
    ready = _plan(turns, ClearToolResults(trigger_tokens=1000))
    assert _cleared(ready) == [3, 5]
    contents = [item.as_sent()["content"] for item in items_of(ready.prompt) if item.is_shortened]
    assert all("characters of this tool result left out" in str(content) for content in contents)
    actions = ready.accounts.actions
    assert {(each.kind, each.reason) for each in actions} == {("tool_result_shortened", "clear_tool_results")}
    assert ready.accounts.prune_triggered
    assert ready.accounts.tokens_before - ready.window.input_tokens == sum(a.tokens_removed for a in actions)


def test_by_uses_with_exceptions_and_a_least_saving() -> None:
    turns = _history(5)
    assert _cleared(_plan(turns, ClearToolResults(trigger_uses=5))) == []
    assert _cleared(_plan(turns, ClearToolResults(trigger_uses=4, keep=1))) == [3, 5, 7, 9]
    assert _cleared(_plan(turns, ClearToolResults(trigger_uses=4, keep=1, exclude_tools=("look_up",)))) == []
    assert _cleared(_plan(turns, ClearToolResults(trigger_uses=4, keep=1, at_least_tokens=5000))) == []


def test_the_newest_results_of_a_running_turn_stay_even_where_none_is_to_be_kept() -> None:
    history = History()
    running = history.turn(*_rounds(3, calls=2), status=TurnStatus.RUNNING)
    ready = _plan((running,), ClearToolResults(trigger_tokens=1, keep=0))
    assert _cleared(ready) == [3, 4, 6, 7]


def test_with_a_least_saving_the_prompt_begins_as_the_one_before_until_so_much_is_saved() -> None:
    prompts: list[str] = []
    for rounds in range(4, 12):
        history = History()
        running = history.turn(*_rounds(rounds), status=TurnStatus.RUNNING)
        rule = ClearToolResults(trigger_tokens=1000, at_least_tokens=1500)
        prompts.append(json.dumps(list(_plan((running,), rule).prompt.messages()))[:-1])
    breaks = [at for at, (one, after) in enumerate(pairwise(prompts)) if not after.startswith(one)]
    # Four results of 400 tokens save enough at once: after seven rounds, and after eleven.
    assert breaks == [2, 6]


def test_cleared_inputs_and_results_are_rebuilt_from_references_and_listed_singly() -> None:
    turns = _history(6)
    ready = _plan(turns, ClearToolResults(trigger_tokens=1, clear_inputs=True), look_back="on")
    assert _cleared(ready) == [2, 3, 4, 5, 6, 7]
    calls = [item.as_sent()["tool_calls"] for item in items_of(ready.prompt) if item.inputs_cleared]
    assert [call["function"]["arguments"] for (call,) in calls] == ["{}"] * 3
    assembled = assemble(ready)
    blocks = {block.sha256: block.text for block in ready.prompt.blocks()}
    stored = {message.seq: message for turn in turns for message in turn.messages}
    sent, _ = rebuild(assembled.refs, blocks, stored)
    assert sent == list(assembled.messages)
    assert SentHashes(blocks, stored).sha256(assembled.refs) == assembled.sha256
    assert sum(row.shortened for row in layout_of(ready.prompt)) == 6
    ranges = in_ranges(ready.accounts.actions)
    assert sorted(each.count for each in ranges) == [3, 3]
    listed = singly(ranges, turns, assembled.refs, _ROOMY, estimate)
    assert sorted((each.kind, each.target, each.tokens_removed_est) for each in listed) == sorted(
        (each.kind, each.target, each.tokens_removed) for each in ready.accounts.actions
    )


def test_a_dropped_group_is_listed_singly_with_what_clearing_left_of_it() -> None:
    history = History()
    turns = (history.turn(*_rounds(3, 250), ("assistant", 10, 1)), history.turn(status=TurnStatus.RUNNING))
    changes: dict[str, Any] = {"auto_summarize": False, "protected_turns": 0}
    ready = _plan(turns, ClearToolResults(trigger_tokens=1, keep=2), 500, **changes)
    ranges = in_ranges(ready.accounts.actions)
    assert [(each.kind, each.count) for each in ranges] == [("tool_result_shortened", 1), ("tool_group_dropped", 2)]
    listed = singly(ranges, turns, assemble(ready).refs, 500, estimate)
    assert [each.tokens_removed_est for each in listed] == [each.tokens_removed for each in ready.accounts.actions]


def test_a_call_whose_inputs_are_cleared_keeps_its_long_text_until_it_is_dropped_and_is_rebuilt() -> None:
    history = History()
    worked = history.turn(*_rounds(3, 5), ("assistant", 10, 1), call_tokens=700)
    turns = (worked, history.turn(status=TurnStatus.RUNNING))
    ready = _plan(
        turns,
        ClearToolResults(trigger_tokens=1, keep=2, clear_inputs=True),
        1500,
        auto_summarize=False,
        prune_block_share=0.0,
    )
    assembled = assemble(ready)
    stored = {message.seq: message for turn in turns for message in turn.messages}
    assert [ref[:2] for ref in assembled.refs["items"] if ref[0] in ("c", "k")] == [["c", 2], ["k", 4], ["k", 6]]
    assert SentHashes(assembled.blocks, stored).sha256(assembled.refs) == assembled.sha256


def test_cleared_results_do_not_make_a_summary_due() -> None:
    turns = _history(6)
    bare = plan(
        snapshot_of(turns[:-1], turns[-1], input_budget=3000, policy=replace(GUARDED, protected_turns=0)), estimate
    )
    assert isinstance(bare, SummaryDue)
    assert _cleared(_plan(turns, ClearToolResults(trigger_tokens=1000), 3000, protected_turns=0)) == [3, 5, 7]


class _CountedReads(Columns):
    """Columns that count how often the messages of a piece are read."""

    reads = 0

    def items(self, place: int) -> tuple[PromptItem, ...]:
        self.reads += 1
        return super().items(place)


def _reads(calls: int) -> int:
    """How often a plan reads the pieces of a turn with a group of this many calls, all of which it clears."""
    history, columns = History(), _CountedReads(0)
    columns.extend((history.turn(("tool_group", 400, calls), ("assistant", 10, 1)),))
    past = past_of_columns(columns, 0, columns.turns)
    rule = ClearToolResults(trigger_tokens=1, keep=0, clear_inputs=True)
    snapshot = snapshot_of(
        (),
        history.turn(status=TurnStatus.RUNNING),
        input_budget=_ROOMY,
        policy=replace(GUARDED, clear_tool_results=rule),
    )
    ready = plan(replace(snapshot, past=past), estimate)
    assert isinstance(ready, Ready)
    assert len(_cleared(ready)) == calls + 1
    return columns.reads


def test_a_group_of_many_calls_is_read_no_more_often_than_one_of_few() -> None:
    assert _reads(40) == _reads(2)


def test_what_was_cleared_is_logged_once_also_where_the_window_is_shared_out() -> None:
    """Every trim of a pin or of the summary logged it again."""
    history = History()
    turns = tuple(history.turn(("tool_group", 300, 1), ("assistant", 60, 1)) for _ in range(6))
    clears = ClearToolResults(trigger_tokens=100, keep=2)
    policy = replace(PRESETS["allocated"].policy, auto_summarize=False, clear_tool_results=clears)
    pins = tuple(Pin(f"pin-{at}", text_of(900, at), None) for at in range(3))
    current = history.turn(status=TurnStatus.RUNNING)
    decided = plan(snapshot_of(turns, current, input_budget=2700, policy=policy, pins=pins), estimate)
    assert isinstance(decided, Ready)
    kinds = [action.kind for action in decided.accounts.actions]
    assert "pinned_trim" in kinds
    targets = [action.target for action in decided.accounts.actions if action.reason == "clear_tool_results"]
    assert len(targets) == len(set(targets)) == 4


def test_results_that_stay_do_not_put_off_the_clearing_of_others() -> None:
    history = History()
    # A mark would be larger than the results of 5 tokens.
    running = history.turn(*_rounds(2, 5), *_rounds(2), status=TurnStatus.RUNNING)
    assert _cleared(_plan((running,), ClearToolResults(trigger_uses=2, keep=1))) == [7]


def test_framing_beyond_its_reserve_is_counted_once() -> None:
    """Of 600 messages it is 2,400 tokens, of which the reserve pays 1,024."""
    history = History()
    turns = (*chat(history, 300, user_tokens=10, assistant_tokens=10), *_history(5))
    used = _plan(turns, ClearToolResults(trigger_tokens=_ROOMY), mandatory_summary_turn=None).window.input_tokens
    rule = ClearToolResults(trigger_tokens=used + 1)
    assert _cleared(_plan(turns, rule, mandatory_summary_turn=None)) == []
