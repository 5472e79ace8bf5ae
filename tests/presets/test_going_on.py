"""No session is refused for ever: what the service does by itself, and that what an error advises works."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.types import JsonObject
from app.engine.policy.policy import PRESETS
from tests.api.conftest import assert_problem
from tests.presets.design_service import Design, actions, reply, words
from tests.providers.server import Answer, Play, Seen

WINDOW = 16_000
SMALLER = 8_000


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
def test_a_large_message_that_no_longer_fits_is_left_out_or_summarized_and_the_session_goes_on(
    design: Design, preset: str, fails: bool
) -> None:
    session = design.session({"preset": preset, "max_context_tokens": WINDOW})
    design.turn(session, "Hello.")
    if fails:
        design.model.script[:] = [Answer({"error": {"message": "no"}}, status=400)]
    design.http.post(f"{session}/turns", json={"content": words(8_000)})
    design.model.script[:] = [reply()]
    policy = {"preset": preset, "max_context_tokens": SMALLER}
    context = design.turn(session, "And now?", policy=policy)["context"]
    assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]
    assert {action["kind"] for action in actions(context)} <= {"summary_folded", "turn_dropped"}
    design.turn(session, "And then?", policy=policy)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_large_message_whose_call_failed_can_be_sent_again(design: Design, preset: str) -> None:
    session, message = design.session({"preset": preset, "max_context_tokens": WINDOW}), {"content": words(7_500)}
    design.model.script[:] = [Answer({"error": {"message": "no"}}, status=400)]
    assert_problem(design.http.post(f"{session}/turns", json=message), 502, "provider_error")
    design.model.script[:] = [reply()]
    turn = design.turn(session, **message)
    assert design.prompt(session, turn)[-1]["content"] == message["content"]


def test_many_small_pins_are_named_as_a_whole_and_removing_so_many_tokens_helps(design: Design) -> None:
    session = design.session({"max_context_tokens": WINDOW})
    for at in range(20):
        design.pin(session, f"p{at}", words(800))
    problem = _refused(design, session, content="Hello.")
    [advice] = problem["recovery"]["shorten"]
    assert (advice["item"], problem["recovery"]["or"]) == ("pins", "start a new session")
    for at in range(advice["by_tokens"] // 800 + 1):
        assert design.http.delete(f"{session}/pins/p{at}").status_code == 204
    design.turn(session, "Hello.")


def test_tools_are_named_as_a_whole_and_fewer_tools_or_a_larger_window_help(design: Design) -> None:
    session = design.session({"max_context_tokens": WINDOW})
    tools: list[JsonObject] = [
        {"type": "function", "function": {"name": f"t{at}", "description": words(2_000), "parameters": {}}}
        for at in range(8)
    ]
    problem = _refused(design, session, content="Hello.", tools=tools)
    [advice] = problem["recovery"]["shorten"]
    assert (advice["item"], problem["recovery"]["or"]) == ("tools", "use a model with a larger window")
    design.turn(session, "Hello.", tools=tools[advice["by_tokens"] // 2_000 + 1 :])
    design.turn(session, "Hello.", tools=tools, policy={"max_context_tokens": 2 * WINDOW})


def test_without_automatic_summaries_the_new_session_that_a_refusal_names_takes_the_message(design: Design) -> None:
    policy = {"max_context_tokens": WINDOW, "auto_summarize": False}
    session = design.session(policy)
    design.turn(session, words(8_000))
    problem = _refused(design, session, content=words(6_000))
    assert problem["recovery"]["or"] == "start a new session"
    design.turn(design.session(policy), words(6_000))
    design.turn(session, words(6_000), policy={"protected_turns": 0, "auto_summarize": True})


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "failed"])
def test_a_message_that_the_provider_refuses_can_be_removed_from_its_session(design: Design, answered: bool) -> None:
    session = design.session({})
    design.turn(session, "Hello.")
    design.model.script[:] = [reply() if answered else _refuses("blurred")]
    design.http.post(f"{session}/turns", json={"content": "See the blurred picture."})
    design.model.script[:] = [_refuses("blurred")]
    for _ in range(2):
        assert_problem(design.http.post(f"{session}/turns", json={"content": "Go on."}), 502, "provider_error")
    items = f"/v1/conversations/conv_{session.rpartition('/')[2].replace('-', '')}/items"
    [blurred] = [item["id"] for item in design.get(items)["data"] if "blurred" in str(item)]
    assert design.http.delete(f"{items}/{blurred}").status_code == 200
    turn = design.turn(session, "Go on.")
    assert "blurred" not in str(design.prompt(session, turn))


def _refused(design: Design, session: str, **body: Any) -> Any:
    return assert_problem(design.http.post(f"{session}/turns", json=body), 422, "context_budget_exceeded")


def _refuses(word: str) -> Play:
    """A provider that refuses every prompt with this word."""
    answers = reply()

    def play(request: Seen) -> Any:
        if word in str(request.json["messages"]):
            return Answer({"error": {"message": f"invalid message: {word}"}}, status=400)
        return answers(request) if callable(answers) else answers

    return play
