"""What a response leaves behind where it is not to be kept, or never came about."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.db.migrate import downgrade, upgrade
from app.domain.errors import DatabaseUnavailable, IdempotencyInFlight, LimitExceeded, TurnCancelled, TurnInProgress
from app.domain.incoming import IncomingMessage
from app.domain.responses import Lifetime, ResponseNote, ResponseRef
from app.domain.types import TurnStatus
from app.services.background import sweep_forever
from app.services.limits import set_limits
from app.services.openai.chat import ChatRequest
from app.services.openai.open_session import Target, respond
from app.services.openai.responses import ResponseRequest, delete_response, resolve_target
from app.services.turn.additions import keep_session
from app.services.turn.types import TurnOptions, TurnOutcome
from tests.pooling import own_connection
from tests.providers.server import Answer, serving
from tests.services.service import TENANT, Service, chat, models_toml, service
from tests.services.test_limits import usage
from tests.services.test_tools import TOOLS, calls
from torture.databases import citus_servers, execute


def asked(
    at: Service, text: str, *, store: bool = True, previous: ResponseRef | None = None, key: str | None = None
) -> ResponseRequest:
    digest = sha256(text.encode()).hexdigest()
    note = ResponseNote(digest, {"conversation": None}, at.rt.now(), is_stored=store)
    chat = ChatRequest(
        (IncomingMessage(0, "user", text),),
        TurnOptions(note=note),
        at.rt.catalogue.default,
        digest,
        idempotency_key=key,
        all_new=True,
        within="input",
        lifetime=Lifetime.WITH_RESPONSES if store else Lifetime.FOR_ANSWER,
    )
    return ResponseRequest(chat, previous)


async def answered(at: Service, request: ResponseRequest) -> TurnOutcome:
    return await respond(at.rt, await resolve_target(at.rt, TENANT, request))


def ref_of(outcome: TurnOutcome) -> ResponseRef:
    assert outcome.reply_seq is not None
    return ResponseRef(outcome.turn.session_id, outcome.reply_seq)


_SAID = {"role": "user", "content": "Hello"}
_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def until_waiting(connection: Any, statements: int) -> None:
    """Returns once so many statements wait for a lock."""
    async with asyncio.timeout(20):
        while await connection.fetchval(_WAITS) < statements:  # noqa: ASYNC110 - the database notifies nobody
            await asyncio.sleep(0.01)


async def session_count(at: Service) -> int:
    return (await at.rows("SELECT count(*) AS n FROM sessions"))[0]["n"]


async def kept_sessions(at: Service) -> int:
    kept = await at.rows("SELECT count(*) AS n FROM sessions WHERE coalesce(erase_after, 'infinity') = 'infinity'")
    return kept[0]["n"]


_LOST_WHEN_NAMED = (
    """
    CREATE FUNCTION lose_connection() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'lost' USING ERRCODE = 'admin_shutdown'; END $$
    """,
    """
    CREATE TRIGGER lost_when_named BEFORE UPDATE OF idempotency_key ON sessions
    FOR EACH ROW EXECUTE FUNCTION lose_connection()
    """,
)


_LOST_WHEN_ERASED = (
    _LOST_WHEN_NAMED[0],
    "CREATE TRIGGER lost_when_erased BEFORE DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION lose_connection()",
)


@pytest.mark.skipif(citus_servers() is not None, reason="distributed tables have no triggers")
async def test_a_fork_whose_key_can_not_be_stored_is_not_kept(database_url: str) -> None:
    async with service(database_url) as at:
        first = await answered(at, asked(at, "One"))
        await answered(at, asked(at, "Two", previous=ref_of(first)))
        otherwise = asked(at, "Otherwise", previous=ref_of(first), key="c")
        await execute(database_url, *_LOST_WHEN_NAMED)
        try:
            with pytest.raises(DatabaseUnavailable):
                await answered(at, otherwise)
        finally:
            await execute(database_url, "DROP FUNCTION lose_connection CASCADE")
        assert (await kept_sessions(at), await session_count(at)) == (1, 1)
        made = await answered(at, otherwise)
        assert (await answered(at, otherwise)).turn.id == made.turn.id
        assert (await kept_sessions(at), await session_count(at)) == (2, 2)


@pytest.mark.parametrize("branches", [True, False], ids=["a fork", "a new session"])
async def test_requests_with_one_key_at_once_make_one_session(database_url: str, branches: bool) -> None:
    async with service(database_url) as at:
        first = await answered(at, asked(at, "One"))
        await answered(at, asked(at, "Two", previous=ref_of(first)))
        request = asked(at, "Otherwise", previous=ref_of(first) if branches else None, key="c")
        targets = [await resolve_target(at.rt, TENANT, request) for _ in range(2)]
        results = await asyncio.gather(*[respond(at.rt, target) for target in targets], return_exceptions=True)
        (made,) = [result for result in results if isinstance(result, TurnOutcome)]
        assert [type(result) for result in results if result is not made] == [IdempotencyInFlight]
        assert (await answered(at, request)).turn.id == made.turn.id
        assert (await kept_sessions(at), await session_count(at)) == (2, 2)


async def test_a_request_is_answered_though_one_with_its_key_that_began_with_it_was_refused(database_url: str) -> None:
    async with service(database_url) as at:
        request = asked(at, "One", key="c")
        first, second = [await resolve_target(at.rt, TENANT, request) for _ in range(2)]
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(0)})
        with pytest.raises(LimitExceeded):
            await respond(at.rt, first)
        assert await session_count(at) == 0
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(1)})
        made = await respond(at.rt, second)
        assert (await answered(at, request)).turn.id == made.turn.id
        assert await session_count(at) == 1


async def test_an_expired_unstored_session_is_erased_by_the_next_sweep(database_url: str) -> None:
    """The process that answered died: its time is written with the session."""
    async with service(database_url, lease_s=0.05) as at:
        kept = await answered(at, asked(at, "Keep me"))
        target = await resolve_target(at.rt, TENANT, asked(at, "Quiet", store=False))
        fork = await resolve_target(at.rt, TENANT, asked(at, "Quiet too", store=False, previous=ref_of(kept)))
        running = await resolve_target(at.rt, TENANT, asked(at, "Runs", store=False))
        for new in (target, running):
            await keep_session(at.rt, new.session, new.request.keeping)
        due = await at.rows("SELECT id, erase_after - now() AS left FROM sessions WHERE isfinite(erase_after)")
        assert {row["id"] for row in due} == {target.session.id, fork.session.id, running.session.id}
        assert all(3600 - 60 < row["left"].total_seconds() <= 3600 for row in due)
        await at.turn(running.session.id, "Never answered")
        await at.rows("UPDATE sessions SET erase_after = now() WHERE isfinite(erase_after) RETURNING id")
        await at.rows(
            "UPDATE turns SET status = 'running', lease_expires_at = now() + interval '1 hour'"
            " WHERE session_id = CAST(:sid AS uuid) RETURNING id",
            sid=running.session.id,
        )
        sweeper = asyncio.create_task(sweep_forever(at.rt))
        try:
            for _ in range(1000):
                await asyncio.sleep(0.02)
                if await session_count(at) == 2:
                    break
            left = {row["id"] for row in await at.rows("SELECT id FROM sessions")}
            assert left == {kept.turn.session_id, running.session.id}
        finally:
            sweeper.cancel()


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_a_response_over_a_limit_leaves_no_session_and_no_fork(database_url: str, store: bool) -> None:
    async with service(database_url) as at:
        first = await answered(at, asked(at, "One"))
        await answered(at, asked(at, "Two", previous=ref_of(first)))
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(0)})
        for previous in (None, ref_of(first)):
            with pytest.raises(LimitExceeded):
                await answered(at, asked(at, "More", store=store, previous=previous))
        assert await session_count(at) == 1


async def test_a_place_behind_a_response_is_refused_once_the_session_has_gone_on(
    database_url: str, tmp_path: Path
) -> None:
    """Somebody else went on between the look and the claim; asked again, it forks."""
    reply = Answer({"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]})
    async with serving(reply) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        first = await answered(at, asked(at, "One"))
        late: Target = await resolve_target(at.rt, TENANT, asked(at, "Late", previous=ref_of(first)))
        assert late.session.id == first.turn.session_id
        await answered(at, asked(at, "Two", previous=ref_of(first)))
        with pytest.raises(TurnInProgress):
            await respond(at.rt, late)
        forked = await answered(at, asked(at, "Late", previous=ref_of(first)))
        assert forked.turn.session_id != first.turn.session_id
        assert [message["content"] for message in server.seen[-1].json["messages"]] == ["One", "Yes.", "Late"]


@pytest.mark.skipif(citus_servers() is not None, reason="distributed tables have no triggers")
async def test_an_unstored_response_is_answered_though_the_database_is_lost_when_its_session_is_erased(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        await execute(database_url, *_LOST_WHEN_ERASED)
        outcome = await answered(at, asked(at, "Quiet", store=False))
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert (await kept_sessions(at), await session_count(at)) == (0, 1)


@pytest.mark.skipif(citus_servers() is not None, reason="it watches the waits of one server")
async def test_a_response_that_is_deleted_while_another_begins_after_it_does_not_erase_the_session(
    database_url: str,
) -> None:
    """The deletion, in another process, starts before the transaction that stores the other one has ended."""
    async with (
        service(database_url) as at,
        service(database_url) as elsewhere,
        own_connection(database_url) as other,
        own_connection(database_url) as watch,
    ):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(10**6)})
        first = await answered(at, asked(at, "One"))
        target = await resolve_target(at.rt, TENANT, asked(at, "Two", previous=ref_of(first)))
        async with other.transaction():
            await other.fetch("SELECT 1 FROM tenant_usage FOR UPDATE")
            second = asyncio.create_task(respond(at.rt, target))
            await until_waiting(watch, 1)  # its claim, which has stored the turn
            deletion = asyncio.create_task(delete_response(elsewhere.rt, TENANT, ref_of(first)))
            await until_waiting(watch, 2)
        await deletion
        assert (await second).turn.status is TurnStatus.COMPLETED
        assert await at.rows("SELECT reserved_tokens FROM tenant_usage") == [{"reserved_tokens": 0}]


async def test_the_worker_that_erases_a_session_with_its_last_response_removes_it_from_its_cache(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        response = await answered(at, asked(at, "One"))
        session_id = response.turn.session_id
        assert at.rt.pasts.last_prompt(session_id) is not None
        await delete_response(at.rt, TENANT, ref_of(response))
        assert await session_count(at) == 0
        assert at.rt.pasts.last_prompt(session_id) is None


async def test_a_migration_marks_the_sessions_that_earlier_versions_made_for_a_response(database_url: str) -> None:
    async with service(database_url) as at:
        first, alone = await answered(at, asked(at, "One")), await answered(at, asked(at, "Alone"))
        await answered(at, asked(at, "Two", previous=ref_of(first)))
        forked = await answered(at, asked(at, "Another two", previous=ref_of(first)))
        unkept = await at.rows("SELECT id FROM sessions WHERE erase_after IS DISTINCT FROM 'infinity'")
        native = await at.session()
        await at.turn(native.id, "Hello")
        named = asked(at, "In the client's session")
        await answered(at, replace(named, named=native.id))
        for its_own in (await at.session(room_goal="Ours"), await at.imported({"messages": [_SAID]})):
            await answered(at, replace(asked(at, "Only responses"), named=its_own.id))
        of_conversation = asked(at, "In a conversation")
        note = of_conversation.chat.options.note
        assert note is not None
        note = replace(note, form={"conversation": "conv_1"})
        options = replace(of_conversation.chat.options, note=note)
        await answered(at, replace(of_conversation, chat=replace(of_conversation.chat, options=options)))
        assert unkept == []
        made = {first.turn.session_id, alone.turn.session_id, forked.turn.session_id}
        assert len(made) == 3
        await downgrade(database_url, "2026_11_23_message_vectors")
        assert await at.rows("SELECT id FROM sessions WHERE erase_after IS NOT NULL") == []
        await upgrade(database_url)
        marked = await at.rows("SELECT id FROM sessions WHERE erase_after = 'infinity'")
        assert {row["id"] for row in marked} == made


async def test_a_turn_that_goes_on_without_a_response_is_cancelled_and_settled_when_its_last_response_is_deleted(
    database_url: str, tmp_path: Path
) -> None:
    answers = calls("call-1"), Answer(chat("Late.").body, delay_s=60)
    async with serving(*answers) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        request = asked(at, "Look it up.")
        options = replace(request.chat.options, tools=TOOLS)
        first = await answered(at, replace(request, chat=replace(request.chat, options=options)))
        server.arrived.clear()
        running = asyncio.create_task(at.outputs(first.turn.session_id, first.turn.id, {"call-1": "Found."}))
        await server.arrived.wait()
        (held,) = await usage(at)
        assert held["reserved_tokens"] > 0
        await delete_response(at.rt, TENANT, ref_of(first))
        with pytest.raises(TurnCancelled):
            await asyncio.wait_for(running, 20)
        (counted,) = await usage(at)
        assert (counted["reserved_tokens"], counted["tokens"]) == (0, held["tokens"] + held["reserved_tokens"])
        assert await session_count(at) == 0
