"""The preset `post_turn`: a summary after the answer, in the background, that loses nothing and is made once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from app.domain.types import SessionId
from app.engine.messages.turns import no_turn
from app.engine.window.triggers import fold_on_request
from app.services.sessions import change_session
from app.services.summaries import list_summaries, summarize_now
from app.services.turn.gather import session_window, snapshot_of
from app.services.turn.summarize import STALE, summarize, summarize_after_turn
from app.services.turn.summarizer_call import SummaryJob
from app.services.views.turns import get_prompt
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import NEWEST, Service, chat, is_summary, model, models_toml, ref_of, service, sound_summary

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
POLICY = {"preset": "post_turn", "usage_threshold": 0.45}
"""About 1,840 tokens of a 4,096-token window: six turns of LONG."""


def fast_summarizer(server: ScriptedServer) -> str:
    """A catalogue with a second alias at the same server, told apart by the model's name."""
    return models_toml(
        server,
        extra=f'[models.fast]\nprovider = "openai"\nmodel = "fast-model"\nbase_url = "{server.base_url}"\n'
        "context_window = 32768\n",
    )


async def _statuses(at: Service, session_id: SessionId) -> list[str]:
    return [summary.status for summary in (await list_summaries(at.rt, ref_of(session_id), NEWEST)).items]


