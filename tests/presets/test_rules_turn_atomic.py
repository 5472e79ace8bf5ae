"""`turn_atomic`, rule by rule of its design (docs/policies.md), over HTTP."""

from __future__ import annotations

from typing import Any

from tests.presets.design_service import Design, actions, reply, roles, words
from tests.providers.server import Answer, Play, Seen
from tests.services.service import is_summary
from tests.services.test_model_faults import strict_window

PUBLISHED: dict[str, Any] = {
    "context_window": 131_072,
    "max_tokens": 32_768,
    "summarize_message_threshold": 20,
    "summarize_token_percent": 75,
}
SMALL: dict[str, Any] = {"preset": "turn_atomic", **PUBLISHED, "context_window": 16_000, "max_tokens": 2048}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
]


def test_the_published_configuration_is_accepted_in_either_spelling(design: Design) -> None:
    spelled = ("ContextWindow", "MaxTokens", "SummarizeMessageThreshold", "SummarizeTokenPercent")
    spellings: tuple[dict[str, Any], ...] = (PUBLISHED, dict(zip(spelled, PUBLISHED.values(), strict=True)))
    for names in spellings:
        session = design.session({"preset": "turn_atomic", **names})
        assert design.get(session)["policy"] == {
            "preset": "turn_atomic",
            "max_context_tokens": 131_072,
            "unknown_window_tokens": 131_072,
            "max_output_tokens": 32_768,
            "max_messages": 20,
            "usage_threshold": 0.75,
        }


def test_a_configured_context_window_is_the_window_of_an_unknown_model(design: Design) -> None:
    session = design.session({"preset": "turn_atomic", **PUBLISHED}, model_alias="unknown")
    assert design.get(f"{session}/context")["model_context_limit"] == 131_072


def test_an_unknown_window_is_four_times_max_tokens(design: Design) -> None:
    session = design.session({"preset": "turn_atomic", "MaxTokens": 8192}, model_alias="unknown")
    assert design.get(f"{session}/context")["model_context_limit"] == 4 * 8192


def test_the_history_budget_is_the_window_less_system_summary_tools_and_max_tokens(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 3, words(300))
    now = design.get(f"{session}/context")
    regions = now["regions"]
    assert now["output_reserve"] == 2048
    fixed = regions["system"] + regions["goal"] + regions["pins"] + regions["summary"] + regions["tools"]
    assert now["history_budget"] == 16_000 - fixed - 2048


def test_at_the_message_count_a_summary_is_made_in_the_background_after_the_turn(design: Design) -> None:
    session = design.session(SMALL)
    design.model.script[:] = [reply(words(300))]
    assert not any(context["summary_triggered"] for context in design.turns(session, 10, "Point."))
    assert len(design.summarized(session)) == 1


def test_at_the_share_of_the_window_counting_the_whole_prompt_a_summary_is_made_in_the_background(
    design: Design,
) -> None:
    # Two thirds of the share are system text, which the design's own trigger does not count.
    policy = SMALL | {"summarize_message_threshold": 1000}
    session = design.session(policy, instructions=words(7700, "rule"))
    design.model.script[:] = [reply(words(500))]
    contexts = design.turns(session, 6, words(200))
    assert not any(context["summary_triggered"] for context in contexts)
    assert len(design.summarized(session)) == 1


def test_before_the_call_messages_tools_and_max_tokens_fit_the_window(design: Design) -> None:
    session = design.session(SMALL | {"auto_summarize": False})
    contexts = design.turns(session, 18, words(1000))
    for context in contexts:
        assert context["estimated_wire_tokens"] + context["output_reserve"] <= 16_000
    assert {action["kind"] for action in actions(contexts[-1])} == {"turn_dropped"}


def test_turns_are_never_cut_and_tool_sequences_stay_together(design: Design) -> None:
    design.model.script[:] = [_calls_a_tool()]
    session = design.session(SMALL | {"auto_summarize": False})
    for _ in range(10):
        answer = design.turn(session, "Look it up.", tools=TOOLS)
        (call,) = answer["turn"]["tool_calls"]
        outputs = {"outputs": [{"tool_call_id": call["id"], "content": words(1500)}]}
        answer = design.http.post(f"{session}/turns/{answer['turn']['id']}/tool-outputs", json=outputs).json()
    design.model.script[:] = [reply()]
    sent = roles(design.prompt(session, design.turn(session, "And now?")))
    assert sent[1:-1] == ["user", "assistant", "tool", "assistant"] * ((len(sent) - 2) // 4)
    assert 1 <= sent.count("tool") < 10


def _calls_a_tool() -> Play:
    answers = reply("Found.")

    def play(request: Seen) -> Answer:
        if is_summary(request) or request.json["messages"][-1]["role"] == "tool":
            return answers(request)  # type: ignore[operator, return-value, no-any-return]
        call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return Answer({"id": "c", "model": "m", "choices": [choice], "usage": None})

    return play


def test_a_rejection_by_the_provider_drops_the_oldest_half_of_the_turns_with_a_note_in_the_summary(
    design: Design,
) -> None:
    session = design.session(SMALL | {"summarize_message_threshold": 1000})
    design.turns(session, 8, words(600))
    design.model.script[:] = [strict_window(4000 + 2048)]
    turn = design.turn(session, "And now?")
    design.model.script[:] = [reply()]
    assert {action["kind"] for action in actions(turn["context"])} == {"emergency_drop"}
    (note,) = design.summaries(session)
    assert note["origin"] == "emergency"
    sent = design.prompt(session, turn)
    assert roles(sent) == ["system", "system", *["user", "assistant"] * 4, "user"]
    assert note["summary_text"] in sent[1]["content"]


def test_the_retry_after_a_rejection_keeps_the_messages_media(design: Design) -> None:
    session = design.session(SMALL | {"summarize_message_threshold": 1000})
    design.turns(session, 8, words(600))
    design.model.script[:] = [strict_window(4000 + 2048)]
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    turn = design.turn(session, [{"type": "text", "text": "What is it?"}, picture])
    design.model.script[:] = [reply()]
    assert {action["kind"] for action in actions(turn["context"])} >= {"emergency_drop"}
    assert picture in design.model.seen[-1].json["messages"][-1]["content"]


def test_tokens_may_be_counted_by_the_designs_heuristic(design: Design) -> None:
    session = design.session(SMALL | {"estimator": "heuristic"})
    context = design.turn(session, "x" * 1000)["context"]
    assert context["regions"]["user"] == 1000 * 2 // 5


def test_the_history_holds_messages_alone_and_no_system_text(design: Design) -> None:
    session = design.session(SMALL, instructions="Be brief.")
    design.turn(session, "Hello.")
    stored = design.get(f"{session}/messages")["items"]
    assert {message["role"] for message in stored} == {"user", "assistant"}
