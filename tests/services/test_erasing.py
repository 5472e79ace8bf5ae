"""Erasing a session for good: nothing of it stays, whatever it has and whatever runs in it just then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.db.recall import save_vectors
from app.db.sql import sql
from app.db.tables import metadata
from app.domain.errors import NotFound, PlimsollError, SessionBusy, TurnCancelled
from app.domain.responses import ResponseNote
from app.domain.types import JsonObject, Pin, RecordedReply, Session, SessionId, SessionRef, TenantId
from app.services.limits import set_limits
from app.services.process_state import HeavyWork
from app.services.sessions import create_session, delete_session, put_pin
from app.services.summaries import summarize_now
from app.services.views.turns import get_expanded_audit, get_prompt
from tests.pooling import own_connection, own_database
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import TENANT, Service, chat, is_summary, model, models_toml, ref_of, service, sound_summary
from tests.services.test_limits import usage
from torture.databases import citus_servers

OTHER_ENCODING = """
[models.other]
provider = "openai"
model = "other-model"
base_url = "{base_url}"
context_window = 4096
encoding = "cl100k_base"
"""


def of_a_session() -> list[sa.Table]:
    """Every table with rows that belong to a session: by a column, or by foreign keys that lead to `sessions`."""
    found = {"sessions"}
    while True:
        reaching = {
            table.name
            for table in metadata.sorted_tables
            if "session_id" in table.c or any(key.column.table.name in found for key in table.foreign_keys)
        }
        if reaching <= found:
            return [table for table in metadata.sorted_tables if table.name in found]
        found |= reaching


def test_every_table_of_a_session_has_the_session_id() -> None:
    """What erasing and the test of it go by: a row that only a chain of keys leads to would be neither counted."""
    assert [table.name for table in of_a_session() if "session_id" not in table.c] == ["sessions"]


async def rows_of(at: Service, session_id: SessionId) -> dict[str, int]:
    """How many rows each table has of the session."""
    return {name: len(rows) for name, rows in (await every_row(at, session_id)).items()}


async def every_row(at: Service, session_id: SessionId) -> dict[str, list[JsonObject]]:
    """All rows of the session, by table."""
    found: dict[str, list[JsonObject]] = {}
    for table in of_a_session():
        column = "id" if table.name == "sessions" else "session_id"
        order = ", ".join(each.name for each in table.primary_key)
        sql = f"SELECT * FROM {table.name} WHERE {column} = CAST(:sid AS uuid) ORDER BY {order}"  # noqa: S608 - our own names
        found[table.name] = await at.rows(sql, sid=session_id)
    return found


@asynccontextmanager
async def with_models(database_url: str, folder: Path, *plays: Any) -> AsyncGenerator[tuple[Service, ScriptedServer]]:
    """A service with the aliases `main` and `other`, which count in different encodings."""
    async with serving(*(plays or (model(),))) as server:
        models = models_toml(server, extra=OTHER_ENCODING.format(base_url=server.base_url))
        async with service(database_url, models, folder=folder) as at:
            yield at, server


async def session_with_a_row_in_every_table(at: Service, tenant_id: TenantId = TENANT) -> Session:
    """One that was used in every way that leaves something behind."""
    session = await create_session(
        at.rt, tenant_id, {"instructions": "Be brief.", "limits": {"turns_total": 1000}, "metadata": {"of": "a test"}}
    )
    await put_pin(at.rt, SessionRef(tenant_id, session.id), Pin("port", "The port is 8443."))
    for number in range(10):  # the ninth makes a summary; what it stands for is indexed
        await at.turn(session.id, f"Point {number}. " + "ledger " * 60, key=f"key {number}", tenant_id=tenant_id)
    await at.turn(session.id, "Counted in another encoding.", model_alias="other", tenant_id=tenant_id)
    note = ResponseNote("0" * 64, {}, at.rt.now())
    await at.turn(session.id, "As a response.", tenant_id=tenant_id, note=note)
    async with at.rt.database.autocommit() as tx:
        await save_vectors(tx, session.id, "a-model/1", [1], [b"\1"])
    counted = await rows_of(at, session.id)
    assert [name for name, rows in counted.items() if not rows] == [], "a table that no use of the session reaches"
    return session


async def test_delete_leaves_no_row_of_the_session_in_any_table(database_url: str, tmp_path: Path) -> None:
    async with with_models(database_url, tmp_path) as (at, _):
        kept = await session_with_a_row_in_every_table(at)
        before = await rows_of(at, kept.id)
        erased = await session_with_a_row_in_every_table(at)
        await delete_session(at.rt, ref_of(erased.id))
        assert set((await rows_of(at, erased.id)).values()) == {0}
        assert await rows_of(at, kept.id) == before
        with pytest.raises(NotFound):
            await delete_session(at.rt, ref_of(erased.id))


async def test_another_tenant_erases_nothing(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        with pytest.raises(NotFound):
            await delete_session(at.rt, SessionRef(TenantId("other"), session.id))
        assert (await rows_of(at, session.id))["sessions"] == 1


async def test_erasing_a_session_does_not_restore_the_tenants_limits(database_url: str, tmp_path: Path) -> None:
    async with with_models(database_url, tmp_path) as (at, _):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        session = await at.session()
        await at.turn(session.id, "Paid for.")
        before = await usage(at)
        await delete_session(at.rt, ref_of(session.id))
        assert await usage(at) == before
        assert before[0]["tokens"] == 15


async def test_a_turn_that_runs_is_cancelled_and_what_it_had_reserved_counts_as_used(
    database_url: str, tmp_path: Path
) -> None:
    async with with_models(database_url, tmp_path, Answer(chat("Late.").body, delay_s=60)) as (at, server):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        session = await at.session()
        running = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        (held,) = await usage(at)
        assert held["reserved_tokens"] > 0
        await delete_session(at.rt, ref_of(session.id))
        with pytest.raises(TurnCancelled):
            await running
        (counted,) = await usage(at)
        assert (counted["reserved_tokens"], counted["tokens"]) == (0, held["reserved_tokens"])
        assert set((await rows_of(at, session.id)).values()) == {0}


async def test_an_erasure_that_could_not_settle_what_a_turn_had_reserved_is_done_whole_by_the_next_try(
    database_url: str, tmp_path: Path
) -> None:
    async with with_models(database_url, tmp_path, Answer(chat("Late.").body, delay_s=60)) as (at, server):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        session = await at.session()
        running = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        (held,) = await usage(at)
        impatient = own_database(database_url, pool_size=2, lock_timeout_s=0.2)
        async with at.rt.database.begin() as tx:
            await tx.fetch(sql("SELECT 1 FROM tenant_usage WHERE tenant_id = :tenant_id FOR UPDATE"), tenant_id=TENANT)
            with pytest.raises(SessionBusy):
                await delete_session(replace(at.rt, heavy=HeavyWork(impatient, 1.0)), ref_of(session.id))
        await impatient.aclose()
        assert await at.rows("SELECT status FROM turns") == [{"status": "running"}]
        await delete_session(at.rt, ref_of(session.id))
        with pytest.raises(TurnCancelled):
            await running
        (counted,) = await usage(at)
        assert (counted["reserved_tokens"], counted["tokens"]) == (0, held["reserved_tokens"])


async def test_a_summary_that_is_made_meanwhile_ends_as_not_found_and_leaves_nothing(
    database_url: str, tmp_path: Path
) -> None:
    asked, erased = asyncio.Event(), asyncio.Event()

    def slow_summary(request: Seen) -> Answer:
        if not is_summary(request):
            return chat("Noted.")
        asked.set()
        return Answer(sound_summary(request).body, after=erased.is_set)

    async with with_models(database_url, tmp_path, slow_summary) as (at, _):
        session = await at.session(policy={"auto_summarize": False})
        for number in range(6):
            await at.turn(session.id, f"Point {number}. " + "ledger " * 50)
        making = asyncio.create_task(summarize_now(at.rt, ref_of(session.id)))
        await asked.wait()
        await delete_session(at.rt, ref_of(session.id))
        erased.set()
        with pytest.raises(NotFound):
            await making
        assert set((await rows_of(at, session.id)).values()) == {0}


async def test_erasing_among_running_turns_ends_every_one_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    """Turns begin, end and are settled at the moment of the erasure: no lock is waited for in a circle."""
    async with with_models(database_url, tmp_path, chat("Noted.")) as (at, _):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(10_000_000)})
        ended: list[str] = []

        async def talk(session_id: SessionId) -> None:
            for number in range(20):
                try:
                    await at.turn(session_id, f"Point {number}")
                except PlimsollError as error:
                    ended.append(error.code)
                    if isinstance(error, NotFound):
                        return

        for round_number in range(15):
            sessions = [(await at.session()).id for _ in range(4)]
            talking = [asyncio.create_task(talk(session_id)) for session_id in sessions]
            await asyncio.sleep(0.01 + round_number * 0.004)
            await asyncio.gather(*(delete_session(at.rt, ref_of(session_id)) for session_id in sessions))
            await asyncio.gather(*talking)
            for session_id in sessions:
                assert set((await rows_of(at, session_id)).values()) == {0}
        assert set(ended) <= {"not_found", "turn_cancelled", "worker_lost"}
        assert (await usage(at))[0]["reserved_tokens"] == 0


_WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.skipif(citus_servers() is not None, reason="it locks a table of one server")
async def test_a_prompt_that_is_read_while_its_session_is_erased_is_whole(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session(instructions="Answer briefly.")
        turn = (await at.turn(session.id, "Hi")).turn
        before = await get_prompt(at.rt, ref_of(session.id), turn.id, None)
        reading = get_prompt(at.rt, ref_of(session.id), turn.id, None)
        assert await _erased_before(at, database_url, session.id, reading, "prompt_blocks") == before


@pytest.mark.skipif(citus_servers() is not None, reason="it locks a table of one server")
async def test_an_audit_whose_actions_are_read_while_its_session_is_erased_is_whole(database_url: str) -> None:
    """The turn, its audit and the messages of the audit's ranges were read one after the other, each as it was then."""
    async with service(database_url) as at:
        session = await at.session(policy={"auto_summarize": False, "max_context_tokens": 4000})
        reply = RecordedReply("word " * 600)
        turns = [(await at.turn(session.id, f"Point {number}.", recorded_reply=reply)).turn for number in range(12)]
        turn = turns[-1]
        before = await get_expanded_audit(at.rt, ref_of(session.id), turn.id, None)
        assert before.context_trim_log["actions"]
        reading = get_expanded_audit(at.rt, ref_of(session.id), turn.id, None)
        assert await _erased_before(at, database_url, session.id, reading, "messages") == before


async def _erased_before(
    at: Service, database_url: str, session_id: SessionId, reading: Coroutine[Any, Any, object], table: str
) -> object:
    """What is read of a session that is erased before this table is read, and after what is read before it."""
    async with own_connection(database_url) as connection, connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        found = asyncio.create_task(reading)
        while not await at.rows(_WAITS):
            assert not found.done(), "it did not read the table"
            await asyncio.sleep(0.01)
        await connection.execute("DELETE FROM sessions WHERE id = $1", session_id)
    assert await at.rows("SELECT id FROM sessions") == []
    return await found