async def _fill_until(at: Service, session_id: SessionId, asked: asyncio.Event) -> None:
    """Posts turns, each of which waits for what the one before started, until the summarizer is called."""
    while not asked.is_set():
        outcome = await at.turn(session_id, f"Point. {LONG}")
        assert not outcome.context["summary_triggered"]
        ends = [asyncio.ensure_future(each) for each in (at.rt.chores.settle(), asked.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()


async def _fill(at: Service, session_id: SessionId, turns: int) -> list[Any]:
    outcomes: list[Any] = []
    for number in range(1, turns + 1):
        outcomes.append(await at.turn(session_id, f"Point {number}. {LONG}"))
        await at.rt.chores.settle()
    return outcomes


async def test_the_client_has_its_answer_while_the_summarizer_still_works(database_url: str, tmp_path: Path) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    def slow(request: Seen) -> Answer:
        asked.set()
        return Answer(sound_summary(request).body, after=may_end.is_set)

    async with (
        serving(model(summary=slow)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        await _fill_until(at, session.id, asked)
        assert await _statuses(at, session.id) == [], "the turn was answered before its summary was there"
        may_end.set()
        await at.rt.chores.settle()
        assert await _statuses(at, session.id) == ["active"]


async def test_the_last_five_turns_stay_raw_and_the_next_prompt_holds_the_summary(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        turns = 0
        while not await _statuses(at, session.id):
            turns += 1
            await _fill(at, session.id, 1)
        outcome = await at.turn(session.id, "And now?")
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert "<conversation-record>" in sent[0]["content"]
        assert len([message for message in sent if message["role"] == "user"]) == 5 + 1
        assert turns >= 6
        assert not outcome.context["summary_triggered"], "it was made before, in the background"


async def test_no_summary_is_made_behind_a_turn_whose_client_says_when_it_wants_one(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        first, second = [(await at.session(policy=POLICY)).id for _ in range(2)]
        turns = 0
        while not await _statuses(at, first):
            turns += 1
            await _fill(at, first, 1)
        await _fill(at, second, turns - 1)
        await at.turn(second, f"Point 1. {LONG}", policy={"summary_trigger_tokens": 100_000})
        await at.rt.chores.settle()
        assert await _statuses(at, second) == []
        await at.turn(second, "And now?")
        await at.rt.chores.settle()
        assert await _statuses(at, second) == ["active"]


async def test_the_summarizer_is_the_policys_fast_alias_and_its_usage_is_the_sessions(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, fast_summarizer(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY | {"summary_model": "fast"})
        await _fill(at, session.id, 8)
        by_model = {request.json["model"] for request in server.seen if is_summary(request)}
        assert by_model == {"fast-model"}
        used = await at.rows("SELECT DISTINCT model_alias FROM usage_records WHERE purpose = 'summary'")
        assert [row["model_alias"] for row in used] == ["fast"]


async def test_a_turn_that_arrives_while_the_summary_is_made_survives_raw(database_url: str, tmp_path: Path) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    def slow(request: Seen) -> Answer:
        asked.set()
        return Answer(sound_summary(request).body, after=may_end.is_set)

    async with (
        serving(model(summary=slow)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        await _fill_until(at, session.id, asked)
        await at.turn(session.id, "Said meanwhile.")
        may_end.set()
        await at.rt.chores.settle()
        assert await _statuses(at, session.id) == ["active"]
        outcome = await at.turn(session.id, "And now?")
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert [message["content"] for message in sent].count("Said meanwhile.") == 1


async def test_what_is_summarized_behind_an_answer_is_what_a_read_of_the_window_finds(
    database_url: str, tmp_path: Path
) -> None:
    def asked(server: ScriptedServer) -> Any:
        (request,) = [each for each in server.seen if is_summary(each)]
        server.seen.clear()
        return request.json

    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        taken_over, read = await at.session(policy=POLICY), await at.session(policy=POLICY | {"auto_summarize": False})
        turns = 0
        while await _statuses(at, taken_over.id) != ["active"]:
            await _fill(at, taken_over.id, 1)
            turns += 1
        behind_answer = asked(server)
        for _ in range(turns):
            await _fill(at, read.id, 1)
        await change_session(at.rt, ref_of(read.id), {"policy": POLICY})
        await summarize_after_turn(at.rt, ref_of(read.id), ())
        assert asked(server) == behind_answer
        windows = [await session_window(at.rt, ref_of(each.id)) for each in (taken_over, read)]
        snapshots = [await snapshot_of(at.rt, rows, no_turn(rows.turn_seq)) for rows in windows]
        assert len({snapshot.past.tokens for snapshot in snapshots}) == 1
        assert len({snapshot.past.turn_count for snapshot in snapshots}) == 1


async def test_two_replicas_never_do_the_same_work_twice(database_url: str, tmp_path: Path) -> None:
    def slow(request: Seen) -> Answer:
        return Answer(sound_summary(request).body, delay_s=0.2)

    async with (
        serving(model(summary=slow)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
        service(database_url, models_toml(server), folder=tmp_path) as replica,
    ):
        session = await at.session(policy=POLICY | {"auto_summarize": False})
        await _fill(at, session.id, 7)
        await change_session(at.rt, ref_of(session.id), {"policy": POLICY})
        await asyncio.gather(
            *(summarize_after_turn(each.rt, ref_of(session.id), ()) for each in (at, replica, at, replica))
        )
        assert len([request for request in server.seen if is_summary(request)]) == 1
        assert await _statuses(at, session.id) == ["active"]


async def test_a_stale_result_is_dropped_and_logged(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the summary is made in the background, somebody else makes one: that one stays."""
    asked, may_end = asyncio.Event(), asyncio.Event()
    calls = 0

    def first_slow(request: Seen) -> Answer:
        nonlocal calls
        calls += 1
        asked.set()
        return Answer(sound_summary(request).body, after=may_end.is_set if calls == 1 else None)

    async with (
        serving(model(summary=first_slow)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        await _fill_until(at, session.id, asked)
        # The lease of the one that runs has ended, as that of a process that was stopped for a while.
        await at.rows("UPDATE sessions SET summary_lease_expires_at = statement_timestamp() RETURNING id")
        with caplog.at_level(logging.INFO):
            await summarize_after_turn(at.rt, ref_of(session.id), ())
            may_end.set()
            await at.rt.chores.settle()
        assert await _statuses(at, session.id) == ["active"]
        assert "was dropped (stale)" in caplog.text


async def test_a_summary_of_what_another_replica_has_summarized_meanwhile_is_not_paid_for(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
        service(database_url, models_toml(server), folder=tmp_path) as replica,
    ):
        session = await at.session(policy=POLICY | {"auto_summarize": False})
        await _fill(at, session.id, 7)
        rows = await session_window(at.rt, ref_of(session.id))
        snapshot = await snapshot_of(at.rt, rows, no_turn(rows.turn_seq))
        fold = fold_on_request(snapshot, rows.estimate)
        assert fold is not None
        await summarize_now(replica.rt, ref_of(session.id))
        attempt = await summarize(at.rt, SummaryJob(rows, fold, snapshot, "post_turn"))
        assert (attempt.failure, attempt.summary) == (STALE, None)
        assert len([request for request in server.seen if is_summary(request)]) == 1
        assert await _statuses(at, session.id) == ["active"]


async def test_a_turn_that_only_fits_with_a_summary_goes_on_with_the_one_that_was_stored_first(
    database_url: str, tmp_path: Path
) -> None:
    calls, may_end = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]

    def each_when_it_may(request: Seen) -> Answer:
        call = [event.is_set() for event in calls].index(False)
        calls[call].set()
        return Answer(sound_summary(request).body, after=may_end[call].is_set)

    async with (
        serving(model(summary=each_when_it_may)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        await _fill_until(at, session.id, calls[0])
        turn = asyncio.create_task(at.turn(session.id, LONG * 2))
        await calls[1].wait()
        may_end[0].set()
        await at.rt.chores.settle()
        assert await _statuses(at, session.id) == ["active"], "the one in the background, while the turn makes its own"
        may_end[1].set()
        outcome = await turn
        assert outcome.turn.assistant_output == "Noted."
        assert await _statuses(at, session.id) == ["active"], "the turn's own was dropped"
        sent = (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)).messages
        assert "<conversation-record>" in sent[0]["content"]


async def test_what_a_crash_takes_away_the_next_turns_check_finds_again(database_url: str, tmp_path: Path) -> None:
    def slow(request: Seen) -> Answer:
        asked.set()
        return Answer(sound_summary(request).body, after=is_dead.is_set)

    asked, is_dead = asyncio.Event(), asyncio.Event()
    async with serving(model(summary=slow)) as server:
        async with service(database_url, models_toml(server), folder=tmp_path) as dying:
            session = await dying.session(policy=POLICY)
            await _fill_until(dying, session.id, asked)
            # Leaving cancels what runs, as a crash does.
        is_dead.set()
        server.script[:] = [model()]
        async with service(database_url, models_toml(server), folder=tmp_path) as at:
            assert await _statuses(at, session.id) == []
            await at.turn(session.id, "And now?")
            await at.rt.chores.settle()
            assert await _statuses(at, session.id) == ["active"]


async def test_with_the_switch_off_nothing_is_summarized_in_the_background(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY | {"auto_summarize": False})
        await _fill(at, session.id, 7)
        assert await _statuses(at, session.id) == []
        assert not any(is_summary(request) for request in server.seen)


async def test_the_check_before_the_call_still_guards_a_window_that_fills_in_one_turn(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"preset": "post_turn", "protected_turns": 1})
        await _fill(at, session.id, 4)
        outcome = await at.turn(session.id, LONG * 4)
        assert outcome.context["summary_triggered"]
        assert outcome.context["estimated_input_tokens_after_prune"] <= outcome.context["input_budget"]


async def test_outcomes_durations_and_summaries_per_hundred_turns_are_measured(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy=POLICY)
        await _fill(at, session.id, 8)
        rendered = at.rt.telemetry.render()[0].decode()
        made = len(await _statuses(at, session.id))
        assert made >= 1
        assert f'context_summary_outcome_total{{outcome="used",when="post_turn"}} {float(made)}' in rendered
        assert f'context_summary_seconds_count{{when="post_turn"}} {float(made)}' in rendered
        assert f"context_summary_count_total {float(made)}" in rendered
        assert f"context_summaries_per_hundred_turns {100 * made / 8}" in rendered


async def test_a_turn_that_runs_already_leaves_a_summary_of_cached_turns_to_the_background(
    database_url: str, tmp_path: Path
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    def reply(request: Seen) -> Answer:
        if "Wait." not in str(request.json["messages"][-1]["content"]):
            return chat("Noted.")
        begun.set()
        return Answer(chat("Noted.").body, after=may_end.is_set)

    async with serving(model(reply)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy=POLICY | {"summarize_when": "never"})
        for number in range(6):
            await at.turn(session.id, f"Point {number}. {LONG[:600]}")
        policy = POLICY | {"max_messages": 4, "protected_turns": 1}
        await change_session(at.rt, ref_of(session.id), {"policy": policy})
        running = asyncio.create_task(at.turn(session.id, "Wait."))
        await begun.wait()
        try:
            await summarize_after_turn(at.rt, ref_of(session.id), ())
            assert await _statuses(at, session.id) == ["active"]
            assert (await at.rows("SELECT summary_count_after_seq FROM sessions"))[0]["summary_count_after_seq"] == 6
        finally:
            may_end.set()
            await running
