"""`post_turn`, rule by rule of its design (docs/policies.md), over HTTP."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import assert_problem
from tests.presets.design_service import Design, reply, roles, words

PUBLISHED: dict[str, Any] = {
    "summarization_threshold": 0.80,
    "summarization_preserve_turns": 5,
    "summarization_provider": "cerebras",
    "summarization_model": "llama3.1-8b",
}
SMALL: dict[str, Any] = {"preset": "post_turn", **PUBLISHED, "max_context_tokens": 16_000}


def test_the_published_configuration_is_accepted_unchanged_with_the_summarizer_as_an_alias(design: Design) -> None:
    session = design.session({"preset": "post_turn", **PUBLISHED})
    assert design.get(session)["policy"] == {
        "preset": "post_turn",
        "usage_threshold": 0.80,
        "protected_turns": 5,
        "summary_model": "llama3.1-8b",
    }
    by_model = design.session({"preset": "post_turn", "summarization_model": "fast-summarizer"})
    assert design.get(by_model)["policy"]["summary_model"] == "llama3.1-8b"


def test_a_summarizer_that_the_catalogue_does_not_have_is_refused(design: Design) -> None:
    policy = {"preset": "post_turn", "summarization_provider": "xai", "summarization_model": "nobody"}
    problem = assert_problem(design.http.post("/v1/sessions", json={"policy": policy}), 422, "invalid_request")
    assert "'xai/nobody'" in problem["detail"]
    assert problem["errors"][0]["where"] == "body.policy.summarization_model"


def test_names_that_say_different_things_are_refused_by_name(design: Design) -> None:
    policy = {"preset": "post_turn", "summarization_threshold": 0.8, "usage_threshold": 0.7}
    problem = assert_problem(design.http.post("/v1/sessions", json={"policy": policy}), 422, "invalid_request")
    assert "summarization_threshold" in problem["detail"]
    assert "usage_threshold" in problem["detail"]


def test_below_the_threshold_nothing_is_summarized(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 9, words(1000))
    assert design.summaries(session) == []


def test_usage_of_eighty_percent_is_summarized_after_the_turn_by_the_fast_model_and_five_turns_are_kept(
    design: Design,
) -> None:
    session = design.session(SMALL)
    before = len(design.asked_to_summarize())
    design.model.script[:] = [reply(words(600))]
    contexts = design.turns(session, 12, words(400))
    assert not any(context["summary_triggered"] for context in contexts), "the client waits for no summary"
    (summary,) = design.summarized(session)
    assert {request.json["model"] for request in design.asked_to_summarize()[before:]} == {"fast-summarizer"}
    turn = design.turn(session, "And now?")
    sent = design.prompt(session, turn)
    # The summary stands where the older turns were, and the newest five are as they were said.
    assert roles(sent) == ["system", "system", *["user", "assistant"] * 5, "user"]
    assert summary["status"] == "active"
    assert summary["summary_text"] in sent[1]["content"]


def test_the_threshold_and_the_number_of_turns_can_be_raised(design: Design) -> None:
    raised = SMALL | {"summarization_threshold": 0.9, "summarization_preserve_turns": 10}
    session = design.session(raised)
    assert design.get(session)["policy"]["usage_threshold"] == 0.9
    assert design.get(session)["policy"]["protected_turns"] == 10
    design.model.script[:] = [reply(words(600))]
    design.turns(session, 12, words(400))
    (summary,) = design.summarized(session)
    sent = design.prompt(session, design.turn(session, "And now?"))
    assert roles(sent) == ["system", "system", *["user", "assistant"] * 10, "user"]
    assert summary["summary_text"] in sent[1]["content"]


def test_summaries_can_be_made_on_request_only(design: Design) -> None:
    session = design.session(SMALL | {"auto_summarize": False})
    design.turns(session, 9, words(1000))
    assert design.summaries(session) == []
    assert design.http.post(f"{session}/summaries", json={}).status_code == 201
    assert len(design.summaries(session)) == 1


def test_the_conversation_continues_past_the_limit(design: Design) -> None:
    session = design.session(SMALL | {"max_context_tokens": 8000})
    design.model.script[:] = [reply(words(700))]
    for context in design.turns(session, 14, words(100)):
        assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]
