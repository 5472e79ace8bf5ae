"""The database goes away in the middle of a turn: what was paid for is kept, and nothing is stored twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from app.db.database import Database, Transaction
from app.domain.errors import DatabaseUnavailable, TransactionConflict
from app.domain.types import Session, SessionId, TurnStatus
from app.services.runtime import Runtime
from app.services.summaries import summarize_now, undo_summary
from app.services.views.turns import get_turn
from tests.pooling import behind_pooler
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.faulty_database import DatabaseFaults, faulty_database
from tests.services.service import Service, chat, model, models_toml, ref_of, service

_WAIT_S = 1.5


async def test_a_reply_that_was_paid_for_is_stored_when_the_database_is_back(database_url: str, tmp_path: Path) -> None:
    async with faulty_database(database_url) as (url, faults):

        def while_away(_: Seen) -> Answer:
            faults.go_away()
            asyncio.get_running_loop().call_later(1.0, faults.come_back)
            return chat("Worth its price.")

        async with serving(while_away) as server, service(url, models_toml(server), folder=tmp_path) as at:
            session = await at.session()
            outcome = await at.turn(session.id, "Hi")
            assert faults.fired > 0
            assert outcome.turn.status is TurnStatus.COMPLETED
            assert outcome.turn.assistant_output == "Worth its price."
            assert server.hits == 1
            messages = await at.rows("SELECT role FROM messages ORDER BY seq")
            assert [row["role"] for row in messages] == ["user", "assistant"]


@asynccontextmanager
async def _after_one_turn(
    database_url: str, folder: Path
) -> AsyncGenerator[tuple[Service, DatabaseFaults, ScriptedServer, Session]]:
    """A session with one turn, in a service whose model answers "Once." and whose database has these faults."""
    async with (
        faulty_database(database_url) as (url, faults),
        serving(chat("Once.")) as server,
        service(url, models_toml(server), folder=folder) as at,
    ):
        session = await at.session()
        await at.turn(session.id, "Warm up")
        yield at, faults, server, session


async def test_a_commit_whose_answer_was_lost_is_found_again_and_not_made_twice(
    database_url: str, tmp_path: Path
) -> None:
    async with _after_one_turn(database_url, tmp_path) as (at, faults, server, session):
        # The statements are prepared by now; what tells this one apart is a value of its own.
        faults.swallow_after = b'"Once."'
        outcome = await at.turn(session.id, "Hi")
        assert faults.fired == 1
        assert outcome.turn.assistant_output == "Once."
        stored = await get_turn(at.rt, ref_of(session.id), outcome.turn.id)
        assert stored.status is TurnStatus.COMPLETED
        messages = await at.rows("SELECT seq FROM messages ORDER BY seq")
        assert len(messages) == 4
        audits = await at.rows("SELECT count(*) AS n FROM turn_context_audit")
        assert audits[0]["n"] == 2
        assert server.hits == 2


async def test_a_turn_whose_claim_was_committed_without_an_answer_is_ended_at_once(
    database_url: str, tmp_path: Path
) -> None:
    """Nobody runs it: the session refused other turns until its lease was over."""
    async with _after_one_turn(database_url, tmp_path) as (at, faults, _, session):
        faults.swallow_after = b"COMMIT\0"  # no other transaction comes before the claim's
        with pytest.raises(DatabaseUnavailable):
            await at.turn(session.id, "Hi")
        assert faults.fired == 1
        await _assert_only_ended(at, session.id)


async def test_a_turn_whose_claim_was_committed_by_a_database_that_then_was_away_is_ended_when_it_is_back(
    database_url: str, tmp_path: Path
) -> None:
    async with _after_one_turn(database_url, tmp_path) as (at, faults, _, session):
        faults.swallow_after = b"COMMIT\0"
        faults.away = True  # connections that are open go on
        with pytest.raises(DatabaseUnavailable):
            await at.turn(session.id, "Hi")
        for _ in range(1000):
            if faults.fired >= 2:  # the answer was swallowed, and then the end of the turn was refused
                break
            await asyncio.sleep(0.01)
        assert faults.fired >= 2
        faults.come_back()
        await _assert_only_ended(at, session.id)


async def test_a_turn_that_fails_because_the_database_is_away_is_ended_when_it_is_back(
    database_url: str, tmp_path: Path
) -> None:
    """Its session refused other turns until its lease was over."""
    answers = model()

    async with faulty_database(database_url) as (url, faults):

        def while_away(request: Seen) -> Answer:
            if "response_format" in request.json:  # the summarizer's
                faults.go_away()
            return answers(request)

        async with (
            serving(while_away) as server,
            service(url, models_toml(server), folder=tmp_path, lease_s=600.0) as at,
        ):
            session = await at.session(policy={"protected_turns": 1, "mandatory_summary_turn": 3})
            for number in range(3):
                await at.turn(session.id, f"Point {number}. " + "The job compares ledger rows with bank lines. " * 20)
            with pytest.raises(DatabaseUnavailable):
                await at.turn(session.id, "And now?")
            assert faults.fired > 0
            faults.come_back()
            await at.rt.chores.settle()
            ended = (await at.rows("SELECT status, error FROM turns ORDER BY seq DESC LIMIT 1"))[0]
            assert (ended["status"], ended["error"]["code"]) == ("failed", "database_unavailable")


class _Unacknowledged(Database):
    """A database whose first transaction is committed and never answered."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, pool_size=2, transaction_pooler=behind_pooler())
        self.has_committed = asyncio.Event()

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False, locking: UUID | None = None) -> AsyncGenerator[Transaction]:
        async with super().begin(snapshot=snapshot, locking=locking) as tx:
            yield tx
        if not self.has_committed.is_set():
            self.has_committed.set()
            await asyncio.Event().wait()


