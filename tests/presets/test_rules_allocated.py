"""`allocated`, rule by rule of its design (docs/policies.md), over HTTP."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import assert_problem
from tests.presets.design_service import Design, actions, reply, roles, words

PUBLISHED: dict[str, Any] = {
    "max_context_tokens": 120_000,
    "allocation": {"goal_pct": 0.15, "pinned_files_pct": 0.50, "map_pct": 0.25, "reserved_for_output_pct": 0.10},
    "context_priority": ["goal", "pinned_files_by_relevance", "map_summary", "history"],
}
SMALL: dict[str, Any] = {"preset": "allocated", **PUBLISHED, "max_context_tokens": 6000}
"""The published shares in a window that a test can fill."""
NO_SUMMARIES = SMALL | {"auto_summarize": False}


def test_the_published_configuration_is_accepted_unchanged_and_shown_in_our_fields(design: Design) -> None:
    session = design.session({"preset": "allocated", **PUBLISHED})
    percents = {"goal_pct": 15, "pinned_files_pct": 50, "map_pct": 25, "reserved_for_output_pct": 10}
    assert design.get(session)["policy"] == {
        "preset": "allocated",
        "max_context_tokens": 120_000,
        "allocation": percents,
        "context_priority": ["goal", "pins", "summary", "history"],
    }
    guarded = design.session({})
    context = design.turn(guarded, "Hello.", policy={"preset": "allocated", **PUBLISHED})["context"]
    assert context["model_context_limit"] == 120_000
    fixed = context["regions"]["system"] + context["regions"]["user"]
    assert context["output_reserve"] == (120_000 - 6000 - fixed) // 10


def test_shares_that_can_be_read_in_neither_unit_are_refused_with_both_readings(design: Design) -> None:
    shares = {"goal_pct": 0.15, "pinned_files_pct": 50, "map_pct": 50, "reserved_for_output_pct": 10}
    answer = design.http.post("/v1/sessions", json={"policy": {"preset": "allocated", "allocation": shares}})
    problem = assert_problem(answer, 422, "invalid_request")
    assert "percent if they are fractions, 110.15 percent if they are percents" in problem["detail"]


def test_while_the_whole_prompt_fits_nothing_is_trimmed_and_shares_are_not_enforced(design: Design) -> None:
    session = design.session(SMALL)
    # More than the half that pins have, and a history where it has no share at all.
    design.pin(session, "docs/architecture.md", words(2600), 0.9)
    design.pin(session, "docs/menu.md", words(200), 0.1)
    for context in design.turns(session, 3, words(150)):
        assert actions(context) == []
        assert not context["prune_triggered"]
        assert context["regions"]["pins"] > 2800


def test_the_composed_context_stays_under_the_limit(design: Design) -> None:
    session = design.session(SMALL)
    design.pin(session, "docs/architecture.md", words(3000), 0.9)
    for context in design.turns(session, 6, words(400)):
        log = context["context_trim_log"]
        assert log["estimated_tokens_after"] <= log["max_context_tokens"] <= 6000
        assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]


def test_the_goal_is_never_trimmed_and_borrows_from_the_lowest_priority(design: Design) -> None:
    goal = words(2500, "goal")
    session = design.session(NO_SUMMARIES, room_goal=goal)
    design.pin(session, "docs/architecture.md", words(2500), 0.9)
    turn = [design.turn(session, words(300)) for _ in range(3)][-1]
    assert any(goal in message["content"] for message in design.prompt(session, turn))
    kinds = {action["kind"] for action in actions(turn["context"])}
    assert kinds == {"history_drop", "pinned_trim"}


def test_a_goal_that_leaves_no_room_for_anything_is_refused_before_a_call(design: Design) -> None:
    session = design.session(SMALL, room_goal=words(6000, "goal"))
    calls = design.model.hits
    answer = design.http.post(f"{session}/turns", json={"content": "Hello."})
    problem = assert_problem(answer, 422, "context_budget_exceeded")
    assert [advice["item"] for advice in problem["recovery"]["shorten"]] == ["goal"]
    assert design.model.hits == calls


def test_history_is_trimmed_before_pins(design: Design) -> None:
    session = design.session(NO_SUMMARIES)
    design.pin(session, "docs/architecture.md", words(2000), 0.9)
    design.pin(session, "docs/menu.md", words(400), 0.1)
    design.turns(session, 6, words(400))
    turn = design.turn(session, words(400))
    assert [(action["kind"], action["target"]) for action in actions(turn["context"])] == [
        ("history_drop", "conversation_history")
    ]
    assert turn["context"]["regions"]["pins"] > 2400


def test_the_whole_history_is_left_out_if_the_goal_needs_its_share(design: Design) -> None:
    session = design.session(NO_SUMMARIES, room_goal=words(4300, "goal"))
    design.turns(session, 3, words(100))
    last = design.turn(session, words(100))
    assert roles(design.prompt(session, last)) == ["system", "system", "user"]
    assert last["context"]["regions"]["history"] == 0


def test_the_summary_is_shortened_after_the_history_and_before_pins(design: Design) -> None:
    session = design.session(SMALL)
    design.model.script[:] = [reply("Noted.", summary_tokens=800)]
    design.turns(session, 8, words(900))
    assert design.summaries(session)
    design.pin(session, "docs/architecture.md", words(2200), 0.9)
    turn = design.turn(session, words(3300), policy={"auto_summarize": False})
    kinds = [action["kind"] for action in actions(turn["context"])]
    assert kinds == ["history_drop", "summary_shortened", "pinned_trim"]
    assert turn["context"]["regions"]["summary"] > 0
    design.model.script[:] = [reply()]


def test_pins_are_trimmed_by_relevance_shortened_before_dropped_and_the_most_relevant_keeps_the_most(
    design: Design,
) -> None:
    session = design.session(SMALL)
    for name, relevance in (("docs/menu.md", 0.1), ("docs/architecture.md", 0.9), ("docs/fees.md", 0.5)):
        design.pin(session, name, words(3000), relevance)
    turn = design.turn(session, "Hello.")
    assert [(action["kind"], action["target"]) for action in actions(turn["context"])] == [
        ("pinned_trim", "docs/menu.md"),
        ("pinned_trim", "docs/fees.md"),
    ]
    menu, architecture, fees = _by_name(design, session, turn)
    assert len(architecture) > len(fees) > len(menu) > 200
    assert words(3000) in architecture


def _by_name(design: Design, session: str, turn: Any) -> tuple[str, str, str]:
    texts = [message["content"] for message in design.prompt(session, turn) if message["role"] == "system"]
    names = ("docs/menu.md", "docs/architecture.md", "docs/fees.md")
    menu, architecture, fees = (next(text for text in texts if name in text) for name in names)
    return menu, architecture, fees


def test_pins_are_dropped_only_if_all_of_them_shortened_are_still_too_large(design: Design) -> None:
    session = design.session(SMALL)
    for number in range(20):
        design.pin(session, f"docs/{number}.md", words(400), number / 20)
    turn = design.turn(session, words(4000))
    kinds = [(action["kind"], action["target"]) for action in actions(turn["context"])]
    dropped = [target for kind, target in kinds if kind == "pinned_drop"]
    assert dropped == [f"docs/{number}.md" for number in range(len(dropped))]
    assert 0 < len(dropped) < 20
    assert all(kind == "pinned_trim" for kind, _ in kinds[len(dropped) :])


def test_a_pin_is_trimmed_in_the_prompt_and_stored_unchanged(design: Design) -> None:
    session = design.session(SMALL)
    content = words(6000)
    design.pin(session, "docs/architecture.md", content, 0.9)
    assert actions(design.turn(session, "Hello.")["context"])
    assert design.get(f"{session}/pins/docs/architecture.md")["content"] == content
    assert design.get(f"{session}/pins/docs%2Farchitecture.md")["content"] == content


def test_the_trim_log_stores_what_was_trimmed_why_and_by_how_much(design: Design) -> None:
    session = design.session(NO_SUMMARIES)
    design.pin(session, "docs/architecture.md", words(3000), 0.2)
    design.turns(session, 3, words(500))
    turn = design.turn(session, words(1800))
    log = turn["context"]["context_trim_log"]
    assert log.keys() >= {"max_context_tokens", "estimated_tokens_before", "estimated_tokens_after", "actions"}
    assert {(row["kind"], row["target"], row["reason"]) for row in log["actions"]} == {
        ("pinned_trim", "docs/architecture.md", "low_relevance"),
        ("history_drop", "conversation_history", "lowest_priority"),
    }
    removed = sum(row["tokens_removed_est"] for row in log["actions"])
    assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]
    assert design.get(f"{session}/turns/{turn['turn']['id']}/audit")["context_trim_log"] == log


def test_a_tenth_of_what_system_text_and_message_leave_is_reserved_for_the_answer(design: Design) -> None:
    session = design.session({"preset": "allocated", **PUBLISHED})
    context = design.turn(session, words(1000))["context"]
    fixed = context["regions"]["system"] + context["regions"]["user"]
    assert context["output_reserve"] == (120_000 - context["overhead_reserve"] - fixed) // 10
    call = design.model.seen[-1].json
    assert (call.get("max_completion_tokens") or call.get("max_tokens")) == context["output_reserve"]


def test_the_unused_share_of_a_region_is_used_by_another(design: Design) -> None:
    session = design.session(SMALL)
    design.pin(session, "docs/architecture.md", words(9000), 0.9)
    context = design.turn(session, "Hello.")["context"]
    # No goal, no summary and no history: all of it is the pins', and not half.
    assert context["estimated_input_tokens_after_prune"] > 0.97 * context["input_budget"]
