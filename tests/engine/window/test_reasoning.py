"""Reasoning: which messages take it along, that it is counted where it is sent and nowhere else, and its rebuild."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import JsonObject, Message, ReasoningRule, Turn, TurnStatus
from app.engine.messages.media import flat_image_tokens
from app.engine.messages.tokens import reasoning_tokens
from app.engine.messages.turns import with_reasoning
from app.engine.window.layout import layout_of, rebuilt_row
from app.engine.window.past import past_of
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.prompt import Block
from app.engine.window.prompt_refs import SentHashes, needed_for, rebuilt_parts
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import History, estimate, snapshot_of
from tests.engine.readings import counted_tokens, read_back, ready_of, rebuild
from tests.engine.strategies import policies, snapshots
from tests.engine.turn_stand_in import decide

LOOP = ReasoningRule("blocks", "tool_loop")
LOOP_TEXT = ReasoningRule("text", "tool_loop")
TURNS = ReasoningRule("text", "tool_turns")
THOUGHT: JsonObject = {"type": "thinking", "thinking": "They ask for both.", "signature": "c2ln" * 40}


def thoughtful(turn: Turn, *, blocks: bool = True) -> Turn:
    """The turn as a model that thinks would have left it."""

    def thought(message: Message) -> Message:
        if message.role != "assistant":
            return message
        found = (THOUGHT,) if blocks else ()
        tokens = reasoning_tokens("They ask for both.", found, estimate)
        return replace(message, reasoning="They ask for both.", reasoning_blocks=found, reasoning_tokens=tokens)

    return replace(turn, messages=tuple(map(thought, turn.messages)))


def alone(turn: Turn) -> Ready:
    """What is sent when nothing else is there."""
    ready = plan(snapshot_of((), turn, input_budget=50_000), estimate)
    assert isinstance(ready, Ready)
    return ready


def reasoning_sent(turn: Turn, rule: ReasoningRule | None) -> list[list[str]]:
    """The fields of reasoning that each of the turn's messages is sent with, alone in its window."""
    sent = assemble(alone(with_reasoning(turn, rule))).messages[1:]
    return [sorted(name for name in message if name.startswith("reasoning")) for message in sent]


def running(history: History, *units: Any) -> Turn:
    return thoughtful(history.turn(*units, status=TurnStatus.RUNNING))


def test_reasoning_is_not_sent_or_counted_unless_the_model_takes_it_back() -> None:
    turn = running(History(), ("tool_group", 5, 2))
    assert with_reasoning(turn, None) is turn
    assert reasoning_sent(turn, None) == [[], [], [], []]


def test_signed_blocks_go_back_in_the_running_loop_alone() -> None:
    history = History()
    past = thoughtful(history.turn(("tool_group", 5, 1), ("assistant", 9, 1)))
    turn = running(history, ("tool_group", 5, 1), ("tool_group", 5, 1))
    assert with_reasoning(past, LOOP) is past
    assert reasoning_sent(turn, LOOP) == [[], ["reasoning_blocks"], [], ["reasoning_blocks"], []]


def test_a_loop_in_which_one_signature_is_missing_is_sent_without_any() -> None:
    history = History()
    turn = running(history, ("tool_group", 5, 1), ("tool_group", 5, 1))
    second = replace(turn.messages[3], reasoning_blocks=())
    broken = replace(turn, messages=(*turn.messages[:3], second, *turn.messages[4:]))
    assert with_reasoning(broken, LOOP) is broken


def test_blocks_of_one_type_are_sent_where_there_are_some() -> None:
    turn = running(History(), ("tool_group", 5, 1), ("tool_group", 5, 1))
    second = replace(turn.messages[3], reasoning_blocks=())
    partly = replace(turn, messages=(*turn.messages[:3], second, *turn.messages[4:]))
    (block,) = turn.messages[1].reasoning_blocks
    rules = [ReasoningRule("blocks", "tool_loop", only=only) for only in (block["type"], "of another provider")]
    assert reasoning_sent(partly, rules[0]) == [[], ["reasoning_blocks"], [], [], []]
    assert with_reasoning(partly, rules[1]) is partly


def test_text_goes_back_for_all_messages_of_turns_with_tools_and_for_no_other_turn() -> None:
    history = History()
    used = thoughtful(history.turn(("tool_group", 5, 1), ("assistant", 9, 1)), blocks=False)
    plain = thoughtful(history.turn(("assistant", 9, 1)), blocks=False)
    assert reasoning_sent(used, TURNS) == [[], ["reasoning_content"], [], ["reasoning_content"]]
    assert with_reasoning(plain, TURNS) is plain
    assert with_reasoning(used, LOOP_TEXT) is used


