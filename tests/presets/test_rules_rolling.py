"""`rolling`, rule by rule of its design (docs/policies.md), over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.api.conftest import assert_problem
from tests.presets.design_service import Design, actions, roles, words
from tests.providers.server import Answer, Seen
from tests.services.service import chat, model

PUBLISHED: dict[str, Any] = {"context_usage_threshold": 0.8, "context_summary_model": ""}
SMALL: dict[str, Any] = {"preset": "rolling", **PUBLISHED, "max_context_tokens": 16_000}


def test_the_published_configuration_is_accepted_unchanged(design: Design) -> None:
    session = design.session({"preset": "rolling", **PUBLISHED})
    assert design.get(session)["policy"] == {"preset": "rolling", "usage_threshold": 0.8, "summary_model": ""}


def test_a_first_message_is_sent_as_it_is(design: Design) -> None:
    session = design.session(SMALL)
    assert roles(design.prompt(session, design.turn(session, "Hello."))) == ["system", "user"]


def test_below_the_threshold_the_full_history_is_sent(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 9, words(1000))
    turn = design.turn(session, "And now?")
    assert roles(design.prompt(session, turn)) == ["system", *["user", "assistant"] * 9, "user"]
    assert design.summaries(session) == []


def test_over_the_threshold_older_messages_are_summarized_before_the_call_and_recent_ones_that_fit_are_kept(
    design: Design,
) -> None:
    session = design.session(SMALL)
    contexts = design.turns(session, 13, words(1000))
    assert any(context["summary_triggered"] for context in contexts)
    turn = design.turn(session, "And now?")
    sent = design.prompt(session, turn)
    assert "The earlier part." in sent[1]["content"]
    assert 4 <= roles(sent).count("user") - 1 < 13


def test_the_threshold_counts_system_text_summary_messages_and_the_users_message(design: Design) -> None:
    session = design.session(SMALL, instructions=words(2000, "rule"))
    design.turns(session, 8, words(1000))
    assert design.summaries(session) == []
    assert design.turn(session, words(2500))["context"]["summary_triggered"]


def test_a_summary_is_extended_by_the_new_messages_alone_and_never_started_again(design: Design) -> None:
    session = design.session(SMALL)
    before = len(design.asked_to_summarize())
    for number in range(24):
        design.turn(session, f"Point {number:02}. {words(1000)}")
    made = design.summarized(session, 2)
    asked = [json.loads(request.json["messages"][-1]["content"]) for request in design.asked_to_summarize()[before:]]
    first, second = (set(re.findall(r"Point \d\d", json.dumps(document["messages"]))) for document in asked[:2])
    assert first
    assert second
    assert not first & second
    assert "The earlier part." in json.dumps(asked[1])
    assert made[0]["from_message_id"] == made[1]["from_message_id"]


def test_the_summary_is_stored_and_only_later_messages_are_sent_raw(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 13, words(1000))
    calls = len(design.asked_to_summarize())
    turn = design.turn(session, "And now?")
    assert len(design.asked_to_summarize()) == calls, "no second summary for the same messages"
    assert turn["context"]["regions"]["summary"] > 0


def test_stored_messages_are_never_deleted(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 13, words(1000))
    assert design.summaries(session)
    assert len(design.get(f"{session}/messages?limit=100")["items"]) == 26


def test_an_empty_summary_model_is_the_sessions_own_and_a_named_one_is_called(design: Design) -> None:
    for named, asked in (("", "gpt-4o"), ("llama3.1-8b", "fast-summarizer")):
        before = len(design.asked_to_summarize())
        session = design.session(SMALL | {"context_summary_model": named})
        design.turns(session, 13, words(1000))
        assert {request.json["model"] for request in design.asked_to_summarize()[before:]} == {asked}


def test_a_single_message_that_is_too_long_is_refused_with_what_to_shorten(design: Design) -> None:
    session = design.session(SMALL)
    answer = design.http.post(f"{session}/turns", json={"content": words(15_000)})
    problem = assert_problem(answer, 422, "context_budget_exceeded")
    assert problem["recovery"]["shorten"][0]["region"] == "user"


def test_a_prompt_still_over_after_a_summary_gets_a_shorter_summary_and_is_then_pruned(design: Design) -> None:
    caps: list[int] = []

    def as_large_as_allowed(request: Seen) -> Answer:
        caps.append(json.loads(request.json["messages"][-1]["content"])["max_tokens"])
        items: dict[str, Any] = {part: [] for part in ("key_facts", "open_questions", "decisions", "action_items")}
        return chat(json.dumps({"summary_text": words(caps[-1]), **items}))

    session = design.session(SMALL)
    design.model.script[:] = [model(words(1000), as_large_as_allowed)]
    design.turns(session, 8, "A point.")
    assert caps == []
    context = design.turn(session, words(7000))["context"]
    assert caps[1:] == [caps[0] // 2]
    assert context["summary_triggered"]
    assert len(design.summaries(session)) == 1, "the larger one was never stored"
    assert context["regions"]["summary"] <= caps[1]
    assert {action["kind"] for action in actions(context)} == {"summary_folded", "assistant_dropped"}
    assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]


def test_a_model_with_another_window_moves_the_threshold(design: Design) -> None:
    session = design.session({"preset": "rolling", **PUBLISHED})
    design.turns(session, 8, words(1000))
    larger = design.get(f"{session}/context")["summary_trigger_tokens"]
    assert design.http.patch(session, json={"model_alias": "unknown"}).status_code == 200
    smaller = design.get(f"{session}/context")
    assert (larger, smaller["model_context_limit"]) == (int(0.8 * 128_000), 8192)
    assert smaller["summary_trigger_tokens"] <= 0.8 * 8192
    assert design.turn(session, "And now?")["context"]["summary_triggered"]