async def test_a_turn_whose_request_is_cancelled_while_its_claim_commits_is_ended_at_once(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Once.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        await at.turn(session.id, "Warm up")
        database = _Unacknowledged(database_url)
        async with aclosing(database):
            posted = asyncio.create_task(Service(replace(at.rt, database=database)).turn(session.id, "Hi"))
            await asyncio.wait_for(database.has_committed.wait(), 20)
            posted.cancel()
            with pytest.raises(asyncio.CancelledError):
                await posted
            await _assert_only_ended(at, session.id)


class _Conflicting(Database):
    """A database that rolls its first transaction back at its commit, for a conflict."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, pool_size=2, transaction_pooler=behind_pooler())
        self.transactions = 0

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False, locking: UUID | None = None) -> AsyncGenerator[Transaction]:
        self.transactions += 1
        async with super().begin(snapshot=snapshot, locking=locking) as tx:
            yield tx
            if self.transactions == 1:
                raise TransactionConflict("The database could not do this beside other work.")


async def test_a_claim_that_was_rolled_back_and_is_tried_again_is_not_ended(database_url: str, tmp_path: Path) -> None:
    """The second try has the id of the first."""
    async with serving(chat("Once.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        database = _Conflicting(database_url)
        async with aclosing(database):
            turn = (await Service(replace(at.rt, database=database)).turn(session.id, "Hi")).turn
            await at.rt.chores.settle()
        assert turn.status is TurnStatus.COMPLETED
        assert database.transactions == 2, "both are claims"


async def _assert_only_ended(at: Service, session_id: SessionId) -> None:
    """Of three turns, of which the last is posted here, the second was claimed in vain."""
    await at.rt.chores.settle()
    await at.turn(session_id, "Hi again")
    statuses = await at.rows("SELECT status, error ->> 'code' AS code FROM turns ORDER BY seq")
    assert [(row["status"], row["code"]) for row in statuses] == [
        ("completed", None), ("failed", "worker_lost"), ("completed", None),
    ]  # fmt: skip


@asynccontextmanager
async def impatient(rt: Runtime, url: str) -> AsyncGenerator[Service]:
    """The service with a database that is not waited for long, but longer than a busy machine takes for a statement."""
    database = Database(
        url, pool_size=2, pool_timeout_s=_WAIT_S, longest_use_s=_WAIT_S, transaction_pooler=behind_pooler()
    )
    async with aclosing(database):
        yield Service(replace(rt, database=database))


async def test_requests_end_while_the_database_is_frozen_and_work_once_it_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        faulty_database(database_url) as (url, faults),
        service(url, folder=tmp_path) as patient,
        impatient(patient.rt, url) as at,
    ):
        session = await at.session()
        await at.turn(session.id, "Warm up")
        faults.fall_silent()
        for _ in range(3):  # in a transaction, on a new connection, on another one
            with pytest.raises(DatabaseUnavailable):
                async with asyncio.timeout(20):
                    await at.turn(session.id, "Hi")
        assert faults.fired > 0
        faults.answer.set()
        outcome = await at.turn(session.id, "Hi again")
        assert outcome.turn.status is TurnStatus.COMPLETED
        stored = await at.rows("SELECT user_input FROM turns ORDER BY seq")
        assert [row["user_input"] for row in stored] == ["Warm up", "Hi again"]


@pytest.mark.skipif(behind_pooler(), reason="the pooler keeps its own connection to the server")
async def test_a_statement_whose_connection_was_closed_for_taking_too_long_ends_at_the_server_too(
    database_url: str,
) -> None:
    """It ran on: a tenant whose searches took minutes had as many of them running at the server as it had requested."""
    async with service(database_url) as patient, impatient(patient.rt, database_url) as at:
        running = "SELECT 1 AS one FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%'"
        assert not await patient.rows(running)  # connected: the server ends the statement soon after its connection
        statement = asyncio.create_task(at.rows("SELECT pg_sleep(60)"))
        ran = False
        while not statement.done():
            ran = ran or bool(await patient.rows(running))
            await asyncio.sleep(0.01)
        with pytest.raises(DatabaseUnavailable):
            await statement
        assert ran
        async with asyncio.timeout(20):
            while await patient.rows(running):
                await patient.rows("SELECT pg_sleep(0.1)")


async def test_an_end_that_a_frozen_database_stored_without_an_answer_is_found_and_not_made_twice(
    database_url: str, tmp_path: Path
) -> None:
    async with faulty_database(database_url) as (url, faults):

        def while_frozen(_: Seen) -> Answer:
            faults.fall_silent()
            asyncio.get_running_loop().call_later(2 * _WAIT_S, faults.answer.set)
            return chat("Once.")

        async with (
            serving(while_frozen) as server,
            service(url, models_toml(server), folder=tmp_path) as patient,
            impatient(patient.rt, url) as at,
        ):
            session = await at.session()
            outcome = await at.turn(session.id, "Hi")
            assert faults.fired > 0
            assert outcome.turn.assistant_output == "Once."
            assert server.hits == 1
            messages = await at.rows("SELECT role FROM messages ORDER BY seq")
            assert [row["role"] for row in messages] == ["user", "assistant"]


async def test_a_database_that_stays_away_for_a_lease_is_given_up(database_url: str, tmp_path: Path) -> None:
    async with faulty_database(database_url) as (url, faults):

        def while_away(_: Seen) -> Answer:
            faults.go_away()
            return chat("Lost.")

        async with (
            serving(while_away) as server,
            service(url, models_toml(server), folder=tmp_path, lease_s=1.0) as at,
        ):
            session = await at.session()
            with pytest.raises(DatabaseUnavailable):
                await at.turn(session.id, "Hi")
            faults.come_back()
            assert faults.fired > 1
            await asyncio.sleep(1.1)
            server.script[:] = [chat("Again.")]
            outcome = await at.turn(session.id, "Hi again")
            assert outcome.turn.assistant_output == "Again."
            statuses = await at.rows("SELECT status FROM turns ORDER BY seq")
            assert [row["status"] for row in statuses] == ["failed", "completed"]


async def test_a_summary_whose_lease_was_taken_unheard_keeps_no_other_from_being_made(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        faulty_database(database_url) as (url, faults),
        serving(model()) as server,
        service(url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"protected_turns": 1, "auto_summarize": False})
        for number in range(4):
            await at.turn(session.id, f"Point {number}. " + "The job compares ledger rows with bank lines. " * 20)
        await summarize_now(at.rt, ref_of(session.id))
        await undo_summary(at.rt, ref_of(session.id), None)
        lease_id = at.rt.new_id()
        faults.swallow_after = lease_id.bytes
        with pytest.raises(DatabaseUnavailable):
            await summarize_now(replace(at.rt, new_id=lambda: lease_id), ref_of(session.id))
        assert faults.fired == 1
        assert (await summarize_now(at.rt, ref_of(session.id))).status == "active"
