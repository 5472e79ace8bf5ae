"""The preset `turn_atomic`: whole turns only, on three paths: in the background, before the call, on a refusal."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from app.domain.stored import StoredSummary
from app.domain.types import SessionId
from app.engine.policy.budget import budget_for
from app.services.summaries import list_summaries
from app.services.views.context import read_timeline
from app.services.views.turns import get_audit, get_expanded_audit, get_prompt
from tests.providers.server import Answer, Seen, serving
from tests.services.service import NEWEST, Service, chat, is_summary, model, models_toml, ref_of, service
from tests.services.test_model_faults import strict_window, too_long, unknown_window

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
ATOMIC = {"preset": "turn_atomic"}


async def _fill(at: Service, session_id: SessionId, turns: int, text: str = "Point.") -> list[Any]:
    outcomes: list[Any] = []
    for _ in range(turns):
        outcomes.append(await at.turn(session_id, text))
        await at.rt.chores.settle()
    return outcomes


async def _summaries(at: Service, session_id: SessionId) -> list[StoredSummary]:
    return list((await list_summaries(at.rt, ref_of(session_id), NEWEST)).items)


async def test_twenty_messages_in_the_window_are_summarized_in_the_background(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(reply=LONG)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC)
        await _fill(at, session.id, 9)
        assert await _summaries(at, session.id) == []
        await _fill(at, session.id, 1)
        assert [summary.status for summary in await _summaries(at, session.id)] == ["active"]


async def test_a_share_of_the_window_is_summarized_in_the_background(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"max_messages": None, "usage_threshold": 0.25})
        outcome = await at.turn(session.id, LONG)
        turns = 1
        while not await _summaries(at, session.id):
            turns += 1
            (outcome,) = await _fill(at, session.id, 1, LONG)
            assert not outcome.context["summary_triggered"]
        a_turn = outcome.context["regions"]["user"]
        assert abs(outcome.context["estimated_input_tokens_after_prune"] - 0.25 * 16_384) < a_turn
        assert turns > 10


async def test_before_the_call_a_prompt_that_would_not_fit_is_summarized_first(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"protected_turns": 1})
        await _fill(at, session.id, 6, LONG)
        outcome = await at.turn(session.id, LONG * 2)
        assert outcome.context["summary_triggered"]
        assert outcome.context["estimated_input_tokens_after_prune"] <= outcome.context["input_budget"]


async def test_what_a_prune_takes_are_whole_turns_the_oldest_first(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply=LONG)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"auto_summarize": False})
        outcomes = await _fill(at, session.id, 9)
        ids = [f"turn:{outcome.turn.id}" for outcome in outcomes]
        audit = await get_expanded_audit(at.rt, ref_of(session.id), outcomes[-1].turn.id, None)
        actions = audit.context_trim_log["actions"]
        assert {action["kind"] for action in actions} == {"turn_dropped"}
        assert [action["target"] for action in actions] == ids[: len(actions)]
        sent = (await get_prompt(at.rt, ref_of(session.id), outcomes[-1].turn.id, None)).messages
        assert [message["role"] for message in sent] == ["user", "assistant"] * (len(sent) // 2) + ["user"]


async def test_a_refusal_of_the_provider_takes_the_oldest_half_of_the_turns_and_leaves_a_note_in_the_summary(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(chat("Fine.")) as server,
        service(database_url, models_toml(server, window=32_768), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"max_messages": None})
        await _fill(at, session.id, 8, LONG)
        server.script[:] = [strict_window(3600)]
        outcome = await at.turn(session.id, "And now?")
        audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert audit.attempt == 2
        actions = outcome.context["context_trim_log"]["actions"]
        assert {action["kind"] for action in actions} == {"emergency_drop"}
        assert [action["count"] for action in actions if action["target"].startswith("turns:")] == [4]
        log = outcome.context["context_trim_log"]
        removed = sum(action["tokens_removed_est"] for action in actions)
        assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]
        (note,) = await _summaries(at, session.id)
        assert (note.origin, note.status) == ("emergency", "active")
        assert note.summary_text.startswith("Turns 1 to 4 of this conversation left at once")
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert "Turns 1 to 4" in sent[0]["content"]
        assert len([message for message in sent if message["role"] == "user"]) == 4 + 1
        assert not any("left at once" in str(message["content"]) for message in sent[1:]), "not in the history"
        newest = (await read_timeline(at.rt, ref_of(session.id), NEWEST)).items[0]
        assert [(event["kind"], event.get("count")) for event in newest.events] == [("emergency", 4)]


async def test_a_second_refusal_takes_half_of_what_is_left_and_the_log_still_sums(
    database_url: str, tmp_path: Path
) -> None:
    def refuse_twice(request: Seen) -> Answer:
        refused.append(request)
        return too_long(4096, 5000, 100) if len(refused) <= 2 else chat("Fine.", prompt_tokens=900)

    refused: list[Seen] = []
    async with (
        serving(chat("Fine.")) as server,
        service(database_url, models_toml(server, window=32_768), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"max_messages": None})
        await _fill(at, session.id, 8, LONG)
        server.script[:] = [refuse_twice]
        outcome = await at.turn(session.id, "And now?")
        sizes = [len(request.json["messages"]) for request in refused]
        assert all(smaller < larger for larger, smaller in pairwise(sizes))
        log = outcome.context["context_trim_log"]
        removed = sum(action["tokens_removed_est"] for action in log["actions"])
        assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]
        assert [summary.origin for summary in await _summaries(at, session.id)] == ["emergency", "emergency"]
        rendered = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages[0]["content"]
        assert "Turns 1 to 4" in rendered
        assert "Turns 5 to 6" in rendered


async def test_the_note_is_carried_on_by_the_next_summary(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(chat("Fine.")) as server,
        service(database_url, models_toml(server, window=32_768), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC)
        await _fill(at, session.id, 8, LONG)
        server.script[:] = [strict_window(3600)]
        await at.turn(session.id, "And now?")
        server.script[:] = [model()]
        await _fill(at, session.id, 8, LONG)
        shown = [request.body.decode() for request in server.seen if is_summary(request)]
        assert "Turns 1 to 4 of this conversation left at once" in shown[0]


async def test_the_window_of_an_unknown_model_is_four_times_its_largest_output(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(chat("Fine.")) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=ATOMIC | {"unknown_window_outputs": 4})
        outcome = await at.turn(session.id, "Hi")
        assert outcome.context["model_context_limit"] == 4 * at.rt.guarded.max_output_tokens
        assert outcome.context["context_limit_source"] == "policy"


def test_the_history_has_what_system_summary_tools_and_output_leave_of_the_window() -> None:
    regions = {"system": 200, "goal": 20, "pins": 3, "summary": 300, "tools": 500, "history": 4_000, "framing": 60}
    assert budget_for(16_384, "test", 2048).history_budget(regions) == 16_384 - 200 - 20 - 3 - 300 - 500 - 2048
