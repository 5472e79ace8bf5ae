"""What a window offers to read back, and what becomes of what was read when the prompt is too large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.types import Completion, Message, SummaryBody, ToolCall, ToolDefinition, TurnStatus
from app.engine.messages.tokens import message_tokens, tools_tokens
from app.engine.policy.policy import PRESETS, ClearToolResults, ContextPolicy, Recall
from app.engine.recall.look_back_pages import TextPage, page_of_matches
from app.engine.window.look_back import (
    LOOK_BACK,
    LookBack,
    look_back_messages,
    next_page_tokens,
    next_search,
    round_tokens,
    with_look_backs,
)
from app.engine.window.plan import Ready, Refused, assemble, plan, with_summary
from app.engine.window.prompt_refs import SentHashes, needed_for
from app.engine.window.recalled import room_for_result, seqs_beside_result
from app.engine.window.snapshot import Snapshot, in_ranges
from app.engine.window.window import Window
from tests.engine.histories import GUARDED, History, UnitShape, chat, estimate, snapshot_of, text_of
from tests.engine.prompt_hash import prompt_sha256
from tests.engine.readings import items_of, rebuild
from tests.engine.window.test_days import recalling_snapshot

_NO_SUMMARY = ContextPolicy(summarize_when="never", auto_summarize=False)


def _read(snapshot: Snapshot, tokens: int, number: int = 1) -> tuple[Message, ...]:
    """A look-back behind the turn's newest message that read so much."""
    current = snapshot.current
    call = ToolCall(f"back_{number}", "look_back", "{}")
    answered = [(call, LookBack("words", None, None), text_of(tokens, number))]
    messages = look_back_messages(current.id, current.messages[-1].seq, Completion(None, "tool_calls", None), answered)
    return tuple(
        replace(
            message,
            tokens=message_tokens(
                message.content, estimate, tool_calls=message.tool_calls, tool_call_id=message.tool_call_id
            ),
        )
        for message in messages
    )


def _ready(snapshot: Snapshot, policy: ContextPolicy = GUARDED) -> Ready:
    decision = plan(replace(snapshot, policy=policy), estimate, may_summarize=False)
    assert isinstance(decision, Ready)
    return decision


def test_look_back_is_offered_when_there_is_a_summary_or_this_prompt_was_trimmed() -> None:
    history = History()
    turns = chat(history, 6)
    fits = replace(snapshot_of(turns, history.turn(), input_budget=5000), may_look_back=True)
    assert _ready(fits).prompt.tools == ()
    assert _ready(fits, replace(GUARDED, look_back="on")).prompt.tools == (LOOK_BACK,)
    summarized = replace(fits, summary=history.summary(SummaryBody("Earlier.")))
    assert _ready(summarized).prompt.tools == (LOOK_BACK,)
    assert _ready(replace(summarized, may_look_back=False)).prompt.tools == ()
    pruned = replace(fits, budget=replace(fits.budget, input_budget=180))
    assert _ready(pruned, _NO_SUMMARY).prompt.tools == (LOOK_BACK,)


@pytest.mark.parametrize("has_summary", [True, False])
def test_the_tool_causes_no_refusal_where_the_clients_tools_fill_the_overhead_reserve(*, has_summary: bool) -> None:
    history = History()
    turns, current = chat(history, 6), history.turn(user_tokens=300)
    summary = history.summary(SummaryBody("Earlier.")) if has_summary else None
    of_client: ToolDefinition = {"type": "function", "function": {"name": "find", "description": text_of(1_500)}}
    offered = set[tuple[bool, bool]]()
    for input_budget in range(700, 1_300, 20):
        snapshot = snapshot_of(turns, current, input_budget=input_budget, summary=summary, tools=(of_client,))
        bare, decided = (
            plan(replace(snapshot, policy=_NO_SUMMARY, may_look_back=may), estimate, may_summarize=False)
            for may in (False, True)
        )
        assert type(decided) is type(bare)
        assert decided.window.input_tokens <= input_budget or isinstance(decided, Refused)
        offered.add((isinstance(decided, Ready), decided.window.snapshot.offers_look_back))
    assert offered == {(False, False), (True, False), (True, True)}


def test_a_prompt_that_is_tried_again_after_a_rejection_keeps_the_tool_and_does_not_gain_it() -> None:
    history = History()
    turns = chat(history, 6)
    snapshot = replace(snapshot_of(turns, history.turn(), input_budget=180), may_look_back=True)
    rejected = _ready(snapshot, _NO_SUMMARY)
    assert rejected.prompt.tools == (LOOK_BACK,)
    smaller = rejected.window.after_overflow(replace(snapshot.budget, input_budget=120))
    assert _ready(smaller, _NO_SUMMARY).prompt.tools == (LOOK_BACK,)
    assert _ready(replace(snapshot, overflowed=True), _NO_SUMMARY).prompt.tools == ()


