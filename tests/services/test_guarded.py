"""The default preset, turn by turn: what fires, what is kept, what is refused, and what is written down of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.domain.errors import ContextBudgetExceeded, NotFound, NothingToSummarize
from app.domain.types import Pin, SessionId, SessionRef, TenantId, TurnStatus
from app.services.process_state import WARN_EVERY_S, Warnings
from app.services.sessions import put_pin
from app.services.summaries import list_summaries, summarize_now
from app.services.views.context import window_now
from app.services.views.turns import get_audit, get_expanded_audit, get_prompt
from tests.engine.prompt_hash import prompt_sha256
from tests.providers.server import Answer, Seen, serving
from tests.services.service import (
    NEWEST,
    Service,
    chat,
    is_summary,
    model,
    models_toml,
    ref_of,
    service,
    sound_summary,
)

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


async def _sent(at: Service, session_id: SessionId, turn_id: Any) -> list[dict[str, Any]]:
    prompt = await get_prompt(at.rt, ref_of(session_id), turn_id, None)
    return prompt.messages


SHIELDED = {"summary_trigger_ratio": 0.5, "protected_share": None, "recall": {"enabled": False}}
"""Four turns raw at any size, and nothing beside them that was said before."""


async def test_a_plain_turn_is_answered_stored_audited_and_can_be_replayed(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(chat("Hello.", prompt_tokens=31)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(room_goal="Ship it", instructions="Be brief.")
        outcome = await at.turn(session.id, "Hi there")
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert outcome.turn.assistant_output == "Hello."
        assert outcome.turn.prompt_tokens == 31
        assert outcome.context["input_budget"] == 2253
        assert sum(outcome.context["regions"].values()) == outcome.context["estimated_wire_tokens"]
        sent = server.seen[0].json["messages"]
        assert [message["content"] for message in sent] == [
            "Be brief.",
            "Goal of this conversation: Ship it",
            "Hi there",
        ]
        prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert prompt.messages == sent
        assert prompt_sha256(sent, []) == outcome.context["prompt_sha256"]
        audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert audit.actual_prompt_tokens == 31
        steps = await at.rows("SELECT kind, status FROM turn_steps ORDER BY seq")
        assert [(step["kind"], step["status"]) for step in steps] == [
            ("gather", "success"),
            ("assemble", "success"),
            ("model_call", "success"),
        ]


async def test_the_ninth_turn_summarizes_what_is_older_than_the_last_four(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        outcomes = [await at.turn(session.id, f"Point {at_turn}. {LONG}") for at_turn in range(1, 18)]
        triggered = [outcome.turn.seq for outcome in outcomes if outcome.context["summary_triggered"]]
        assert triggered == [9, 17]
        sent = await _sent(at, session.id, outcomes[8].turn.id)
        assert "<conversation-record>" in sent[0]["content"]
        assert [message["content"][:8] for message in sent if message["role"] == "user"] == [
            f"Point {number}." for number in (5, 6, 7, 8, 9)
        ]
        page = await list_summaries(at.rt, ref_of(session.id), NEWEST)
        assert [summary.status for summary in page.items] == ["active", "superseded"]
        assert page.items[0].from_message_id == page.items[1].from_message_id
        folded = outcomes[8].context["context_trim_log"]["actions"]
        assert [action["kind"] for action in folded] == ["summary_folded"] * 2
        assert (folded[0]["target"], folded[0]["count"]) == ("turns:1-4", 4)
        assert {action["reason"] for action in folded} == {"turn_count"}


async def test_seventy_percent_of_the_budget_triggers_a_summary_before_the_count_does(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        for at_turn in range(1, 9):
            outcome = await at.turn(session.id, f"Point {at_turn}. {LONG}")
            before, budget = outcome.context["estimated_input_tokens_before"], outcome.context["input_budget"]
            if at_turn > 5:
                assert outcome.context["summary_triggered"] == (before >= 0.7 * budget)
            if outcome.context["summary_triggered"]:
                assert outcome.context["estimated_input_tokens_after_summary"] < before
                break
        else:
            pytest.fail("no summary was triggered")
        log = outcome.context["context_trim_log"]
        removed = sum(action["tokens_removed_est"] for action in log["actions"])
        assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]
        assert log["estimated_tokens_after"] == outcome.context["estimated_wire_tokens"]


async def test_a_long_answer_is_pruned_when_a_summary_was_not_enough_and_anchors_stay(
    database_url: str, tmp_path: Path
) -> None:
    """Four protected turns that are over the budget by themselves: assistant messages leave, oldest first."""
    answers = iter([LONG, LONG, LONG, "Cited " + LONG, LONG * 3, LONG * 3, LONG * 3, "done"])

    def reply(_: Any) -> Any:
        return chat(next(answers))

    async with serving(model(reply)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy=SHIELDED)
        outcomes = [await at.turn(session.id, f"Question {number}") for number in range(1, 9)]
        pruned = outcomes[-1]
        assert pruned.context["prune_triggered"]
        assert pruned.context["estimated_input_tokens_after_prune"] <= pruned.context["input_budget"]
        actions = [action for outcome in outcomes for action in outcome.context["context_trim_log"]["actions"]]
        assert {"assistant_dropped"} <= {action["kind"] for action in actions}
        sent = await _sent(at, session.id, pruned.turn.id)
        summaries = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items
        anchors = {
            UUID(str(message_id))
            for summary in summaries[:1]
            for item in summary.key_facts + summary.decisions
            for message_id in item.message_ids
        }
        assert anchors
        audit = await get_expanded_audit(at.rt, ref_of(session.id), pruned.turn.id, None)
        dropped = {action["target"] for action in audit.context_trim_log["actions"]}
        assert any(target.startswith("message:") for target in dropped)
        assert not {f"message:{anchor}" for anchor in anchors} & dropped
        questions = [message["content"] for message in sent if message["role"] == "user"]
        assert questions == [f"Question {number}" for number in range(9 - len(questions), 9)]


async def test_what_does_not_fit_is_refused_before_any_model_is_called(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        for number in range(6):
            await at.turn(session.id, f"Point {number}. {LONG}")
        hits = server.hits
        with pytest.raises(ContextBudgetExceeded) as refused:
            await at.turn(session.id, "word " * 4000)
        assert server.hits == hits, "a summary or a call was paid for a turn that could not fit"
        error = refused.value
        assert error.budget["over_by"] == error.budget["estimated"] - error.budget["input_budget"] > 0
        assert error.largest_items[0]["region"] == "user"
        assert error.recovery["shorten"][0]["by_tokens"] >= error.budget["over_by"]
        rejected = (await at.rows("SELECT id, status, error FROM turns ORDER BY seq DESC LIMIT 1"))[0]
        assert rejected["status"] == "rejected"
        assert rejected["error"]["code"] == "context_budget_exceeded"
        audit = await get_audit(at.rt, ref_of(session.id), rejected["id"], None)
        assert audit.overflow_rejected
        assert audit.prompt_sha256 is None
        after = await at.turn(session.id, "Short again")
        sent = await _sent(at, session.id, after.turn.id)
        assert not any("word word" in str(message["content"]) for message in sent)


async def test_a_window_with_no_room_for_input_rejects_every_turn(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=1280), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(ContextBudgetExceeded) as refused:
            await at.turn(session.id, "Hi")
        assert refused.value.budget["input_budget"] == 0
        assert server.hits == 0


async def test_pins_goal_and_instructions_are_in_every_prompt(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(room_goal="Reconcile the ledger", instructions="Answer in English.")
        await put_pin(at.rt, ref_of(session.id), Pin("limits", "Never touch account 4711.", 1.0))
        for number in range(14):
            outcome = await at.turn(session.id, f"Point {number}. {LONG}")
            contents = [str(message["content"]) for message in await _sent(at, session.id, outcome.turn.id)]
            assert contents[0] == "Answer in English."
            assert "Reconcile the ledger" in contents[1]
            assert "Never touch account 4711." in contents[2]


async def test_a_useless_summary_is_refused_and_the_fallback_stands_in_with_a_warning(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def garbage(_: Any) -> Any:
        return chat("I am sorry, as a model I like trains.")

    async with (
        serving(model(summary=garbage)) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session()
        with caplog.at_level(logging.WARNING, logger="app"):
            outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 10)]
        assert outcomes[-1].context["summary_triggered"]
        assert any(is_summary(seen) for seen in server.seen)
        summary = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[0]
        assert summary.origin == "fallback"
        assert "fallback" in caplog.text
        assert summary.key_facts or summary.summary_text
        step = (await at.rows("SELECT detail FROM turn_steps WHERE kind = 'summarize'"))[0]["detail"]
        assert step["failure"] == "no_json"


async def test_a_summarizer_that_reasons_has_room_for_it_besides_a_small_summary(
    database_url: str, tmp_path: Path
) -> None:
    """Its reasoning, here of 1,000 tokens, is part of what a call may answer with."""

    def reasoning(request: Seen) -> Answer:
        if request.json["max_tokens"] > 1_200:
            return sound_summary(request)
        cut = chat("")
        cut.body["choices"][0]["finish_reason"] = "length"
        return cut

    async with (
        serving(model(summary=reasoning)) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 10):
            await at.turn(session.id, f"Point {number}. " + "A short line of some words. " * 10)
        assert any(is_summary(seen) for seen in server.seen)
        summary = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[0]
        assert summary.origin == "model"


async def test_after_three_failures_in_a_row_the_summarizer_is_not_called(database_url: str, tmp_path: Path) -> None:
    def garbage(_: Any) -> Any:
        return chat("{}")

    async with (
        serving(model(summary=garbage)) as server,
        service(
            database_url,
            models_toml(server, window=16_384),
            folder=tmp_path,
        ) as at,
    ):
        session = await at.session(policy={"mandatory_summary_turn": 1, "protected_turns": 1})
        for number in range(1, 9):
            await at.turn(session.id, f"Point {number}. {LONG}")
        assert sum(map(is_summary, server.seen)) == 3
        origins = [row.origin for row in (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items]
        assert len(origins) > 3
        assert set(origins) == {"fallback"}


async def test_a_summarizer_that_fails_at_every_turn_is_logged_once_a_minute_for_each_reason(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    async with (
        serving(model(summary=lambda _: chat("{}"))) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as made,
    ):
        at = replace(made, rt=replace(made.rt, warnings=Warnings(lambda: now_s)))
        session = await at.session(policy={"mandatory_summary_turn": 1, "protected_turns": 1})
        with caplog.at_level(logging.WARNING, logger="app"):
            for number in range(1, 9):
                await at.turn(session.id, f"Point {number}. {LONG}")
            now_s = WARN_EVERY_S
            await at.turn(session.id, f"Point 9. {LONG}")
        logged = [record.args for record in caplog.records if "no usable summary" in record.msg]
        assert logged == [("main", "schema", 0), ("main", "breaker_open", 0), ("main", "breaker_open", 2)]


async def test_tiny_turns_get_no_summary_that_would_not_shrink_anything(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        outcomes = [await at.turn(session.id, "ok") for _ in range(12)]
        assert not any(outcome.context["summary_triggered"] for outcome in outcomes)
        assert not any(map(is_summary, server.seen))


async def test_a_summary_can_be_requested_and_says_when_there_is_nothing_to_do(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(NothingToSummarize):
            await summarize_now(at.rt, ref_of(session.id))
        for number in range(6):
            await at.turn(session.id, f"Point {number}. {LONG}")
        summary = await summarize_now(at.rt, ref_of(session.id))
        assert summary.status == "active"
        now = await window_now(at.rt, ref_of(session.id))
        assert now.active_summary_id == summary.id
        assert now.raw_turns == 4
        assert now.turns_to_next_summary == 8


async def test_a_long_fold_is_summarized_in_chunks_of_the_summarizers_window(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server:
        small = (
            f'\n[models.small]\nprovider = "openai"\nmodel = "small"\nbase_url = "{server.base_url}"\n'
            "context_window = 6000\n"
        )
        async with service(database_url, models_toml(server, window=65_536, extra=small), folder=tmp_path) as at:
            session = await at.session(policy={"summary_model": "small", "summary_max_ratio": 0.02})
            for number in range(1, 10):
                await at.turn(session.id, f"Point {number}. {LONG * 6}")
            asked = [seen.json for seen in server.seen if is_summary(seen)]
            assert len(asked) > 1
            assert {request["model"] for request in asked} == {"small"}
            assert '"previous_summary": null' in asked[0]["messages"][1]["content"]
            assert "The port is 8443." in asked[1]["messages"][1]["content"]


async def test_switching_to_a_smaller_window_never_overflows(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server:
        small = (
            f'\n[models.small]\nprovider = "openai"\nmodel = "small"\nbase_url = "{server.base_url}"\n'
            'context_window = 4096\nencoding = "cl100k_base"\n'
        )
        async with service(database_url, models_toml(server, window=65_536, extra=small), folder=tmp_path) as at:
            session = await at.session()
            for number in range(1, 8):
                await at.turn(session.id, f"Point {number}. {LONG}")
            outcome = await at.turn(session.id, "And now in the small one", model_alias="small")
            assert outcome.context["summary_triggered"]
            assert outcome.context["estimated_input_tokens_after_prune"] <= 2253
            counted = await at.rows("SELECT DISTINCT token_encoding FROM message_token_counts")
            assert [row["token_encoding"] for row in counted] == ["cl100k_base"]


async def test_another_tenant_does_not_see_the_session(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        outcome = await at.turn(session.id, "Mine")
        for read in (get_audit, get_prompt):
            with pytest.raises(NotFound, match="no such session"):
                await read(at.rt, SessionRef(TenantId("other"), session.id), outcome.turn.id, None)