def test_a_message_without_reasoning_has_the_field_where_a_server_insists_on_it() -> None:
    turn = with_reasoning(History().turn(("tool_group", 5, 1), status=TurnStatus.RUNNING), TURNS)
    sent = assemble(alone(turn)).messages
    assert sent[2]["reasoning_content"] == " ", "Moonshot takes an empty text for a missing one"


@pytest.mark.parametrize("rule", [LOOP, LOOP_TEXT, TURNS])
def test_what_is_sent_is_counted_and_nothing_else_changes(rule: ReasoningRule) -> None:
    turn = running(History(), ("tool_group", 5, 2))
    without, marked = alone(turn).prompt, alone(with_reasoning(turn, rule)).prompt
    assert marked.wire_tokens - without.wire_tokens == turn.messages[1].reasoning_tokens
    assert sum(marked.regions().values()) == marked.wire_tokens


def test_a_block_costs_its_text_or_what_is_sealed_in_it_whichever_is_more() -> None:
    shown: JsonObject = {"type": "thinking", "thinking": "x" * 400, "signature": "s" * 16}
    sealed: JsonObject = {"type": "thinking", "thinking": "digest", "signature": "s" * 1600}
    hidden: JsonObject = {"type": "redacted_thinking", "data": "d" * 160}
    assert reasoning_tokens("x" * 400, [shown], estimate) == 100
    assert reasoning_tokens("digest", [sealed], estimate) == 300
    assert reasoning_tokens("digest", [sealed, hidden], estimate) == 330
    assert reasoning_tokens("x" * 40, [], estimate) == 10
    assert reasoning_tokens(None, [], estimate) == 0


@given(snapshots(policies()), st.sampled_from((LOOP, LOOP_TEXT, TURNS)))
def test_a_prompt_with_reasoning_is_rebuilt_exactly_from_its_references(
    snapshot: Snapshot, rule: ReasoningRule
) -> None:
    turns, current = tuple(map(thoughtful, snapshot.past.turns)), thoughtful(snapshot.current)
    marked = [with_reasoning(turn, rule) for turn in (*turns, current)]
    taken = decide(replace(snapshot, past=past_of(marked[:-1]), current=marked[-1]))
    assembled = assemble(ready_of(taken))
    blocks = assembled.blocks
    stored = {message.seq: message for turn in (*turns, current) for message in turn.messages}
    messages, _ = rebuild(assembled.refs, *read_back(needed_for(assembled.refs), blocks, stored))
    assert messages == assembled.messages


@pytest.mark.parametrize(("rule", "kind"), [(TURNS, "kt"), (LOOP, "kb")])
def test_a_shortened_message_is_counted_and_rebuilt_with_the_reasoning_that_it_is_sent_with(
    rule: ReasoningRule, kind: str
) -> None:
    turn = History().turn(("tool_group", 5, 1), ("tool_group", 5, 1), status=TurnStatus.RUNNING, call_tokens=800)
    turn = thoughtful(turn)
    marked = with_reasoning(turn, rule)
    ready = plan(snapshot_of((), marked, input_budget=1500), estimate)
    assert isinstance(ready, Ready)
    assembled = assemble(ready)
    assert [ref[0] for ref in assembled.refs["items"] if ref[0][0] == "k"] == [kind]
    stored = {message.seq: message for message in turn.messages}
    assert SentHashes(assembled.blocks, stored).sha256(assembled.refs) == assembled.sha256
    parts = list(rebuilt_parts(assembled.refs, assembled.blocks, stored))
    assert [part.sent for part in parts] == list(assembled.messages)
    rows = [rebuilt_row(part, None, estimate, flat_image_tokens).tokens for part in parts]
    assert rows == [row.tokens for row in layout_of(ready.prompt)]
    of_reasoning = 2 * turn.messages[1].reasoning_tokens
    without = [{name: value for name, value in each.items() if "reasoning" not in name} for each in assembled.messages]
    assert sum(rows) == counted_tokens(without) + of_reasoning


def test_references_of_prompts_from_before_reasoning_was_sent_are_still_read() -> None:
    turn = thoughtful(History().turn(("assistant", 3, 1)))
    block = Block("system", "Be brief.")
    refs: JsonObject = {"items": [["b", block.sha256, "system"], ["m", 1, 2]], "tools": None}
    messages, _ = rebuild(refs, {block.sha256: block.text}, {message.seq: message for message in turn.messages})
    assert [sorted(message) for message in messages] == [["content", "role"]] * 3