def test_a_shortened_message_names_its_handle_only_if_it_can_be_read_back() -> None:
    history = History()
    turns = (history.turn(("tool_group", 900, 1), ("assistant", 20, 1)), *chat(history, 5))
    snapshot = snapshot_of(turns, history.turn(), input_budget=1000)
    result = turns[0].messages[2]
    for may, mark in ((True, f"left out; look_back handle m{result.seq} …]"), (False, " left out …]")):
        ready = _ready(replace(snapshot, may_look_back=may), _NO_SUMMARY)
        (shortened,) = [item for item in items_of(ready.prompt) if item.message and item.block]
        assert mark in str(shortened.as_sent()["content"])


def test_the_figures_of_the_log_add_up_where_the_offer_begins_with_a_summary() -> None:
    history = History()
    snapshot = replace(
        snapshot_of(chat(history, 12, assistant_tokens=60), history.turn(), input_budget=1000), may_look_back=True
    )
    due = plan(snapshot, estimate)
    assert not isinstance(due, Ready)
    made = history.summary(SummaryBody("Earlier."))
    ready = _ready(with_summary(due.snapshot, due.fold, made, estimate))  # pyright: ignore
    removed = sum(action.tokens_removed_est for action in in_ranges(ready.accounts.actions))
    assert ready.prompt.tools_tokens == tools_tokens((LOOK_BACK,), estimate)
    assert ready.accounts.wire_before - removed == ready.prompt.wire_tokens


def test_the_last_page_read_is_never_shortened_and_earlier_pages_are_dropped_whole() -> None:
    history = History()
    current = history.turn(("tool_group", 300, 1), status=TurnStatus.RUNNING)
    snapshot = replace(snapshot_of((), current, input_budget=1150), may_look_back=True)
    older, newest = _read(snapshot, 400, 1), _read(snapshot, 400, 2)
    ready = _ready(replace(snapshot, current=with_look_backs(current, (*older, *newest))))
    sent = [str(item.as_sent()["content"]) for item in items_of(ready.prompt)]
    assert newest[1].content in sent
    assert older[1].content not in sent
    assert [action.target for action in in_ranges(ready.accounts.actions)] == ["look_back"]


def test_a_result_that_fits_the_budget_leaves_the_prompt_before_it_as_it_was() -> None:
    """A prune at the usual threshold would save nothing: the provider would have to read the prompt again."""
    history = History()
    turns, current = chat(history, 12, assistant_tokens=60), history.turn()
    summary = history.summary(SummaryBody("Earlier."))
    snapshot = replace(snapshot_of(turns, current, input_budget=1300, summary=summary), may_look_back=True)
    before = _ready(snapshot).window
    ready, largest = _ready(snapshot), 0
    for tokens in range(20, 400, 20):
        ready = _ready(replace(snapshot, current=with_look_backs(current, _read(snapshot, tokens))))
        if ready.accounts.tokens_before > 1300:
            break
        largest = ready.window.input_tokens
        assert list(assemble(ready).messages)[: before.messages] == list(assemble(_ready(snapshot)).messages)
        assert not ready.accounts.actions
    assert largest > 0.95 * 1300
    assert ready.accounts.actions, "one that does not fit is made to"


@pytest.mark.parametrize("reasoning", [None, "Hm."])
def test_a_prompt_with_what_was_read_is_rebuilt_from_its_blocks_to_the_same_hash(reasoning: str | None) -> None:
    history = History()
    snapshot = replace(snapshot_of(chat(history, 2), history.turn(), input_budget=5000), may_look_back=True)
    read = tuple(
        replace(message, reasoning=reasoning, reasoning_sent="text" if reasoning else None)
        if message.role == "assistant"
        else message
        for message in _read(snapshot, 50)
    )
    ready = _ready(replace(snapshot, current=with_look_backs(snapshot.current, read)))
    assembled = assemble(ready)
    blocks = assembled.blocks
    stored = {message.seq: message for turn in (*snapshot.past.turns, snapshot.current) for message in turn.messages}
    assert set(needed_for(assembled.refs).sha256s) <= blocks.keys()
    messages, tools = rebuild(assembled.refs, blocks, stored)
    assert messages == list(assembled.messages)
    assert prompt_sha256(messages, tools) == assembled.sha256 == SentHashes(blocks, stored).sha256(assembled.refs)
    assert ready.prompt.looked_back() == {"messages": 2, "tokens": sum(message.tokens + 4 for message in read)}


