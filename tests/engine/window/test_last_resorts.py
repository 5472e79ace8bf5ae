"""What gives way when nothing may leave any more: the newest tool results, and media (contract.md, decision 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.content import canonical_json
from app.domain.types import TurnStatus
from app.engine.window.plan import Ready, Refused, SummaryDue, assemble, plan
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.prompt_refs import needed_for
from app.engine.window.pruning import untouchable
from app.engine.window.shortening import NEWEST_RESULT_FLOOR_TOKENS, fit_results
from app.engine.window.window import lay_out
from tests.engine.histories import GUARDED, History, chat, estimate, snapshot_of
from tests.engine.pictures import audio, file, image, image_at, png, wav
from tests.engine.readings import rebuild
from tests.engine.strategies import any_text

_NO_SUMMARY = replace(GUARDED, auto_summarize=False)
_PICTURE = image(png(1024, 768))
_MARKED = {"type": "text", "text": "[image left out: 1024x768]"}


def _results(prompt: Prompt) -> list[str]:
    return [message["content"] for message in prompt.messages() if message["role"] == "tool"]


def _done(decision: object) -> list[tuple[str, str]]:
    assert isinstance(decision, Ready | Refused)
    return [(action.kind, action.reason) for action in decision.accounts.actions]


@pytest.mark.parametrize("shields", [False, True])
def test_a_newest_result_that_is_too_large_is_cut_to_what_fits_with_its_ends_kept_and_a_mark(shields: bool) -> None:
    history = History()
    past = chat(history, 2, assistant_tokens=100)
    current = history.turn(("tool_group", 5000, 1), status=TurnStatus.RUNNING)
    policy = replace(GUARDED, prune_protected=not shields)
    decision = plan(snapshot_of(past, current, input_budget=2000, policy=policy), estimate)
    assert isinstance(decision, Ready)
    assert 1900 <= decision.window.input_tokens <= 2000
    assert _done(decision)[-1] == ("tool_result_shortened", "newest_result_too_large")
    was = current.messages[2].content
    (now,) = _results(decision.prompt)
    assert isinstance(was, str)
    head, _, rest = now.partition("\n[… ")
    left_out, _, tail = rest.partition(" characters of this tool result left out …]\n")
    assert was.startswith(head)
    assert was.endswith(tail)
    assert len(head) + int(left_out) + len(tail) == len(was)


def test_the_newest_result_is_whole_while_anything_else_may_leave() -> None:
    history = History()
    past = chat(history, 4, assistant_tokens=300)
    current = history.turn(("tool_group", 800, 1), ("tool_group", 1500, 1), status=TurnStatus.RUNNING)
    for input_budget in range(1600, 3800, 100):
        decision = plan(snapshot_of(past, current, input_budget=input_budget, policy=_NO_SUMMARY), estimate)
        assert isinstance(decision, Ready)
        assert current.messages[-1].content in _results(decision.prompt)


def test_of_parallel_results_the_longest_is_cut_first_and_the_others_stay_whole_if_that_is_enough() -> None:
    history = History()
    results = [history.turn(("tool_group", size, 1)).messages[2] for size in (900, 3000, 1500)]
    items = [PromptItem("history", result.tokens, message=result) for result in results]
    (cut,) = fit_results(items, 1000, estimate)
    assert cut.was is items[1]
    assert 1000 <= cut.tokens_removed < 1100
    assert [each.was for each in fit_results(items, 4000, estimate)] == [items[1], items[2]]


def test_no_result_is_cut_below_the_floor_and_then_the_turn_is_refused() -> None:
    history = History()
    current = history.turn(("tool_group", 3000, 3), user_tokens=900, status=TurnStatus.RUNNING)
    snapshot = snapshot_of((), current, input_budget=1600)
    decision = plan(snapshot, estimate)
    assert isinstance(decision, Ready)
    refused = plan(snapshot_of((), current, input_budget=1400), estimate)
    assert isinstance(refused, Refused)
    sizes = [estimate(text) for text in _results(refused.prompt)]
    assert all(0.8 * NEWEST_RESULT_FLOOR_TOKENS < size <= NEWEST_RESULT_FLOOR_TOKENS for size in sizes)


def test_an_unresolved_turns_oversized_result_does_not_shut_its_session_for_good() -> None:
    history = History()
    failed = history.turn(("tool_group", 9000, 1), status=TurnStatus.FAILED)
    decision = plan(snapshot_of((failed,), history.turn(), input_budget=2000), estimate)
    assert isinstance(decision, Ready)
    assert _done(decision) == [("tool_result_shortened", "newest_result_too_large")]


def test_a_summary_is_weighed_beside_results_that_can_be_shortened() -> None:
    history = History()
    past = chat(history, 10, assistant_tokens=300)
    current = history.turn(("tool_group", 9000, 1), status=TurnStatus.RUNNING)
    snapshot = snapshot_of(past, current, input_budget=4000)
    assert isinstance(plan(snapshot, estimate), SummaryDue)
    small = snapshot_of(past, current, input_budget=300)
    assert not isinstance(plan(small, estimate), SummaryDue)


@given(st.integers(1, 4000), any_text, st.integers(0, 3000))
def test_a_shortened_result_costs_less_keeps_its_ends_and_is_cut_no_further_than_needed(
    tokens: int, text: str, excess: int
) -> None:
    message = History().turn(("tool_group", tokens, 1)).messages[2]
    content = text + str(message.content) + text
    message = replace(message, content=content, tokens=message.tokens + 2 * estimate(text))
    item = PromptItem("history", message.tokens, message=message)
    for done in fit_results([item], excess, estimate):
        assert done.now.block is not None
        assert done.tokens_removed == item.tokens - done.now.tokens > 0
        assert done.now.tokens <= max(item.tokens - excess, NEWEST_RESULT_FLOOR_TOKENS + 5)
        head = done.now.block.text.partition("\n[… ")[0]
        assert content.startswith(head) or "\n[… " in text
        assert done.now.tokens >= 0.8 * min(item.tokens - excess, NEWEST_RESULT_FLOOR_TOKENS)


def test_older_messages_media_leave_before_anything_is_dropped_and_protected_ones_only_over_the_budget() -> None:
    history = History()
    old = history.turn(("tool_group", 800, 1), ("assistant", 400, 1), media=(_PICTURE,))
    newest = history.turn(("assistant", 400, 1), media=(_PICTURE,))
    current = history.turn(media=(_PICTURE,))
    order = [
        ("tool_result_shortened", "prune_threshold"),
        ("media_marked", "prune_threshold"),
        ("tool_group_dropped", "prune_threshold"),
        ("assistant_dropped", "prune_threshold"),
        ("media_marked", "over_budget"),
        ("assistant_dropped", "over_budget"),
    ]
    policy = replace(_NO_SUMMARY, protected_turns=1, prune_block_share=0.0)
    seen: set[int] = set()
    for input_budget in range(8000, 1700, -20):
        decision = plan(snapshot_of((old, newest), current, input_budget=input_budget, policy=policy), estimate)
        done = _done(decision)
        assert done == order[: len(done)]
        assert isinstance(decision, Ready)
        assert decision.prompt.messages()[-1]["content"] == current.messages[0].content
        seen.add(len(done))
    assert seen == set(range(7))


def test_a_marked_message_keeps_every_other_part_word_for_word_and_is_rebuilt_exactly() -> None:
    history = History()
    parts: tuple[dict[str, Any], ...] = (
        {"type": "text", "text": "Look:\n", "note": {"b": 1.5, "a": [None, True]}},
        _MARKED,
        {"type": "text", "text": "[audio left out: 3 s]"},
        {"type": "text", "text": "[file left out: a b.pdf]"},
        {"type": "text", "text": "[image left out]"},
    )
    media = (_PICTURE, audio(wav(3)), file("a\nb.pdf"), image_at("https://example.org/a.png"))
    old = history.turn(("assistant", 20, 1))
    user = replace(old.messages[0], content=[parts[0], *media], tokens=9000)
    old = replace(old, messages=(user, *old.messages[1:]))
    policy = replace(_NO_SUMMARY, protected_turns=0)
    snapshot = snapshot_of((old,), history.turn(), input_budget=1000, policy=policy)
    ready = plan(snapshot, estimate)
    assert isinstance(ready, Ready)
    assembled = assemble(ready)
    assert assembled.messages[1] == {"role": "user", "content": list(parts)}
    assert ["p", user.seq] == assembled.refs["items"][1][:2]
    blocks = assembled.blocks
    stored = {message.seq: message for turn in (*snapshot.past.turns, snapshot.current) for message in turn.messages}
    assert set(needed_for(assembled.refs).sha256s) <= set(blocks)
    rebuilt, _ = rebuild(assembled.refs, blocks, stored)
    assert canonical_json(rebuilt) == canonical_json(list(assembled.messages))


def test_the_pictures_of_a_newest_result_leave_before_its_words_do() -> None:
    history = History()
    current = history.turn(("tool_group", 500, 1), status=TurnStatus.RUNNING, result_media=(_PICTURE, _PICTURE))
    decision = plan(snapshot_of((), current, input_budget=800), estimate)
    assert isinstance(decision, Ready)
    assert _done(decision) == [("media_marked", "newest_result_too_large")]
    content = current.messages[2].content
    assert content is not None
    assert decision.prompt.messages()[-1]["content"] == [content[0], _MARKED, _MARKED]


def test_the_check_before_summarizing_counts_older_media_as_markers() -> None:
    history = History()
    snapshot = snapshot_of((history.turn(media=(_PICTURE,)),), history.turn(media=(_PICTURE,)), input_budget=3000)
    window = lay_out(snapshot, estimate)
    least = window.with_pieces(untouchable(window)).prompt
    assert [_MARKED in message["content"] for message in least.messages()[1:]] == [True, False]
