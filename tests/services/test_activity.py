"""Tenants share one poll of what their turns do: none fills it for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.db.database import Database
from app.db.figures import changed_turns
from app.domain.types import TenantId, TurnStatus
from app.services.process_state import Allowance
from app.services.sessions import create_session
from app.services.turn.take import cancel_turn
from app.services.views.activity import Activity, Follower, next_event
from tests.providers.server import serving
from tests.services.service import TENANT, Service, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls

_ANNA, _BERT = TenantId("anna"), TenantId("bert")
_TURNS_OF_ANY_TIME = """
    WITH imported AS (
        INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, created_at)
        SELECT gen_random_uuid(), :session_id, n, 'failed', '', 'offline', '', now() - interval '3 seconds'
        FROM generate_series(1, 6000) AS n RETURNING 1
    ) SELECT count(*) AS turns FROM imported
    """
"""An import stores turns with the times that its document has."""


async def test_turns_that_one_tenant_imports_keep_no_event_from_another(database_url: str) -> None:
    """5,000 rows were read for all tenants together, the oldest first: others got a `stream.gap` in place of events."""
    async with service(database_url) as at:
        activity = Activity(Allowance("event streams", 2, 0.5), poll_s=0.01)
        with activity.follow(at.rt, _ANNA) as anna, activity.follow(at.rt, _BERT) as bert:
            imported = (await create_session(at.rt, _ANNA, {})).id
            assert (await at.rows(_TURNS_OF_ANY_TIME, session_id=imported))[0]["turns"] == 6_000
            assert await _hears_of_a_turn(at, bert)
            assert not bert.missed
            assert anna.missed
            assert anna.events.qsize() < 6_000


async def _hears_of_a_turn(at: Service, follower: Follower) -> bool:
    session_id = (await create_session(at.rt, follower.tenant_id, {})).id
    turn = (await at.turn(session_id, "Hello.", tenant_id=follower.tenant_id)).turn
    while event := await next_event(follower, 10):
        if (event.turn_id, event.status) == (turn.id, turn.status):
            return True
    return False


class _LatePoll:
    """A database whose polls are answered only once `answered` is set; `asked` is set when the first has its rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def run(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = await self._database.run(work, *given, **named)
        if work is changed_turns:
            self.asked.set()
            await self.answered.wait()
        return found


_WAITS_FOR_LONG = """
    INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, created_at)
    VALUES (gen_random_uuid(), :session_id, 1, 'awaiting_tools', '', 'offline', '', '2026-01-01Z') RETURNING id
    """
"""Its client never came back with the outputs."""


async def test_turns_that_wait_for_tools_for_ever_keep_no_event_from_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll read all of them again, and with 5,000 no other turn was reported."""
    monkeypatch.setattr("app.services.views.activity._MOST_ROWS", 4)
    async with service(database_url) as at:
        activity = Activity(Allowance("event streams", 2, 0.5), poll_s=0.01)
        waiting = [(await at.session()).id for _ in range(5)]
        turn_ids = [(await at.rows(_WAITS_FOR_LONG, session_id=each))[0]["id"] for each in waiting]
        with activity.follow(at.rt, TENANT) as follower:
            assert len(await activity.open_turns(at.rt, TENANT)) == 5
            assert await _hears_of_a_turn(at, follower)
            assert not follower.missed
            await cancel_turn(at.rt, ref_of(waiting[0]), turn_ids[0])
            event = await next_event(follower, 10)
            assert event is not None
            assert (event.turn_id, event.status) == (turn_ids[0], TurnStatus.CANCELLED)


async def test_of_turns_that_wait_for_tools_the_oldest_are_not_watched_for_ever(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.views.activity._MOST_WATCHED", 2)
    async with service(database_url) as at:
        activity = Activity(Allowance("event streams", 2, 0.5), poll_s=0.01)
        ended: list[Any] = []
        with activity.follow(at.rt, TENANT) as follower:
            for _ in range(3):
                session_id = (await at.session()).id
                turn_id = (await at.rows(_WAITS_FOR_LONG, session_id=session_id))[0]["id"]
                await activity.open_turns(at.rt, TENANT)
                ended.append((session_id, turn_id))
            for _ in range(2):  # the poll that reports the first may have begun before the last was listed
                assert await _hears_of_a_turn(at, follower)
            for session_id, turn_id in ended:
                await cancel_turn(at.rt, ref_of(session_id), turn_id)
            heard = [await next_event(follower, 10), await next_event(follower, 10)]
            assert {event.turn_id for event in heard if event} == {turn_id for _, turn_id in ended[1:]}


async def test_a_turn_that_is_listed_while_a_poll_is_under_way_is_watched(database_url: str, tmp_path: Path) -> None:
    """A turn that had waited for tools for long was forgotten as the poll ended, and its end was no event."""
    async with serving(calls("a")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        waiting = (await at.turn((await at.session()).id, "Is a paid?", tools=TOOLS)).turn
        await at.rows("UPDATE turns SET created_at = '2026-01-01Z' RETURNING id")
        late = _LatePoll(at.rt.database)
        rt = replace(at.rt, database=cast(Database, late))
        activity = Activity(Allowance("event streams", 2, 0.5), poll_s=0.01)
        with activity.follow(rt, TENANT) as follower:
            async with asyncio.timeout(30):
                await late.asked.wait()
            assert [each.turn_id for each in await activity.open_turns(rt, TENANT)] == [waiting.id]
            late.answered.set()
            await cancel_turn(at.rt, ref_of(waiting.session_id), waiting.id)
            event = await next_event(follower, 10)
            assert event is not None
            assert (event.turn_id, event.status) == (waiting.id, TurnStatus.CANCELLED)