def test_a_turn_reads_three_pages_in_four_calls_none_under_half_of_one() -> None:
    query, by_page = LookBack("words", None, None), LookBack("", "m7", 2)
    assert [next_page_tokens(query, 2000, 0, 0, room) for room in (-50, 299, 450, 9000)] == [300, 300, 450, 600]
    assert [next_page_tokens(by_page, 2000, 0, 0, room) for room in (450, 9000)] == [300, 600], "two sizes of pages"
    opened = LookBack("words", "m7", None)
    assert next_page_tokens(opened, 2000, 1, 600, 100, 600) == 600, "what was read before leaves for a useful page"
    assert next_page_tokens(query, 2000, 1, 600, 100, 600) == 300, "and stays beside more matches"
    assert next_page_tokens(query, 100_000, 0, 0, 90_000) == 2_400
    assert [next_page_tokens(query, budget, 0, 0, 9000) for budget in (400, 1000)] == [200, 400], "not too small to use"
    assert next_page_tokens(query, 2000, 4, 0, 9000) is None
    assert next_page_tokens(query, 2000, 3, 1_300, 9000) is None


def test_no_query_of_a_turn_shows_again_what_was_shown_whole_or_for_the_same_words() -> None:
    page = TextPage("…", 1, (3, 4, 5), in_part=(5,))
    read = ((LookBack("crane", None, None), page), (LookBack("", "m9", None), TextPage("…", 1, (9,), pages=4)))
    again = next_search(LookBack("crane", None, None), read, frozenset({1}), None)
    assert (again.number, again.shown_number, again.without) == (1, 2, {1, 3, 4, 5})
    third = next_search(LookBack("crane", None, 3), read, frozenset({1}), None)
    assert (third.number, third.shown_number) == (2, 3)
    other = next_search(LookBack("barge", None, None), read, frozenset({1}), None)
    assert (other.number, other.shown_number, other.without) == (1, 1, {1, 3, 4})


def test_recalled_messages_displaced_by_a_page_do_not_count_as_sent() -> None:
    window = _ready(recalling_snapshot()).window
    recalled = {row.seq for row in window.log.recalled}
    assert recalled
    assert recalled <= seqs_beside_result(window, 0, 0)
    beside = seqs_beside_result(window, room_for_result(window, 0, 0) - 1, 0)
    assert not recalled & beside
    assert {message.seq for turn in window.snapshot.past.turns for message in turn.messages} <= beside


def _after(window: Window, text: str) -> Window:
    """The window of the call after a look-back that read this text."""
    snapshot = window.snapshot
    look_back = tuple(
        replace(message, content=text, tokens=message_tokens(text, estimate, tool_call_id=message.tool_call_id))
        if message.role == "tool"
        else message
        for message in _read(snapshot, 1)
    )
    current = with_look_backs(snapshot.current, look_back)
    return _ready(replace(snapshot, current=current, log=None)).window


@pytest.mark.parametrize(
    "policy",
    [GUARDED, replace(GUARDED, show_time=True), replace(GUARDED, recall=Recall(max_share=0.25))],
    ids=["days in the block", "days everywhere", "no days"],
)
def test_a_result_takes_all_the_room_there_is_and_what_was_promised_to_stay_beside_it_does(
    policy: ContextPolicy,
) -> None:
    window = _ready(replace(recalling_snapshot(), policy=policy)).window
    unread = [replace(message, content=message.content and "") for message in _read(window.snapshot, 1)]
    of_round = round_tokens(unread, estimate)
    room = room_for_result(window, of_round, len(unread))
    full = _after(window, text_of(room))
    assert (full.input_tokens, full.log.recalled, full.log.actions) == (window.budget.input_budget, (), ())
    for size in range(room - 400, room, 7):
        recalled = {row.seq for row in _after(window, text_of(size)).log.recalled}
        beside = seqs_beside_result(window, of_round + size, len(unread))
        assert {row.seq for row in window.log.recalled} & beside <= recalled


def test_what_a_page_shows_whole_is_not_recalled_beside_it() -> None:
    window = _ready(recalling_snapshot()).window
    recalled = [item.message for item in window.recalled if item.message]
    page = page_of_matches(recalled[:2], "valve", 1, 2000, estimate)
    assert page
    beside = {row.seq for row in _after(window, page.text).log.recalled}
    assert beside == {message.seq for message in recalled[2:]}


def test_a_call_whose_inputs_were_cleared_does_not_count_as_sent() -> None:
    history = History()
    rounds: list[tuple[UnitShape, int, int]] = [("tool_group", 400, 1)] * 5
    turns = (history.turn(*rounds, ("assistant", 20, 1)),)
    rule = ClearToolResults(trigger_tokens=1, keep=3, clear_inputs=True)
    snapshot = replace(snapshot_of(turns, history.turn(), input_budget=5000), may_look_back=True)
    prompt = _ready(snapshot, replace(GUARDED, clear_tool_results=rule)).prompt
    assert [item.message.seq for item in items_of(prompt) if item.message and item.inputs_cleared] == [2, 4]
    assert prompt.seqs_as_stored() == {1, *range(6, 14)}


def test_only_the_guarded_preset_offers_look_back_by_default() -> None:
    assert {name: preset.policy.look_back for name, preset in PRESETS.items()} == {
        "guarded": "auto",
        "post_turn": "off",
        "rolling": "off",
        "allocated": "off",
        "turn_atomic": "off",
    }
