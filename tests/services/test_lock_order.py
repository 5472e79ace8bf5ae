"""Every writer of a session takes its row first, so that Postgres finds no deadlock to end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, cast

import pytest

from app.db.claims import Claim
from app.db.records import TurnEnd
from app.domain.errors import TurnInProgress
from app.domain.incoming import IncomingMessage
from app.domain.stored import message_row
from app.domain.types import JsonObject, SessionId, TurnRecord, TurnStatus
from app.engine.recall.index import packed_terms
from app.services.limits import clear_limits, set_limits
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.record import store_end
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.pooling import own_connection
from tests.services.service import TENANT, Service, ref_of, service
from torture.databases import citus_servers

pytestmark = pytest.mark.skipif(citus_servers() is not None, reason="it stops and watches processes of one server")
_PATIENCE_S = 20.0
_LOCK_AS_A_CHANGE_DOES = "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE"
_CHANGE = "UPDATE sessions SET updated_at = statement_timestamp() WHERE id = $1"
_WAITS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND NOT pid = ANY($1)
"""


async def test_the_end_of_a_turn_and_the_next_posts_claim_do_not_wait_for_each_other(database_url: str) -> None:
    """A turn's end waits for a change of the session, and while it has not woken up the next post comes in between.

    Its claim waits for the open turn to end, if that end is written already; and the end, on its way from the session's
    old row to its newest, for the claim.
    """
    async with (
        service(database_url) as at,
        own_connection(database_url) as change,
        own_connection(database_url) as watch,
    ):
        session = await at.session()
        claim = await _claim(at, session.id)
        transaction = change.transaction()
        await transaction.start()
        await change.fetch(_LOCK_AS_A_CHANGE_DOES, session.id)
        end = asyncio.create_task(store_end(at.rt, claim, _completed(at, claim)))
        pid = await _who_waits(watch)
        async with _stopped(pid):
            await change.execute(_CHANGE, session.id)
            await transaction.commit()
            post = asyncio.create_task(at.turn(session.id, "Next"))
            await _done_or_waiting(post, watch, pid)
        turn, refusal = await asyncio.gather(end, post, return_exceptions=True)
        assert isinstance(turn, TurnRecord), turn
        assert turn.status is TurnStatus.COMPLETED
        assert isinstance(refusal, TurnInProgress), refusal
        assert await _deadlocks(watch) == 0


@pytest.mark.parametrize("state", ["40P01", "40001", "55P03", "53100"])
async def test_an_answer_in_hand_is_stored_though_the_database_refused_it_at_first(
    database_url: str, state: str
) -> None:
    """As it does for a deadlock, a serialization failure, a lock timeout, a full disk."""
    async with service(database_url) as at, own_connection(database_url) as watch:
        session = await at.session()
        claim = await _claim(at, session.id)
        await _refuse_once(watch, "UPDATE", state)
        turn = await store_end(at.rt, claim, _completed(at, claim))
        assert turn.status is TurnStatus.COMPLETED
        assert await watch.fetchval("SELECT last_value FROM tries") == 2, "it was not refused"


@pytest.mark.parametrize("state", ["40P01", "40001"])
async def test_a_claim_that_was_rolled_back_for_a_conflict_is_made_again(database_url: str, state: str) -> None:
    async with service(database_url) as at, own_connection(database_url) as watch:
        session = await at.session()
        await _refuse_once(watch, "INSERT", state)
        outcome = await at.turn(session.id, "Hi")
        assert (outcome.turn.seq, outcome.turn.status) == (1, TurnStatus.COMPLETED)
        assert await watch.fetchval("SELECT last_value FROM tries") == 2, "it was not refused"


@pytest.mark.parametrize("writer", ["a post", "a cancel", "who clears the limits"])
async def test_what_a_tenant_used_is_locked_span_by_span_in_one_order(database_url: str, writer: str) -> None:
    async with (
        service(database_url) as at,
        own_connection(database_url) as other,
        own_connection(database_url) as watch,
    ):
        session = await at.session()
        for name in ("turns_total", "turns_per_day"):  # the rows are not in the order of their spans
            await set_limits(at.rt.database, TENANT, {name: Decimal(9)})
            await at.turn(session.id, name)
        claim = await _claim(at, session.id)
        transaction = other.transaction()
        await transaction.start()
        await other.fetch("SELECT 1 FROM tenant_usage WHERE span = 'day' FOR UPDATE")
        if writer == "a post":
            writing: asyncio.Future[Any] = asyncio.ensure_future(at.turn((await at.session()).id, "Next"))
        elif writer == "a cancel":
            writing = asyncio.ensure_future(cancel_turn(at.rt, ref_of(session.id), claim.turn_id))
        else:
            writing = asyncio.ensure_future(clear_limits(at.rt.database, TENANT))
        await _who_waits(watch)
        await other.fetch("SELECT 1 FROM tenant_usage WHERE span = 'total' FOR UPDATE NOWAIT")
        await transaction.rollback()
        await writing


async def _refuse_once(connection: Any, verb: str, state: str) -> None:
    """Has the database refuse the next such statement on turns with this SQLSTATE."""
    await connection.execute(f"""
        CREATE SEQUENCE tries;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('tries') = 1 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE {verb} ON turns FOR EACH ROW EXECUTE FUNCTION refuse()
    """)


async def _claim(at: Service, session_id: SessionId) -> Claim:
    draft = await draft_turn(at.rt, TurnRequest("Hi", "0" * 64), None)
    return (await claim_drafted(at.rt, ref_of(session_id), draft, TurnOptions())).claim


def _completed(at: Service, claim: Claim) -> TurnEnd:
    message, terms = IncomingMessage(0, "assistant", "Yes."), packed_terms("assistant", "Yes.")
    reply = message_row(at.rt.new_id(), message, (3, 0), "o200k_base", terms) | {"seq": claim.assistant_seq}
    block: JsonObject = {"sha256": "0" * 64, "content": "You are helpful."}  # a row that refers to the session's own
    return TurnEnd(TurnStatus.COMPLETED, "offline", [], [], [block], messages=[reply], assistant_output="Yes.")


@asynccontextmanager
async def _stopped(pid: int) -> AsyncGenerator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _who_waits(connection: Any, *known: int) -> int:
    """The server process that waits for a lock, as soon as one does."""
    async with asyncio.timeout(_PATIENCE_S):
        while (pid := await connection.fetchval(_WAITS, list(known))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return cast(int, pid)


async def _done_or_waiting(task: asyncio.Task[Any], connection: Any, *known: int) -> None:
    waiting = asyncio.create_task(_who_waits(connection, *known))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def _deadlocks(connection: Any) -> int:
    return await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
