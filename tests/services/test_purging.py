"""Retention: what nobody has used for a while goes, whole; what somebody uses stays, whole."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.db.erasure import Idle, instant_before, next_idle
from app.domain.errors import InvalidRequest, NotFound
from app.domain.types import Pin, RecordedReply, SessionId, TenantId, ToolCall, TurnStatus
from app.services.background import BATCH_MESSAGES, BATCH_SESSIONS, Purged, purge
from app.services.limits import set_limits
from app.services.paging import FIRST_ID
from app.services.sessions import change_session, create_session, put_pin
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.services.service import TENANT, Service, ref_of, service
from tests.services.test_erasing import of_a_session, rows_of, session_with_a_row_in_every_table, with_models
from tests.services.test_limits import usage
from tests.services.untouched import contents

MONTH = timedelta(days=30)
_SUMMARIZE = """
    INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text,
        key_facts, open_questions, decisions, action_items, status, origin, model_alias, token_estimate, token_encoding)
    SELECT id, session_id, id, id, seq, 'Short.', '[]', '[]', '[]', '[]', 'active', 'person', 'm', 1, 'e'
    FROM messages WHERE session_id = :sid LIMIT 1 RETURNING id
    """
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def grow_old(at: Service, session_id: SessionId, days: int = 40) -> None:
    """Moves all that is stored of the session so many days into the past."""
    for table in of_a_session():
        instants = [column.name for column in table.c if isinstance(column.type, sa.DateTime)]
        if instants:
            # Citus takes nothing of a column here that goes by the session's time zone.
            older = "({0} AT TIME ZONE 'UTC' - make_interval(days => CAST(:days AS integer))) AT TIME ZONE 'UTC'"
            moved = ", ".join(f"{name} = {older.format(name)}" for name in instants)
            which = "id" if table.name == "sessions" else "session_id"
            sql = f"UPDATE {table.name} SET {moved} WHERE {which} = CAST(:sid AS uuid)"  # noqa: S608 - our own names
            await at.rows(sql, sid=session_id, days=days)


async def old_session(at: Service, tenant_id: TenantId = TENANT) -> SessionId:
    """A session whose only turn was 40 days ago."""
    session = await create_session(at.rt, tenant_id, {})
    await at.turn(session.id, "Long ago.", tenant_id=tenant_id)
    await grow_old(at, session.id)
    return session.id


async def exists(at: Service, session_id: SessionId) -> bool:
    return bool((await rows_of(at, session_id))["sessions"])


async def test_an_old_session_goes_with_every_row_and_a_young_one_stays_with_every_row(
    database_url: str, tmp_path: Path
) -> None:
    async with with_models(database_url, tmp_path) as (at, _):
        old, young = [(await session_with_a_row_in_every_table(at)).id for _ in range(2)]
        await grow_old(at, old)
        of_old, of_young = await rows_of(at, old), await rows_of(at, young)
        purged = await purge(at.rt.database, MONTH)
        assert set((await rows_of(at, old)).values()) == {0}
        assert await rows_of(at, young) == of_young
        assert (purged.done, purged.sessions, purged.rows) == (1, 1, of_old), "it does not say what it erased"


async def test_a_dry_run_says_what_a_run_would_erase_and_erases_nothing(database_url: str, tmp_path: Path) -> None:
    async with with_models(database_url, tmp_path) as (at, _):
        await grow_old(at, (await session_with_a_row_in_every_table(at)).id)
        await old_session(at)
        before = await contents(at)
        would = await purge(at.rt.database, MONTH, dry_run=True)
        assert await contents(at) == before
        did = await purge(at.rt.database, MONTH)
        assert (would.done, would.rows) == (did.done, did.rows) == (2, would.rows)
        assert await at.rows("SELECT 1 FROM sessions") == []


async def test_whatever_changes_a_session_is_activity(database_url: str) -> None:
    async with service(database_url) as at:
        turned, changed, pinned, summarized, idle = [await old_session(at) for _ in range(5)]
        await at.turn(turned, "Back again.")
        await change_session(at.rt, ref_of(changed), {"room_goal": "Another one."})
        await put_pin(at.rt, ref_of(pinned), Pin("port", "8443"))
        await at.rows(_SUMMARIZE, sid=summarized)
        for dry_run in (True, False):
            assert (await purge(at.rt.database, MONTH, dry_run=dry_run)).done == 1
        kept = [await exists(at, session) for session in (turned, changed, pinned, summarized, idle)]
        assert kept == [True, True, True, True, False]


async def test_only_the_named_tenants_sessions_go(database_url: str) -> None:
    async with service(database_url) as at:
        ours, theirs = await old_session(at), await old_session(at, TenantId("other"))
        for dry_run in (True, False):
            assert (await purge(at.rt.database, MONTH, TenantId("other"), dry_run=dry_run)).done == 1
        assert [await exists(at, ours), await exists(at, theirs)] == [True, False]


async def test_a_session_with_a_running_turn_stays_until_the_turn_has_ended(database_url: str) -> None:
    async with service(database_url) as at:
        session_id = await old_session(at)
        draft = await draft_turn(at.rt, TurnRequest(content="Still runs", request_sha256="x"), None)
        claimed = await claim_drafted(at.rt, ref_of(session_id), draft, TurnOptions())
        await at.rows("UPDATE sessions SET updated_at = statement_timestamp() - interval '40 days'")
        for dry_run in (True, False):
            purged = await purge(at.rt.database, MONTH, dry_run=dry_run)
            assert (purged.done, purged.kept_running) == (0, 1)
        await cancel_turn(at.rt, ref_of(session_id), claimed.claim.turn_id)
        assert (await purge(at.rt.database, MONTH)).done == 1


async def test_a_dead_workers_turn_and_one_that_waits_for_tools_keep_nothing(database_url: str) -> None:
    async with service(database_url) as at:
        dead, waits = await old_session(at), (await at.session()).id
        draft = await draft_turn(at.rt, TurnRequest(content="Never answered", request_sha256="x"), None)
        await claim_drafted(at.rt, ref_of(dead), draft, TurnOptions())
        reply = RecordedReply(None, tool_calls=(ToolCall("c1", "look", "{}"),))
        outcome = await at.turn(waits, "Look", tools=(TOOL,), recorded_reply=reply)
        assert outcome.turn.status is TurnStatus.AWAITING_TOOLS
        for session_id in (dead, waits):
            await grow_old(at, session_id)
        for dry_run in (True, False):
            assert (await purge(at.rt.database, MONTH, dry_run=dry_run)).done == 2


async def test_erasing_by_age_does_not_restore_a_tenants_limits(database_url: str) -> None:
    async with service(database_url) as at:
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(10)})
        await old_session(at)
        before = await usage(at)
        assert (await purge(at.rt.database, MONTH)).done == 1
        assert (await usage(at), before[0]["turns"]) == (before, 1)


async def _many(at: Service, sessions: int, messages: int = 0) -> None:
    """Old sessions, made by the database; their counters say how many messages they have."""
    await at.rows(
        """
        INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, last_message_seq, updated_at)
        SELECT gen_random_uuid(), 'default', 'offline', '{}', '{}', CAST(:messages AS bigint),
            clock_timestamp() - interval '40 days'
        FROM generate_series(1, CAST(:sessions AS integer))
        """,
        sessions=sessions,
        messages=messages,
    )


class _Stopped(Exception):
    pass


async def test_one_that_was_broken_off_has_lost_nothing_and_the_next_one_goes_on(database_url: str) -> None:
    def stop_after_the_first_batch(purged: Purged) -> None:
        if purged.done:
            raise _Stopped

    async with service(database_url) as at:
        await _many(at, 2 * BATCH_SESSIONS + 1)
        with pytest.raises(_Stopped):
            await purge(at.rt.database, MONTH, progress=stop_after_the_first_batch)
        assert len(await at.rows("SELECT 1 FROM sessions")) == BATCH_SESSIONS + 1
        assert (await purge(at.rt.database, MONTH)).done == BATCH_SESSIONS + 1
        assert (await purge(at.rt.database, MONTH)).done == 0


async def test_one_that_finds_a_batch_of_another_goes_on_behind_it(database_url: str) -> None:
    async with service(database_url) as at:
        await _many(at, BATCH_SESSIONS + 5)
        async with at.rt.database.begin() as tx:
            idle = Idle(await instant_before(tx, MONTH), None)
            theirs = await next_idle(
                tx, idle, after=FIRST_ID, sessions=BATCH_SESSIONS, messages=BATCH_MESSAGES, lock=True
            )
            assert len(theirs) == BATCH_SESSIONS
            assert (await purge(at.rt.database, MONTH)).done == 5
        assert (await purge(at.rt.database, MONTH)).done == BATCH_SESSIONS


async def test_a_batch_is_small_in_sessions_and_in_messages_and_progress_is_reported_after_each(
    database_url: str,
) -> None:
    done: list[tuple[int, int]] = []
    async with service(database_url) as at:
        await _many(at, BATCH_SESSIONS + 20)
        await purge(at.rt.database, MONTH, progress=lambda purged: done.append((purged.done, purged.sessions)))
        assert done == [(0, BATCH_SESSIONS + 20), (BATCH_SESSIONS, BATCH_SESSIONS + 20), (120, 120)]
        done.clear()
        await _many(at, 5, messages=BATCH_MESSAGES // 2)
        await purge(at.rt.database, MONTH, progress=lambda purged: done.append((purged.done, purged.sessions)))
        assert done == [(0, 5), (2, 5), (4, 5), (5, 5)]


async def test_two_at_once_beside_turns_that_arrive_erase_every_idle_session_once_and_no_other(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        sessions = [await old_session(at) for _ in range(12)]
        await _many(at, 2 * BATCH_SESSIONS)
        stayed: list[SessionId] = []

        async def talk(session_id: SessionId) -> None:
            try:
                await at.turn(session_id, "Am I still here?")
            except NotFound:
                return
            stayed.append(session_id)

        purges = [asyncio.create_task(purge(at.rt.database, MONTH)) for _ in range(2)]
        await asyncio.gather(*(talk(session_id) for session_id in sessions))
        done = sum([(await each).done for each in purges])
        assert [session_id for session_id in sessions if await exists(at, session_id)] == [
            session_id for session_id in sessions if session_id in stayed
        ]
        assert done + len(stayed) == len(sessions) + 2 * BATCH_SESSIONS


async def test_nothing_younger_than_an_idempotency_key_has_to_live_is_purged(database_url: str) -> None:
    async with service(database_url) as at:
        with pytest.raises(InvalidRequest):
            await purge(at.rt.database, timedelta(hours=23))
        assert (await purge(at.rt.database, timedelta(hours=24))).done == 0
