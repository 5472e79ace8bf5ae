"""Summaries made ahead: the next call finds what it would have waited for, once, and loses nothing by coming early."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.domain.types import SessionId
from app.engine.policy.policy import ContextPolicy
from app.services.limits import set_limits
from app.services.summaries import list_summaries, undo_summary
from app.services.turn.take import prepare_regeneration, regenerate_turn
from app.services.turn.types import TurnRequest
from app.services.views.turns import get_prompt
from bench.wire import Tally, counting_proxy
from tests.pooling import behind_pooler
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import (
    NEWEST,
    TENANT,
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
AHEAD = ContextPolicy()
WINDOW = 128_000


async def _turns(at: Service, session_id: SessionId, number: int) -> list[Any]:
    """Turns each of which waits for what the one before started."""
    outcomes: list[Any] = []
    for count in range(1, number + 1):
        outcomes.append(await at.turn(session_id, f"Point {count}. {LONG}"))
        await at.rt.chores.settle()
    return outcomes


async def _summaries(at: Service, session_id: SessionId) -> list[Any]:
    return (await list_summaries(at.rt, ref_of(session_id), NEWEST)).items


async def _users_words(at: Service, session_id: SessionId, outcome: Any) -> int:
    sent = (await get_prompt(at.rt, ref_of(session_id), outcome.turn.id, None)).messages
    return sum(message["role"] == "user" for message in sent)


def _asked(server: ScriptedServer) -> int:
    return sum(map(is_summary, server.seen))


async def test_the_ninth_turn_finds_its_summary_made_of_what_it_would_have_folded(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session()
        assert not await _summaries(at, session.id)
        outcomes = await _turns(at, session.id, 9)
        assert not any(outcome.context["summary_triggered"] for outcome in outcomes), "no turn waited"
        (summary,) = await _summaries(at, session.id)
        assert (summary.origin, summary.created_by_turn_id) == ("model", None), (
            "not to be known from one made before a call"
        )
        assert outcomes[-1].context["regions"]["summary"]
        assert await _users_words(at, session.id, outcomes[-1]) == 4 + 1
        rendered = at.rt.telemetry.render()[0].decode()
        assert 'context_summary_outcome_total{outcome="used",when="post_turn"} 1.0' in rendered


async def test_there_are_no_more_summaries_than_without(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        found: list[list[int]] = []
        for ahead in (True, False):
            session = await at.session(policy={"summarize_ahead": ahead})
            await _turns(at, session.id, 18)
            rows = await at.rows(
                "SELECT to_message_seq AS seq FROM session_summaries WHERE session_id = CAST(:id AS uuid) ORDER BY id",
                id=session.id,
            )
            found.append([row["seq"] for row in rows])
        assert found == [[8, 24], [8, 24]]


async def test_by_tokens_it_is_made_within_an_average_turn_of_the_trigger(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session(policy={"mandatory_summary_turn": None})
        outcomes = await _turns(at, session.id, 16)
        assert not any(outcome.context["summary_triggered"] for outcome in outcomes)
        assert [summary.status for summary in await _summaries(at, session.id)].count("active") == 1


async def test_a_client_that_always_sends_the_whole_past_pays_for_no_summary(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session()
        for count in range(10):
            await at.turn(session.id, f"Point {count}. {LONG}", whole_past=True)
            await at.rt.chores.settle()
        assert _asked(server) == 0
        await at.turn(session.id, "And now, with a summary?")
        assert _asked(server) == 1


async def test_answers_that_are_made_again_pay_for_no_summary_each_and_the_turn_after_them_makes_it(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        source = ref_of((await at.session()).id)
        *_, eighth = await _turns(at, source.id, 8)
        for _ in range(3):
            prepared = await prepare_regeneration(at.rt, source, eighth.turn.id, TurnRequest(None, "x"))
            eighth = await regenerate_turn(at.rt, TENANT, prepared)
            await at.rt.chores.settle()
            source = ref_of(prepared[0].id)
        assert _asked(server) == 1, "behind the first of the four answers"
        ninth = await at.turn(source.id, "Point 9.")
        assert ninth.context["summary_triggered"]
        assert _asked(server) == 2
        await _turns(at, source.id, 7)
        assert _asked(server) == 3, "from its second turn on a fork has summaries ahead, as any session"
        assert not (await at.turn(source.id, "Point 17.")).context["summary_triggered"]


async def test_with_the_setting_off_the_turn_makes_it_before_its_call(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session(policy={"summarize_ahead": False})
        outcomes = await _turns(at, session.id, 9)
        assert [outcome.context["summary_triggered"] for outcome in outcomes] == [False] * 8 + [True]


def _slow(asked: asyncio.Event, may_end: asyncio.Event) -> Any:
    def answer(request: Seen) -> Answer:
        first = not asked.is_set()
        asked.set()
        return Answer(sound_summary(request).body, after=may_end.is_set if first else None)

    return answer


async def test_a_turn_that_comes_meanwhile_goes_on_with_all_that_was_said(database_url: str, tmp_path: Path) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()
    async with (
        serving(model(summary=_slow(asked, may_end))) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session()
        for number in range(8):
            await at.turn(session.id, f"Point {number}. {LONG}")
        await asked.wait()
        ninth = await at.turn(session.id, "Said meanwhile.")
        assert not ninth.context["summary_triggered"]
        assert await _users_words(at, session.id, ninth) == 9
        may_end.set()
        await at.rt.chores.settle()
        tenth = await at.turn(session.id, "And now?")
        assert _asked(server) == 1
        assert [summary.status for summary in await _summaries(at, session.id)] == ["active"]
        assert await _users_words(at, session.id, tenth) == 5 + 1


async def test_a_turn_that_has_no_room_meanwhile_makes_its_own_and_loses_nothing(
    database_url: str, tmp_path: Path
) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()
    async with (
        serving(model(summary=_slow(asked, may_end))) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session()
        for number in range(8):
            await at.turn(session.id, f"Point {number}. {LONG}")
        await asked.wait()
        ninth = await at.turn(session.id, LONG * 10)
        assert ninth.context["summary_triggered"]
        assert not ninth.context["prune_triggered"]
        may_end.set()
        await at.rt.chores.settle()
        assert [summary.status for summary in await _summaries(at, session.id)] == ["active"], "the other was dropped"


async def test_what_a_crash_takes_away_the_next_turn_makes_first(database_url: str, tmp_path: Path) -> None:
    asked, is_dead = asyncio.Event(), asyncio.Event()
    async with serving(model(summary=_slow(asked, is_dead))) as server:
        models = models_toml(server, window=WINDOW)
        async with service(database_url, models, folder=tmp_path, policy=AHEAD) as dying:
            session = await dying.session()
            for number in range(8):
                await dying.turn(session.id, f"Point {number}. {LONG}")
            await asked.wait()
            # Leaving cancels what runs, as a crash does.
        is_dead.set()
        async with service(database_url, models, folder=tmp_path, policy=AHEAD) as at:
            assert not await _summaries(at, session.id)
            assert (await at.turn(session.id, "And now?")).context["summary_triggered"]
            assert [summary.status for summary in await _summaries(at, session.id)] == ["active"]


async def test_one_that_is_taken_back_is_not_made_again_at_once(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        session = await at.session()
        await _turns(at, session.id, 8)
        (made,) = await _summaries(at, session.id)
        await undo_summary(at.rt, ref_of(session.id), made.id)
        (ninth,) = await _turns(at, session.id, 1)
        assert await _users_words(at, session.id, ninth) == 9
        assert [summary.status for summary in await _summaries(at, session.id)] == ["undone"]


async def test_its_tokens_are_counted_against_the_limits(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(summary=sound_summary)) as server,
        service(database_url, models_toml(server, window=WINDOW), folder=tmp_path, policy=AHEAD) as at,
    ):
        await set_limits(at.rt.database, TENANT, {"tokens_per_day": Decimal(1_000_000)})
        session = await at.session()
        await _turns(at, session.id, 8)
        (row,) = await at.rows("SELECT tokens FROM tenant_usage WHERE span = 'day'")
        assert row["tokens"] == 8 * (10 + 5) + (100 + 20)


@pytest.mark.skipif(behind_pooler(), reason="behind a pooler every statement is in a transaction of its own")
async def test_a_summary_takes_two_round_trips(database_url: str, tmp_path: Path) -> None:
    """Its lease with the limits it is held to; and the summary with its note, its use and the end of its lease.

    Without recall, which looks again among the messages that the summary took in.
    """
    tally = Tally()
    seen: list[tuple[int, int]] = []

    def answer(request: Seen) -> Answer:
        seen.append((len(tally.statements), tally.round_trips))
        return sound_summary(request) if is_summary(request) else chat("Noted.")

    async with (
        serving(answer) as server,
        counting_proxy(database_url, tally) as counted_url,
        service(counted_url, models_toml(server, window=WINDOW), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"recall": {"enabled": False}})
        for _ in range(16):  # the ninth makes the first, which prepares the statements
            await at.turn(session.id, LONG)
        tally.clear()
        seen.clear()
        await at.turn(session.id, LONG)
        (_, before_summarizer), (_, before_call) = seen
        assert [("UPDATE sessions SET summary_lease_id" in text) for text in tally.statements].count(True) == 1
        stored = [text for text in tally.statements if "INSERT INTO session_summaries" in text]
        assert len(stored) == 1
        assert before_call - before_summarizer == 1, "what a summary stores"
