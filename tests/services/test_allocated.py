"""The preset `allocated`, turn by turn: pins by relevance, shares, and prompts that can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import JsonObject, Pin, Session, TurnStatus
from app.services.sessions import delete_pin, put_pin
from app.services.views.context import window_now
from app.services.views.turns import get_audit, get_prompt
from tests.engine.prompt_hash import prompt_sha256
from tests.providers.server import serving
from tests.services.service import Service, is_summary, model, models_toml, ref_of, service
from tests.services.test_preview import previewed_turn

VALVES = "Valve 12 feeds the cellar pump and valve 13 the tank on the roof. " * 75
INVOICES = "Invoice 2024-118 is over 4,310 euro and has to be paid in May. " * 75
LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


async def _session(at: Service, pins: tuple[Pin, ...] = (), **fields: Any) -> Session:
    policy = {"preset": "allocated"} | fields.pop("policy", {})
    session = await at.session(policy=policy, **fields)
    for pin in pins:
        await put_pin(at.rt, ref_of(session.id), pin)
    return session


def _trims(context: JsonObject) -> list[tuple[str, str]]:
    return [(action["kind"], action["target"]) for action in context["context_trim_log"]["actions"]]


async def test_the_pin_of_less_given_relevance_is_shortened_as_the_audit_says_and_the_prompt_shows(
    database_url: str, tmp_path: Path
) -> None:
    pins = (Pin("invoices", INVOICES, 0.2), Pin("valves", VALVES, 0.9, "plant.md"))
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, pins, room_goal="Empty the depot by May.")
        outcome = await at.turn(session.id, "Hello")
        assert _trims(outcome.context) == [("pinned_trim", "invoices")]
        assert outcome.context["prune_triggered"]
        audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, None)
        log = audit.context_trim_log
        assert log["actions"] == outcome.context["context_trim_log"]["actions"]
        assert log["estimated_tokens_before"] - log["actions"][0]["tokens_removed_est"] == log["estimated_tokens_after"]
        sent = server.seen[0].json["messages"]
        prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert prompt.messages == sent
        assert prompt_sha256(sent, []) == audit.prompt_sha256
        assert [message["content"][:30] for message in sent[1:3]] == [
            "Pinned for this conversation: ",
            "Pinned for this conversation: ",
        ]
        assert "characters of this pin left out" in sent[1]["content"]
        assert VALVES in sent[2]["content"]


async def test_without_a_given_relevance_the_pins_that_the_message_is_about_stay_and_old_prompts_can_be_read_back(
    database_url: str, tmp_path: Path
) -> None:
    pins = (Pin("invoices", INVOICES), Pin("valves", VALVES))
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, pins)
        about = [await at.turn(session.id, text) for text in ("Where does valve 12 lead?", "When is the invoice paid?")]
        assert [_trims(outcome.context) for outcome in about] == [
            [("pinned_trim", "invoices")],
            [("pinned_trim", "valves")],
        ]
        for pin in pins:
            await delete_pin(at.rt, ref_of(session.id), pin.name)
        for outcome, seen in zip(about, server.seen, strict=True):
            prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)
            assert prompt.messages == seen.json["messages"]
            assert prompt_sha256(prompt.messages, []) == outcome.context["prompt_sha256"]


async def test_the_outputs_share_is_what_the_audit_the_window_and_the_call_have(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=50_000), folder=tmp_path) as at,
    ):
        session = await _session(at, instructions="Be brief.")
        outcome = await at.turn(session.id, "Hello")
        context = outcome.context
        fixed = context["regions"]["system"] + context["regions"]["user"]
        assert context["output_reserve"] == (50_000 - 2500 - fixed) // 10
        assert context["input_budget"] == 50_000 - 2500 - context["output_reserve"]
        call = server.seen[0].json
        assert (call.get("max_completion_tokens") or call.get("max_tokens")) == context["output_reserve"]
        now = await window_now(at.rt, ref_of(session.id))
        assert now.output_reserve == (50_000 - 2500 - context["regions"]["system"]) // 10
        assert now.input_budget == 50_000 - 2500 - now.output_reserve


async def test_a_session_may_share_its_window_out_otherwise(database_url: str, tmp_path: Path) -> None:
    shares = {"goal_pct": 0, "pinned_files_pct": 10, "map_pct": 0, "reserved_for_output_pct": 40}
    policy = {"allocation": shares, "allow_extreme": True}
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, (Pin("valves", VALVES * 2, 1.0),), policy=policy)
        context = (await at.turn(session.id, "Hello")).context
        rest = 4096 - 1024 - context["regions"]["user"]
        assert context["output_reserve"] == int(rest * 0.4)
        # A tenth is theirs, and the half that nobody else wants.
        assert 0.55 * rest < context["regions"]["pins"] <= 0.6 * rest + 1


async def test_a_history_that_outgrows_its_room_is_summarized_within_the_maps_share(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, (Pin("valves", VALVES, 1.0),))
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(12)]
        assert all(outcome.turn.status is TurnStatus.COMPLETED for outcome in outcomes)
        folded = [outcome.context for outcome in outcomes if outcome.context["summary_triggered"]]
        assert 1 < len(folded) < 12
        assert {
            action["reason"]
            for context in folded
            for action in context["context_trim_log"]["actions"]
            if action["kind"] == "summary_folded"
        } <= {"allocation", "threshold"}
        caps = [
            int(str(request.json["messages"][-1]["content"]).rpartition('"max_tokens":')[2].strip(" }"))
            for request in server.seen
            if is_summary(request)
        ]
        assert all(cap <= (4096 - 1024) // 4 for cap in caps)
        for outcome in outcomes:
            context = outcome.context
            assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]
            log = context["context_trim_log"]
            removed = sum(action["tokens_removed_est"] for action in log["actions"])
            assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]


async def test_a_preview_is_the_turn_with_its_shares_and_trimmed_pins(database_url: str, tmp_path: Path) -> None:
    pins = (Pin("invoices", INVOICES), Pin("valves", VALVES, 0.4))
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, pins, room_goal="Empty the depot by May.", instructions="Be brief.")
        outcomes = [await previewed_turn(at, session, text) for text in ("Which invoice?", "Which valve?", "Thanks.")]
        assert all(_trims(outcome.context) for outcome in outcomes)


async def test_a_goal_that_leaves_no_room_is_refused_before_anything_is_sent(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at, (Pin("valves", VALVES, 1.0),), room_goal=LONG * 15)
        with pytest.raises(ContextBudgetExceeded) as refused:
            await at.turn(session.id, "Hello")
        assert server.seen == []
        assert [advice["item"] for advice in refused.value.recovery["shorten"]] == ["goal"]
        assert refused.value.regions["pins"] == 0


async def test_a_policy_that_was_stored_before_fractions_were_taken_is_read_in_percents(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await _session(at)
        await at.rows(
            "UPDATE sessions SET policy = jsonb_build_object('preset', 'allocated', 'allocation', jsonb_build_object("
            "'goal_pct', 0.15, 'pinned_files_pct', 0.5, 'map_pct', 0.25, 'reserved_for_output_pct', 0.1)) RETURNING id"
        )
        context = (await at.turn(session.id, "Hello")).context
        assert context["output_reserve"] == 64, "a tenth of a percent would be 3 tokens"


@pytest.mark.parametrize("look_back", ["off", "on"])
async def test_the_outputs_share_is_of_what_all_tools_of_the_prompt_leave(
    database_url: str, tmp_path: Path, look_back: str
) -> None:
    """With the look-back tool the audit had the budget without it: a prompt within the decided one could be over it.
    Together with the requested output it could be over the window."""
    tools = ({"type": "function", "function": {"name": "look_up", "description": "word " * 1500}},)
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await _session(at, policy={"look_back": look_back})
        context = (await at.turn(session.id, "Hello", tools=tools)).context
        regions, overhead = context["regions"], context["overhead_reserve"]
        assert regions["tools"] > overhead
        fixed = regions["user"] + regions["tools"] + regions["framing"] - overhead
        output = (16_384 - overhead - fixed) // 10
        assert (context["output_reserve"], context["input_budget"]) == (output, 16_384 - overhead - output)
        assert server.seen[-1].json["max_tokens"] == output
