"""The preset `rolling`: the summary is extended by what is new, and the newest turns stay raw as far as they fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import Pin, RecordedReply, ToolCall
from app.services.sessions import change_session, put_pin
from app.services.summaries import list_summaries
from app.services.views.turns import get_prompt
from tests.providers.server import Answer, Seen, serving
from tests.services.service import NEWEST, chat, is_summary, model, models_toml, ref_of, service

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
ROLLING = {"preset": "rolling"}


def _documents(seen: list[Seen]) -> list[dict[str, Any]]:
    """What the summarizer was given, call by call."""
    return [json.loads(request.json["messages"][-1]["content"]) for request in seen if is_summary(request)]


async def test_the_summarizer_gets_the_existing_summary_and_only_the_new_messages_and_is_instructed_to_extend(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 21)]
        triggered = [outcome.turn.seq for outcome in outcomes if outcome.context["summary_triggered"]]
        documents = _documents(server.seen)
        assert len(triggered) == len(documents) >= 3
        assert documents[0]["previous_summary"] is None
        assert all(document["previous_summary"]["summary_text"] == "The earlier part." for document in documents[1:])
        assert all(document["context_messages"] == [] for document in documents)
        prompts = [request.json["messages"][0]["content"] for request in server.seen if is_summary(request)]
        assert all("Extend the previous summary" in instructions for instructions in prompts)


async def test_a_message_is_summarized_once_and_how_far_is_stored(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        for number in range(1, 21):
            await at.turn(session.id, f"Point {number}. {LONG}")
        texts = [message["text"] for document in _documents(server.seen) for message in document["messages"]]
        points = [text.split(".")[0] for text in texts if text.startswith("Point")]
        assert points == [f"Point {number}" for number in range(1, len(points) + 1)], "each once, in order"
        newest = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[0]
        covered = await at.rows("SELECT seq FROM messages WHERE id = :id", id=newest.to_message_id)
        assert covered[0]["seq"] == 2 * len(points)


async def test_it_fires_by_the_share_of_the_window_and_not_by_a_number_of_turns(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING | {"usage_threshold": 0.25, "protected_share": 0.15})
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 19)]
        first = next(outcome for outcome in outcomes if outcome.context["summary_triggered"])
        before = [outcome for outcome in outcomes if outcome.turn.seq < first.turn.seq]
        assert first.context["estimated_input_tokens_before"] >= 0.25 * 16_384
        assert all(each.context["estimated_input_tokens_before"] < 0.25 * 16_384 for each in before)
        assert len(before) >= 9, "the eight turns of the default policy ask for nothing here"


async def test_as_many_recent_turns_stay_raw_as_their_share_has_room_for(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        outcome = await at.turn(session.id, "Begin")
        while not outcome.context["summary_triggered"]:
            outcome = await at.turn(session.id, f"Point. {LONG}")
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        raw = [message for message in sent if message["role"] == "user"][:-1]
        share = 0.50 * outcome.context["input_budget"]
        a_turn = outcome.context["regions"]["history"] / len(raw)
        assert outcome.context["regions"]["history"] <= share < outcome.context["regions"]["history"] + 1.2 * a_turn


async def test_a_summary_that_leaves_the_prompt_too_large_is_made_once_more_at_half_its_cap(
    database_url: str, tmp_path: Path
) -> None:
    caps: list[int] = []

    def as_large_as_allowed(request: Seen) -> Answer:
        document = json.loads(request.json["messages"][-1]["content"])
        caps.append(document["max_tokens"])
        text = " ".join(f"word{number}" for number in range(document["max_tokens"]))
        body: dict[str, Any] = {
            "summary_text": text,
            "key_facts": [],
            "open_questions": [],
            "decisions": [],
            "action_items": [],
        }
        return chat(json.dumps(body))

    async with (
        serving(model(summary=as_large_as_allowed)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        for number in range(1, 7):
            await at.turn(session.id, f"Point {number}. {LONG}")
        # What may never leave is large now, and the summary at its full cap would not let the rest in.
        await put_pin(at.rt, ref_of(session.id), Pin("terms", LONG * 3))
        outcome = await at.turn(session.id, "And now?")
        assert len(caps) == 2
        assert caps[1] == caps[0] // 2
        assert outcome.context["summary_triggered"]
        assert outcome.context["regions"]["summary"] <= caps[1]
        stored = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items
        assert len(stored) == 1, "the larger one was never stored"


async def test_a_users_message_over_the_budget_alone_is_refused(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        with pytest.raises(ContextBudgetExceeded):
            await at.turn(session.id, LONG * 10)
        assert server.hits == 0
        await at.turn(session.id, "Shorter.")


async def test_an_answer_over_the_budget_alone_is_shortened_with_a_mark(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply=LONG * 10)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ROLLING)
        await at.turn(session.id, "Tell me everything.")
        outcome = await at.turn(session.id, "And now?")
        kinds = [action["kind"] for action in outcome.context["context_trim_log"]["actions"]]
        assert kinds == ["assistant_shortened"]
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert "characters of this answer left out" in sent[1]["content"]


async def test_a_tools_result_over_the_budget_alone_is_shortened_with_a_mark(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session(policy=ROLLING | {"max_context_tokens": 4096})
        call = RecordedReply(None, (ToolCall("call_1", "read", "{}"),))
        tools = ({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},)
        waiting = await at.turn(session.id, "Read it.", tools=tools, recorded_reply=call)
        outcome = await at.outputs(session.id, waiting.turn.id, {"call_1": LONG * 10}, RecordedReply("Done."))
        kinds = [action["kind"] for action in outcome.context["context_trim_log"]["actions"]]
        assert kinds == ["tool_result_shortened"]


async def test_a_smaller_model_is_adapted_to_by_itself(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(
            database_url,
            models_toml(
                server,
                window=65_536,
                extra=f'[models.small]\nprovider = "openai"\nmodel = "small-model"\nbase_url = "{server.base_url}"\n'
                "context_window = 4096\n",
            ),
            folder=tmp_path,
        ) as at,
    ):
        session = await at.session(policy=ROLLING)
        for number in range(1, 13):
            await at.turn(session.id, f"Point {number}. {LONG}")
        assert not any(is_summary(request) for request in server.seen)
        await change_session(at.rt, ref_of(session.id), {"model_alias": "small"})
        outcome = await at.turn(session.id, "And now?")
        assert outcome.context["summary_triggered"]
        assert outcome.context["estimated_input_tokens_after_prune"] <= outcome.context["input_budget"] == 2253
