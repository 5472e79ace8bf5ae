"""What is measured of the database is what happens there: waits for the pool, open turns, lost ones, an outage."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.db.claims import claim_turn
from app.domain.errors import DatabaseUnavailable
from app.domain.types import SessionId
from app.services import background
from app.services.background import probe_database, sweep_forever
from app.services.openai.conversations import add_items
from app.services.runtime import Runtime
from app.services.turn.claim import draft_turn
from app.services.turn.types import TurnRequest
from app.services.views.deployment import readiness
from app.telemetry.metrics import Telemetry
from tests.pooling import own_connection, own_database, past_pooler
from tests.providers.server import Answer, Seen, serving
from tests.services.faulty_database import faulty_database
from tests.services.service import Service, chat, model, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls
from tests.telemetry.test_metrics import values
from torture.databases import connected


def measured(telemetry: Telemetry) -> dict[str, float]:
    return values(telemetry.render()[0].decode())


async def claim(at: Service) -> SessionId:
    """A turn that nobody runs, and its session."""
    session = await at.session()
    draft = await draft_turn(at.rt, TurnRequest(content="Never answered", request_sha256="x"), None)
    async with at.rt.database.begin() as tx:
        await claim_turn(tx, ref_of(session.id), draft, at.rt.turn_lease_s)
    return session.id


async def test_a_wait_for_the_pool_is_measured_also_when_it_was_in_vain(database_url: str) -> None:
    telemetry = Telemetry(["main"])
    database = own_database(database_url, pool_timeout_s=0.3)
    async with database.autocommit():
        pass  # connected: that takes a while on a busy machine
    database.watched_by(telemetry.database.connection_waited_for, telemetry.database.connection_used)
    began = time.monotonic()
    try:
        async with database.autocommit():
            with pytest.raises(DatabaseUnavailable):
                async with database.autocommit():
                    pass
    finally:
        await database.aclose()
    found = measured(telemetry)
    assert found["db_pool_wait_seconds_count"] == 2
    assert found["db_pool_wait_seconds_sum"] >= 0.3
    assert found["db_pool_wait_seconds_bucket,le=0.25"] == 1
    assert 0.3 <= found["db_connection_use_seconds_total"] <= time.monotonic() - began


async def test_open_turns_are_counted_with_the_age_of_the_oldest_until_they_end(database_url: str) -> None:
    async with service(database_url) as at:
        await probe_database(at.rt)
        assert measured(at.rt.telemetry)["open_turns,status=running"] == 0
        began = time.monotonic()
        await claim(at)
        await asyncio.sleep(0.2)
        await claim(at)
        await probe_database(at.rt)
        found = measured(at.rt.telemetry)
        assert found["open_turns,status=running"] == 2
        assert 0.2 <= found["oldest_open_turn_seconds,status=running"] <= time.monotonic() - began
        assert found["open_turns,status=awaiting_tools"] == 0


async def test_a_turn_with_tool_calls_runs_from_its_newest_output_on(database_url: str, tmp_path: Path) -> None:
    looked: list[bool] = []
    has_output = asyncio.Event()

    def reply(seen: Seen) -> Answer:
        if seen.json["messages"][-1]["role"] != "tool":
            return calls("c1")
        has_output.set()
        return Answer(chat("Done.").body, after=lambda: bool(looked))

    async with serving(model(reply)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await at.turn(session.id, "Look it up.", tools=TOOLS)).turn
        await at.rows(
            "WITH t AS (UPDATE turns SET created_at = :at RETURNING 1),"
            " m AS (UPDATE messages SET created_at = :at RETURNING 1) SELECT 1 FROM t, m",
            at=datetime.now(UTC) - timedelta(hours=1),
        )
        await probe_database(at.rt)
        assert measured(at.rt.telemetry)["oldest_open_turn_seconds,status=awaiting_tools"] >= 3600
        running = asyncio.create_task(at.outputs(session.id, turn.id, {"c1": "Found."}))
        await has_output.wait()
        await probe_database(at.rt)
        found = measured(at.rt.telemetry)
        looked.append(True)
        await running
        assert found["open_turns,status=running"] == 1
        assert found["oldest_open_turn_seconds,status=running"] < 3600


async def test_lost_turns_are_counted_by_whoever_ends_them(database_url: str) -> None:
    async with service(database_url, lease_s=0.1) as at:
        await claim(at)
        sweeper = asyncio.create_task(sweep_forever(at.rt))
        try:
            for _ in range(1500):
                await asyncio.sleep(0.02)
                if measured(at.rt.telemetry)["turns_lost_total"]:
                    break
        finally:
            sweeper.cancel()
        assert measured(at.rt.telemetry)["turns_lost_total"] == 1


async def test_a_locked_session_keeps_no_lost_turn_of_another_open(database_url: str) -> None:
    """Neither does it keep those that were ended from being counted."""
    own = own_database(database_url, lock_timeout_s=0.1)
    async with (
        service(database_url, lease_s=0.1) as at,
        aclosing(own) as database,
        own_connection(database_url) as somebody,
    ):
        sweeping = replace(at.rt, database=database)
        first, locked, last = [await claim(at) for _ in range(3)]
        assert first < locked < last, "they are swept in this order"
        await somebody.execute("BEGIN")
        await somebody.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", locked)
        sweeper = asyncio.create_task(sweep_forever(sweeping))
        try:
            for _ in range(1500):
                await asyncio.sleep(0.02)
                if measured(at.rt.telemetry)["turns_lost_total"] == 2:
                    break
        finally:
            sweeper.cancel()
        assert measured(at.rt.telemetry)["turns_lost_total"] == 2
        open_turns = await at.rows("SELECT session_id FROM turns WHERE status = 'running'")
        assert [row["session_id"] for row in open_turns] == [locked]


async def test_a_lost_turn_is_counted_also_where_items_are_added_behind_it(database_url: str) -> None:
    async with service(database_url, lease_s=0.1) as at:
        session_id = await claim(at)
        await asyncio.sleep(0.2)
        await add_items(at.rt, ref_of(session_id), [{"type": "message", "role": "user", "content": "And then?"}])
        assert measured(at.rt.telemetry)["turns_lost_total"] == 1


async def test_a_database_that_is_away_is_seen_and_so_is_its_return(database_url: str) -> None:
    async with faulty_database(database_url) as (url, faults), service(url) as at:
        await probe_database(at.rt)
        assert measured(at.rt.telemetry)["database_up"] == 1
        faults.go_away()
        await probe_database(at.rt)
        assert faults.fired > 0
        assert measured(at.rt.telemetry)["database_up"] == 0
        faults.come_back()
        await probe_database(at.rt)
        assert measured(at.rt.telemetry)["database_up"] == 1


async def test_a_database_that_falls_silent_on_open_connections_is_seen_and_so_is_its_return(database_url: str) -> None:
    async with faulty_database(database_url) as (url, faults), service(url) as at:
        rt = replace(at.rt, database=own_database(url, pool_timeout_s=0.5))
        await until_up(rt)
        faults.fall_silent()
        await probe_database(rt)
        assert faults.fired > 0
        assert measured(at.rt.telemetry)["database_up"] == 0
        assert (await readiness(rt)).database == "unavailable"
        faults.answer.set()
        await until_up(rt)
        await rt.database.aclose()


async def test_why_the_database_is_unavailable_is_logged_once_and_so_is_its_return(
    postgres_server: str, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise nothing would tell, for example, that a password was changed: clients do not get the reason."""
    url = past_pooler(database_url)  # it would state the reason in its own words
    name = urlsplit(url).path[1:]
    ends_connections = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608 - a database of ours
    monkeypatch.setattr(background, "_PROBE_S", 0.01)
    async with service(url, transaction_pooler=False) as at:
        probing = asyncio.create_task(background.probe_forever(at.rt))
        try:
            async with connected(postgres_server) as server:
                await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                await server.execute(ends_connections)
                await _until_logged(caplog, "is not currently accepting connections")
                await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
                await _until_logged(caplog, "database_available")
        finally:
            probing.cancel()
    assert caplog.text.count("is not currently accepting connections") == 1


async def _until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    for _ in range(1000):
        if text in caplog.text:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"not logged: {text}")


async def until_up(rt: Runtime) -> None:
    """Probes until the database answers in time, which takes a while on a busy machine."""
    for _ in range(60):
        await probe_database(rt)
        if measured(rt.telemetry)["database_up"] == 1:
            return
    raise AssertionError("the database is still down")
