"""`guarded`, rule by rule of its design (docs/policies.md), over HTTP."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import httpx

from tests.api.conftest import PATIENCE_S, assert_problem
from tests.commands.test_cli import address, environment, serving
from tests.presets.design_service import Design, actions, reply, roles, words
from tests.providers.server import Answer, Play, Seen
from tests.services.service import chat, model

PUBLISHED: dict[str, Any] = {
    "CONTEXT_MAX_OUTPUT_TOKENS": 2048,
    "CONTEXT_SUMMARY_TRIGGER_RATIO": 0.70,
    "CONTEXT_PRUNE_TRIGGER_RATIO": 0.90,
    "CONTEXT_MANDATORY_SUMMARY_TURN": 8,
    "CONTEXT_DEFAULT_MODEL_LIMIT": 8192,
    "CONTEXT_RECENT_TURNS_TO_KEEP": 4,
}
SMALL: dict[str, Any] = {"preset": "guarded", **PUBLISHED, "max_context_tokens": 16_000}
BUDGET = 16_000 - 2048 - 1024
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
]


def test_settings_are_accepted_by_their_environment_names(design: Design) -> None:
    session = design.session({"preset": "guarded", **PUBLISHED})
    assert design.get(session)["policy"] == {
        "preset": "guarded",
        "max_output_tokens": 2048,
        "summary_trigger_ratio": 0.70,
        "prune_trigger_ratio": 0.90,
        "mandatory_summary_turn": 8,
        "unknown_window_tokens": 8192,
        "protected_turns": 4,
    }


def test_every_designs_own_names_are_listed_with_the_fields_they_become(design: Design) -> None:
    presets = {preset["name"]: preset for preset in design.get("/v1/policies")["presets"]}
    assert set(presets) == {"guarded", "post_turn", "rolling", "allocated", "turn_atomic"}
    for name, preset in presets.items():
        published = {
            each["spellings"][0]: each["published"] for each in preset["names"] if each["published"] is not None
        }
        assert published
        design.session({"preset": name, **published})
        assert all(field in preset["policy"] for each in preset["names"] for field in each["fields"])


def test_a_value_of_absurd_effect_is_refused_unless_it_is_allowed(design: Design) -> None:
    extremes: tuple[dict[str, Any], ...] = (
        {"CONTEXT_MAX_OUTPUT_TOKENS": 16},
        {"summarize_token_percent": 0.75},
        {"preset": "allocated", "allocation": {"goal_pct": 1.5, "pinned_files_pct": 0.5}},
    )
    session = design.session({})
    for policy in extremes:
        assert_problem(design.http.post("/v1/sessions", json={"policy": policy}), 422, "invalid_request")
        turn = {"content": "Hello.", "policy": policy}
        assert_problem(design.http.post(f"{session}/turns", json=turn), 422, "invalid_request")
        assert_problem(design.http.post(f"{session}/simulate", json={"policies": [policy]}), 422, "invalid_request")
        design.session(policy | {"allow_extreme": True})


def test_output_and_overhead_are_reserved_and_the_rest_is_the_input_budget(design: Design) -> None:
    context = design.turn(design.session(SMALL), "Hello.")["context"]
    assert (context["output_reserve"], context["overhead_reserve"]) == (2048, 1024)
    assert context["input_budget"] == BUDGET
    small = design.turn(design.session(SMALL | {"max_context_tokens": 4000}), "Hello.")["context"]
    assert (small["output_reserve"], small["overhead_reserve"]) == (800, 1024)


def test_a_window_without_room_for_input_is_refused(design: Design) -> None:
    session = design.session(SMALL | {"max_context_tokens": 1280})
    answer = design.http.post(f"{session}/turns", json={"content": "Hello."})
    assert_problem(answer, 422, "context_budget_exceeded")


def test_an_unknown_window_is_8192_tokens(design: Design) -> None:
    session = design.session({"preset": "guarded", **PUBLISHED}, model_alias="unknown")
    assert design.get(f"{session}/context")["model_context_limit"] == 8192


def test_a_prompt_at_seventy_percent_of_the_budget_is_summarized(design: Design) -> None:
    session = design.session(SMALL)
    contexts = [*design.turns(session, 7, words(1200)), design.turn(session, words(1200))["context"]]
    due = [context["estimated_input_tokens_before"] >= 0.70 * BUDGET for context in contexts]
    assert any(due)
    assert [context["summary_triggered"] for context in contexts][: due.index(True) + 1] == [False] * due.index(
        True
    ) + [True]


def test_eight_turns_are_summarized_however_small(design: Design) -> None:
    session = design.session(SMALL)
    contexts = design.turns(session, 9, words(200))
    assert [context["summary_triggered"] for context in contexts] == [False] * 8 + [True]


def test_a_prompt_at_ninety_percent_after_the_summary_is_pruned_oldest_first_and_users_text_is_kept(
    design: Design,
) -> None:
    session = design.session(SMALL | {"protected_share": None, "auto_summarize": False})
    design.model.script[:] = [reply(words(2500))]
    contexts = design.turns(session, 6, words(100))
    assert contexts[-1]["prune_triggered"]
    assert {action["kind"] for action in actions(contexts[-1])} == {"assistant_dropped"}
    assert contexts[-1]["estimated_input_tokens_after_prune"] < 0.90 * BUDGET
    turn = design.turn(session, "And now?")
    sent = roles(design.prompt(session, turn))
    assert sent.count("user") == 7
    assert sent[1:3] == ["user", "user"], "the oldest answer left first"


def test_a_prompt_still_over_the_budget_is_a_422_that_states_what_to_do(design: Design) -> None:
    session = design.session(SMALL)
    answer = design.http.post(f"{session}/turns", json={"content": words(14_000)})
    problem = assert_problem(answer, 422, "context_budget_exceeded")
    assert problem["recovery"]["shorten"]
    assert problem["recovery"]["or"] == "use a model with a larger window"


def test_the_prompt_is_system_goal_pins_summary_recent_window_and_the_users_message(design: Design) -> None:
    session = design.session(SMALL | {"recall": {"enabled": False}}, room_goal="Close the year.")
    design.pin(session, "rule.md", "Never touch account 4711.")
    design.turns(session, 9, words(200))
    sent = design.prompt(session, design.turn(session, "And now?"))
    starts = (
        "You keep the books.",
        "Goal of this conversation",
        "Pinned for this conversation",
        "What follows is a record",
    )
    assert all(message["content"].startswith(start) for message, start in zip(sent, starts, strict=False))
    assert roles(sent) == ["system"] * 4 + ["user", "assistant"] * 5 + ["user"]


def test_a_summary_has_prose_facts_questions_decisions_and_actions_and_the_range_it_covers(design: Design) -> None:
    session = design.session(SMALL)
    design.turns(session, 9, words(200))
    (summary,) = design.summaries(session)
    parts = {"summary_text", "key_facts", "open_questions", "decisions", "action_items"}
    assert summary.keys() >= parts | {"id", "from_message_id", "to_message_id", "created_at"}


def test_a_summary_that_fails_is_made_without_a_model(design: Design) -> None:
    def fails(request: Seen) -> Answer:
        return Answer({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)

    design.model.script[:] = [model("Noted.", fails)]
    session = design.session(SMALL)
    contexts = design.turns(session, 9, words(200))
    assert contexts[-1]["summary_triggered"]
    assert [summary["origin"] for summary in design.summaries(session)] == ["fallback"]


def test_every_turn_has_an_audit_of_what_was_decided(design: Design) -> None:
    session = design.session(SMALL)
    turn = design.turn(session, "Hello.")
    audit = design.get(f"{session}/turns/{turn['turn']['id']}/audit")
    recorded = {"model_context_limit", "input_budget", "estimated_input_tokens_before"}
    recorded |= {"estimated_input_tokens_after_summary", "estimated_input_tokens_after_prune", "summary_triggered"}
    assert audit.keys() >= recorded | {"prune_triggered", "overflow_rejected", "model_alias", "created_at"}


def test_the_counters_of_the_design_are_metrics(design: Design) -> None:
    design.turn(design.session(SMALL), "Hello.")
    metrics = design.http.get("/metrics").text
    for name in ("context_summary_count", "context_prune_count", "context_overflow_reject_count"):
        assert f"{name}_total" in metrics
    assert "avg_prompt_tokens_per_turn" in metrics


def test_system_layers_the_latest_message_and_the_results_of_an_unresolved_turn_are_never_dropped(
    design: Design,
) -> None:
    session = design.session(SMALL | {"auto_summarize": False}, instructions="Be brief.", room_goal="Close the year.")
    design.pin(session, "rule.md", "Never touch account 4711.")
    design.model.script[:] = [reply(words(800))]
    design.turns(session, 5, "A point.")
    design.model.script[:] = [_calls_a_tool_and_is_down_after_its_second_result()]
    turn = design.turn(session, "Look it up.", tools=TOOLS)["turn"]
    for number, result in enumerate((words(280), words(2000)), start=1):
        (call,) = design.get(f"{session}/turns/{turn['id']}")["tool_calls"]
        outputs = {"outputs": [{"tool_call_id": call["id"], "content": result}]}
        answer = design.http.post(f"{session}/turns/{turn['id']}/tool-outputs", json=outputs)
        assert answer.is_success == (number == 1), answer.text
    design.model.script[:] = [reply()]
    latest = words(12_200)
    turn = design.turn(session, latest)
    kinds = {action["kind"] for action in actions(turn["context"])}
    assert kinds == {"assistant_dropped", "tool_group_dropped", "tool_result_shortened"}
    sent = design.prompt(session, turn)
    systems = [message["content"] for message in sent if message["role"] == "system"]
    for text in ("You keep the books.", "Be brief.", "Close the year.", "Never touch account 4711."):
        assert any(text in system for system in systems), text
    said = [message for message in sent if message["role"] != "system"]
    assert roles(said) == ["user"] * 6 + ["assistant", "tool", "user"]
    assert [message["content"] for message in said if message["role"] == "user"][-2:] == ["Look it up.", latest]
    assert said[-2]["tool_call_id"] == said[-3]["tool_calls"][0]["id"] == "call_1", "the newest result, shortened"


def test_messages_that_the_summarys_facts_decisions_and_questions_cite_are_kept(design: Design) -> None:
    session = design.session(SMALL | {"recall": {"enabled": False}})
    design.model.script[:] = [model(words(400), _cites_an_answer_in_each_part)]
    design.turns(session, 9, "A point.")
    design.model.script[:] = [reply()]
    (summary,) = design.summaries(session)
    parts = ("key_facts", "decisions", "open_questions", "action_items")
    cited = [message_id for part in parts for item in summary[part] for message_id in item["message_ids"]]
    assert len(set(cited)) == 4
    turn = design.turn(session, words(11_350), policy=SMALL | {"auto_summarize": False})
    assert {action["kind"] for action in actions(turn["context"])} == {"assistant_dropped"}
    layout = design.get(f"{session}/turns/{turn['turn']['id']}/prompt")["layout"]
    sent = {row["message_id"] for row in layout}
    answers = [
        each["id"] for each in design.get(f"{session}/messages?limit=100")["items"] if each["role"] == "assistant"
    ]
    assert [answer for answer in answers if answer in sent] == cited[:3], "what an action cites may leave"


def test_if_the_tokenizer_fails_tokens_are_a_quarter_of_the_characters_plus_a_quarter(
    database_url: str, tmp_path: Path
) -> None:
    """A damaged vocabulary is installed, in front of the sound one of this environment."""
    packages = tmp_path / "packages"
    installed, data = packages / "bpe_openai-99.dist-info", packages / "bpe_openai" / "data"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: bpe-openai\nVersion: 99\n")
    data.mkdir(parents=True)
    (data / "o200k_base.tiktoken.gz").write_bytes(b"damaged")
    path = os.pathsep.join((str(packages), environment()["PYTHONPATH"]))
    with (
        serving(tmp_path, DATABASE_URL=database_url, PYTHONPATH=path) as (_, printed),
        httpx.Client(base_url=address(printed), timeout=PATIENCE_S, trust_env=False) as http,
    ):
        session = f"/v1/sessions/{http.post('/v1/sessions', json={'policy': SMALL}).json()['id']}"
        turn = http.post(f"{session}/turns", json={"content": "x" * 1001}).json()["turn"]
        audit = http.get(f"{session}/turns/{turn['id']}/audit").json()
        message, _ = http.get(f"{session}/messages").json()["items"]
    assert (message["token_estimate"], message["token_encoding"]) == (math.ceil(1001 / 4 * 1.25), "heuristic")
    assert audit["estimator"] == "heuristic"
    assert "The tokenizer of o200k_base failed (BadGzipFile" in (tmp_path / "log").read_text()


def _calls_a_tool_and_is_down_after_its_second_result() -> Play:
    def play(request: Seen) -> Answer:
        results = sum(message["role"] == "tool" for message in request.json["messages"])
        if results == 2:
            return Answer({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)
        call = {"id": f"call_{results}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return Answer({"id": "c", "model": "m", "choices": [choice], "usage": None})

    return play


def _cites_an_answer_in_each_part(request: Seen) -> Answer:
    """Of the turns that stay raw, which the summarizer is shown."""
    around = json.loads(request.json["messages"][-1]["content"])["context_messages"]
    answers = [message["id"] for message in around if message["role"] == "assistant"]
    parts = ("key_facts", "decisions", "open_questions", "action_items")
    cited: dict[str, Any] = {
        part: [{"text": f"Of {part}.", "message_ids": [answer]}] for part, answer in zip(parts, answers, strict=False)
    }
    return chat(json.dumps({"summary_text": "The earlier part.", **cited}))
