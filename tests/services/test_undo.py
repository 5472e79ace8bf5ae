"""Taking summaries back: what stands again, what the next turn decides, and that no old prompt is lost by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.domain.errors import InvalidRequest, NotFound, SummaryNotActive, TurnInProgress
from app.domain.stored import StoredSummary
from app.domain.types import MessageId, Pin, SessionId, SessionRef, SummaryId, SummaryItem, TenantId
from app.services.sessions import delete_pin, put_pin
from app.services.summaries import edit_summary, list_summaries, summarize_now, undo_summary
from app.services.views.context import window_now
from app.services.views.turns import get_prompt, list_turns
from tests.providers.server import serving
from tests.services.service import (
    NEWEST,
    OLDEST,
    Service,
    chat,
    client_tools,
    is_summary,
    model,
    models_toml,
    ref_of,
    service,
)
from tests.services.test_tools import TOOLS, calls

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


async def _summaries(at: Service, session_id: SessionId) -> list[StoredSummary]:
    """Oldest first."""
    return (await list_summaries(at.rt, ref_of(session_id), NEWEST)).items[::-1]


async def _statuses(at: Service, session_id: SessionId) -> list[str]:
    return [summary.status for summary in await _summaries(at, session_id)]


async def _undo(at: Service, session_id: SessionId, summary_id: Any) -> StoredSummary:
    return await undo_summary(at.rt, ref_of(session_id), SummaryId(summary_id))


async def _prompts(at: Service, session_id: SessionId) -> dict[int, Any]:
    """Every prompt of the session, rebuilt and held against its hash, by turn."""
    turns = (await list_turns(at.rt, ref_of(session_id), OLDEST)).items
    return {turn.seq: await get_prompt(at.rt, ref_of(session_id), turn.id, None) for turn in turns}


async def test_undoing_restores_the_predecessor_and_the_raw_range_and_the_next_turn_decides_anew(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"recall": {"enabled": False}})  # which would bring Point 1 back beside them
        for number in range(1, 20):
            await at.turn(session.id, f"Point {number}. {LONG}")
        assert await _statuses(at, session.id) == ["superseded", "active"]
        before = await window_now(at.rt, ref_of(session.id))
        assert before.raw_turns == 7  # 13 to 19: turn 17 folded what was older than 13
        first, second = await _summaries(at, session.id)
        undone = await _undo(at, session.id, second.id)
        assert (undone.id, undone.status) == (second.id, "undone")
        assert await _statuses(at, session.id) == ["active", "undone"]
        now = await window_now(at.rt, ref_of(session.id))
        assert now.active_summary_id == first.id
        assert now.raw_turns == 15
        assert now.turns_to_next_summary == 8
        outcome = await at.turn(session.id, "Point 20.")
        assert not outcome.context["summary_triggered"]
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        users = [message["content"].split(".")[0] for message in sent if message["role"] == "user"]
        assert users == [f"Point {number}" for number in range(5, 21)]


async def test_an_edited_summary_is_a_version_of_its_own_that_is_sent_and_taken_back(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy={"protected_turns": 1})
        for number in range(1, 4):
            await at.turn(session.id, f"Point {number}. {LONG}")
        made = await summarize_now(at.rt, ref_of(session.id))
        source = made.from_message_id
        changes = {"summary_text": "Two points.", "decisions": (SummaryItem("Ship on the 9th.", (source,)),)}
        edited = await edit_summary(at.rt, ref_of(session.id), made.id, changes)
        assert (edited.origin, edited.previous_summary_id, edited.status) == ("person", made.id, "active")
        assert (edited.from_message_id, edited.to_message_id) == (source, made.to_message_id)
        assert (edited.summary_text, edited.decisions) == ("Two points.", changes["decisions"])
        assert edited.key_facts == made.key_facts
        assert await _statuses(at, session.id) == ["superseded", "active"]
        outcome = await at.turn(session.id, "Point 4.")
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert any("Ship on the 9th." in str(message["content"]) for message in sent)
        for refused, error, given in (
            (made.id, SummaryNotActive, changes),
            (uuid4(), NotFound, changes),
            (edited.id, InvalidRequest, changes),  # nothing would be changed
            (edited.id, InvalidRequest, {"key_facts": (SummaryItem("Invented.", (MessageId(uuid4()),)),)}),
            (edited.id, InvalidRequest, {"summary_text": LONG * 60}),
        ):
            with pytest.raises(error):
                await edit_summary(at.rt, ref_of(session.id), SummaryId(refused), given)
        await _undo(at, session.id, edited.id)
        assert await _statuses(at, session.id) == ["active", "undone"]
        assert (await window_now(at.rt, ref_of(session.id))).active_summary_id == made.id
        await _prompts(at, session.id)


async def test_a_summary_is_not_edited_while_a_turn_is_open(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(lambda seen: calls("c1") if seen.json.get("tools") else chat("Noted."))) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"protected_turns": 1})
        for number in range(1, 4):
            await at.turn(session.id, f"Point {number}. {LONG}")
        made = await summarize_now(at.rt, ref_of(session.id))
        await at.turn(session.id, "Look it up.", tools=TOOLS)
        with pytest.raises(TurnInProgress):
            await edit_summary(at.rt, ref_of(session.id), made.id, {"summary_text": "Short."})


async def test_a_focus_of_the_policy_or_the_request_reaches_the_summarizer(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy={"protected_turns": 1, "focus": "the ferry"})
        for number in range(1, 4):
            await at.turn(session.id, f"Point {number}. {LONG}")
        for requested, wanted in ((None, "the ferry"), ("prices", "prices")):
            made = await summarize_now(at.rt, ref_of(session.id), requested)
            asked = [json.loads(seen.json["messages"][1]["content"]) for seen in server.seen if is_summary(seen)]
            assert asked[-1]["focus"] == wanted
            await _undo(at, session.id, made.id)


async def test_after_an_undo_the_next_turn_summarizes_again_when_it_is_over_the_threshold(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=5000), folder=tmp_path) as at,
    ):
        session = await at.session()
        number = 0
        while not await _summaries(at, session.id):
            number += 1
            await at.turn(session.id, f"Point {number}. {LONG}")
        (first,) = await _summaries(at, session.id)
        await _undo(at, session.id, first.id)
        assert (await window_now(at.rt, ref_of(session.id))).raw_turns == number
        outcome = await at.turn(session.id, "And now?")
        assert outcome.context["summary_triggered"]
        assert await _statuses(at, session.id) == ["undone", "active"]
        again = (await _summaries(at, session.id))[-1]
        assert again.from_message_id == first.from_message_id
        assert again.previous_summary_id is None


async def test_a_chain_of_three_is_taken_back_one_by_one_and_every_prompt_can_still_be_rebuilt(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session(instructions="Be brief.")
        await put_pin(at.rt, ref_of(session.id), Pin("a", "Pinned early."))
        for number in range(1, 27):
            await at.turn(session.id, f"Point {number}. {LONG}")
        first, second, third = await _summaries(at, session.id)
        assert (second.previous_summary_id, third.previous_summary_id) == (first.id, second.id)
        prompts = await _prompts(at, session.id)
        with pytest.raises(SummaryNotActive):
            await _undo(at, session.id, second.id)
        await _undo(at, session.id, third.id)
        with pytest.raises(SummaryNotActive):
            await _undo(at, session.id, third.id)
        assert await _statuses(at, session.id) == ["superseded", "active", "undone"]
        await put_pin(at.rt, ref_of(session.id), Pin("a", "Pinned late."))
        await at.turn(session.id, "Between.")
        await _undo(at, session.id, second.id)
        assert await _statuses(at, session.id) == ["active", "undone", "undone"]
        await delete_pin(at.rt, ref_of(session.id), "a")
        await _undo(at, session.id, first.id)
        assert await _statuses(at, session.id) == ["undone", "undone", "undone"]
        now = await window_now(at.rt, ref_of(session.id))
        assert (now.active_summary_id, now.raw_turns) == (None, 27)
        made = await summarize_now(at.rt, ref_of(session.id))
        assert made.previous_summary_id is None
        afterwards = await _prompts(at, session.id)
        assert {seq: afterwards[seq] for seq in prompts} == prompts


async def test_a_summary_is_not_taken_back_while_a_turn_is_open_nor_by_another_tenant(
    database_url: str, tmp_path: Path
) -> None:
    def reply(request: Any) -> Any:
        return model("Noted.")(request) if not client_tools(request) else calls("a")

    async with (
        serving(reply) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 10):
            await at.turn(session.id, f"Point {number}. {LONG}")
        (made,) = await _summaries(at, session.id)
        with pytest.raises(NotFound, match="session"):
            await undo_summary(at.rt, SessionRef(TenantId("other"), session.id), SummaryId(made.id))
        with pytest.raises(NotFound, match="summary"):
            await _undo(at, session.id, uuid4())
        waiting = await at.turn(session.id, "Look it up", tools=TOOLS)
        counted = await at.rows("SELECT summary_count_after_seq FROM sessions")
        with pytest.raises(TurnInProgress):
            await _undo(at, session.id, made.id)
        assert await at.rows("SELECT summary_count_after_seq FROM sessions") == counted
        await at.outputs(session.id, waiting.turn.id, {"a": "yes"})
        assert await _statuses(at, session.id) == ["active"]


async def test_whatever_is_active_can_be_taken_back_without_knowing_which(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 20):
            await at.turn(session.id, f"Point {number}. {LONG}")
        first, second = await _summaries(at, session.id)
        assert (await undo_summary(at.rt, ref_of(session.id), None)).id == second.id
        assert (await undo_summary(at.rt, ref_of(session.id), None)).id == first.id
        with pytest.raises(NotFound) as none_left:
            await undo_summary(at.rt, ref_of(session.id), None)
        assert none_left.value.noun == "summary"
        with pytest.raises(NotFound) as not_theirs:
            await undo_summary(at.rt, SessionRef(TenantId("other"), session.id), None)
        assert not_theirs.value.noun == "session"
