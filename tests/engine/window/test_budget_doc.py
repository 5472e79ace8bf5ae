"""The worked example of `docs/budget.md` is what the engine computes."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil
from pathlib import Path

import orjson

from app.domain.types import Pin, SummaryBody, ToolCall, ToolDefinition, Turn
from app.engine.messages.tokens import (
    MESSAGE_FRAMING_TOKENS,
    PROMPT_FRAMING_TOKENS,
    TOOL_DEFINITION_FRAMING_TOKENS,
    message_tokens,
    tools_tokens,
)
from app.engine.policy.budget import budget_for
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.block import render_summary
from app.engine.window.past import past_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan, with_summary
from app.engine.window.prompt import pin_text
from app.engine.window.snapshot import Snapshot
from app.engine.window.stages import STAGES
from app.engine.window.window import lay_out
from tests.engine.histories import History, estimate, text_of
from tests.engine.readings import items_of
from tests.engine.turn_stand_in import new_snapshot

_DOCUMENT = (Path(__file__).parents[3] / "docs" / "budget.md").read_text()
_POLICY = ContextPolicy()
_LONG_MESSAGE_TOKENS = 12_200


def _table(heading: str) -> dict[str, int]:
    """The figures of one table of the document, by the words of their row."""
    rows = re.search(rf"^\| {heading} \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", _DOCUMENT, re.MULTILINE)
    assert rows, f"no table {heading!r}"
    cells = [[cell.strip() for cell in row.split("|")] for row in rows[1].splitlines()]
    return {row[1]: int(row[2].replace(",", "")) for row in cells}


_GIVEN = _table("given")
_CALIBRATION = float(re.findall(r"calibration of this alias stands at (\d+\.\d+)", _DOCUMENT)[0])


def test_the_steps_of_the_document_are_the_stages_in_their_order() -> None:
    steps = re.findall(r"^\d+\. \*\*(.+?)\*\*", _DOCUMENT, re.MULTILINE)
    named = [[word for word in step.lower().split() if word != "the"] for step in steps[3:-2]]
    stages = [stage.__name__.split("_") for stage, _ in STAGES]
    assert [words[: len(stage)] for words, stage in zip(named, stages, strict=True)] == stages


def test_each_part_adds_to_its_texts_what_the_document_says() -> None:
    adds, tool = _table("part of a request"), {"type": "function", "function": {"name": "f"}}
    assert adds["prompt"] == PROMPT_FRAMING_TOKENS
    assert adds["message"] == MESSAGE_FRAMING_TOKENS
    assert adds["name of a speaker"] == message_tokens(None, len, name="Anna") - len("Anna")
    called = message_tokens(None, len, tool_calls=[ToolCall("c1", "look", "{}")])
    assert adds["tool call: id, name, arguments"] == called - len("c1look{}")
    definition = '{"function":{"name":"f"},"type":"function"}'
    assert adds["tool definition: its JSON with sorted keys and no blanks"] == tools_tokens([tool], len) - len(
        definition
    )


def test_the_window_is_divided_as_the_document_says() -> None:
    budget = _snapshot().budget
    assert _table("the window") == {
        "output reserve": budget.output_reserve,
        "overhead reserve": budget.overhead_reserve,
        "input budget": budget.input_budget,
        "summary due from": ceil((_POLICY.summary_trigger_ratio or 0) * budget.input_budget),
        "prune from": ceil(_POLICY.prune_trigger_ratio * budget.input_budget),
        "largest summary": int(_POLICY.summary_max_ratio * budget.input_budget),
    }


def test_the_prompt_before_costs_what_the_document_says_and_a_summary_is_due() -> None:
    snapshot = _snapshot()
    prompt = lay_out(snapshot, estimate).prompt
    due = plan(snapshot, estimate)
    assert isinstance(due, SummaryDue)
    assert due.snapshot.log is not None
    assert _table("before") == {
        "content": sum(item.tokens for item in items_of(prompt)),
        "framing": prompt.framing_tokens,
        "wire": due.snapshot.log.wire_before,
        "counted": due.snapshot.log.tokens_before,
    }


def test_the_fold_costs_what_the_document_says_and_the_turn_is_sent() -> None:
    snapshot = _snapshot()
    due = plan(snapshot, estimate)
    assert isinstance(due, SummaryDue)
    after = new_snapshot(snapshot, due.fold, _body(_GIVEN["the new summary"]))
    assert after.summary is not None
    after = replace(after, log=with_summary(due.snapshot, due.fold, after.summary, estimate).log)
    ready = plan(after, estimate, may_summarize=False)
    assert isinstance(ready, Ready)
    assert not ready.accounts.prune_triggered
    assert _table("the summary") == {
        "replaced": due.fold.folded_tokens,
        "cap of the new block": due.fold.cap_tokens,
        "wire after": ready.prompt.wire_tokens,
        "counted after": ready.accounts.tokens_after_summary,
    }


def test_the_long_message_is_refused_with_the_documents_figures() -> None:
    usual_tokens = _GIVEN["the user's message"]
    assert f"been {_LONG_MESSAGE_TOKENS:,} tokens instead of {usual_tokens}:" in _DOCUMENT
    snapshot = _snapshot(user_tokens=_LONG_MESSAGE_TOKENS)
    window = lay_out(snapshot, estimate)
    refused = plan(snapshot, estimate)
    assert isinstance(refused, Refused)
    shorten = {advice["region"]: advice["by_tokens"] for advice in refused.overflow.recovery["shorten"]}
    assert _table("the long message") == {
        "never dropped": window.with_items("summary", ()).with_pieces(window.current).input_tokens,
        "counted at the end": refused.window.input_tokens,
        "over by": refused.overflow.budget["over_by"],
        "shorten the message by": shorten["user"],
    }
    assert [action.kind for action in refused.accounts.actions] == ["assistant_dropped"] * 7


def _snapshot(user_tokens: int | None = None) -> Snapshot:
    """The session of the document, with texts of exactly the sizes it gives."""
    history = History()
    question, answer = _GIVEN["each of 7 questions"], _GIVEN["each of 7 answers"]
    turns: tuple[Turn, ...] = tuple(history.turn(("assistant", answer, 1), user_tokens=question) for _ in range(7))
    pin = Pin("depot", "")
    pin = replace(pin, content=text_of(_GIVEN["pin"])[: _GIVEN["pin"] * 4 - len(pin_text(pin))])
    return Snapshot(
        policy=_POLICY,
        budget=budget_for(_GIVEN["window"], "catalogue", _GIVEN["CONTEXT_MAX_OUTPUT_TOKENS"]),
        layers=(("system:global", text_of(_GIVEN["system layer"])),),
        goal=text_of(_GIVEN["goal"]),
        pins=(pin,),
        summary=history.summary(_body(_GIVEN["summary"])),
        past=past_of(turns),
        current=history.turn(user_tokens=user_tokens or _GIVEN["the user's message"]),
        tools=(_tool(_GIVEN["tool definitions"]),),
        completed_since_summary=7,
        calibration_ratio=_CALIBRATION,
    )


def _body(tokens: int) -> SummaryBody:
    """A summary whose block costs so many tokens."""
    room = tokens * 4 - len(render_summary(SummaryBody("")))
    return SummaryBody(text_of(tokens)[:room])


def _tool(tokens: int) -> ToolDefinition:
    """A tool whose definition costs so many tokens."""
    function = {"name": "look_up", "description": "", "parameters": dict[str, object]()}
    bare = len(orjson.dumps({"type": "function", "function": function}))
    room = (tokens - TOOL_DEFINITION_FRAMING_TOKENS) * 4 - bare
    return {"type": "function", "function": {**function, "description": text_of(tokens)[:room]}}
