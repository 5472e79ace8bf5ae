"""Every statement that is given a tenant finds and changes that tenant's rows alone, whatever its caller checked."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast
from uuid import UUID

import asyncpg
import pytest

import app.db
from app.db import (
    archive,
    audits,
    claims,
    erasure,
    figures,
    limits,
    messages,
    recall,
    responses,
    sessions,
    summaries,
    turns,
)
from app.db.claims import NewTurn, WaitingTurn
from app.db.database import Fetched, PageBounds, Transaction
from app.db.erasure import Idle
from app.db.sql import Statement, metadata
from app.domain.errors import NotFound
from app.domain.frozen import replace
from app.domain.responses import ResponseRef
from app.domain.stored import JsonText, NewHistory
from app.domain.types import Pin, SessionId, SessionRef, TenantId, TurnId, TurnStatus
from tests.pooling import own_database, past_pooler

_TALKED, _FOR_ANSWER = SessionId(UUID(int=1)), SessionId(UUID(int=2))
_ANSWERED, _WAITING, _NEW = TurnId(UUID(int=11)), TurnId(UUID(int=12)), TurnId(UUID(int=13))
_FIRST, _AFTER_ALL = UUID(int=0), UUID(int=99)
_LATER = datetime(2100, 1, 1, tzinfo=UTC)
_DIGEST = b"digest"
_HERS = f"""
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, last_turn_seq, last_message_seq, external_id,
        room_goal)
    VALUES ('{_TALKED}', 'anna', 'm', '{{}}', '{{}}', 2, 4, 'name', 'goal');
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, erase_after, last_turn_seq, last_message_seq)
    VALUES ('{_FOR_ANSWER}', 'anna', 'm', '{{}}', '{{}}', now() + interval '1 hour', 1, 2);
    INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, idempotency_key,
        conversation_sha256)
    VALUES ('{_ANSWERED}', '{_TALKED}', 1, 'completed', 'x', 'm', 'sha', 'key', 'digest'),
        ('{_WAITING}', '{_TALKED}', 2, 'awaiting_tools', 'x', 'm', 'sha', NULL, NULL),
        ('{_ANSWERED}', '{_FOR_ANSWER}', 1, 'completed', 'x', 'm', 'sha', NULL, NULL);
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT CAST(lpad(seq::text, 32, '0') AS uuid), '{_TALKED}', CAST(turn_id AS uuid), seq, role, '"text"', 1, 'e'
    FROM (VALUES (1, 'user', '{_ANSWERED}'), (2, 'assistant', '{_ANSWERED}'), (3, 'user', '{_WAITING}'),
        (4, 'assistant', '{_WAITING}')) AS m(seq, role, turn_id);
    INSERT INTO responses (session_id, reply_seq, turn_id, round, first_seq, request_sha256, is_stored, form,
        created_at)
    VALUES ('{_TALKED}', 2, '{_ANSWERED}', 1, 1, 'sha', true, '{{}}', now());
    INSERT INTO turn_context_audit (id, session_id, turn_id, model_alias, model_context_limit, context_limit_source,
        output_reserve, overhead_reserve, input_budget, estimator, calibration_ratio, estimated_input_tokens_before,
        estimated_input_tokens_after_summary, estimated_input_tokens_after_prune, estimated_wire_tokens,
        summary_triggered, prune_triggered, overflow_rejected, regions, context_trim_log)
    VALUES ('{_ANSWERED}', '{_TALKED}', '{_ANSWERED}', 'm', 1, 'x', 1, 1, 1, 'x', 1, 1, 1, 1, 1, false, false, false,
        '{{}}', '{{"actions": []}}');
    INSERT INTO pins (session_id, name, content) VALUES ('{_TALKED}', 'pin', 'text');
    INSERT INTO limits (tenant_id, name, value) VALUES ('anna', 'turns_per_day', 1);
    INSERT INTO tenant_usage (tenant_id, span, starts_at, turns, tokens, usd, reserved_tokens, reserved_usd)
    VALUES ('anna', 'day', date_trunc('day', now(), 'UTC'), 1, 1, 1, 0, 0), ('bert', 'day', now(), 0, 0, 0, 0, 0),
        ('anna', 'month', date_trunc('month', now(), 'UTC'), 9, 1, 1, 0, 0);
    UPDATE sessions SET created_at = '2026-01-01', updated_at = '2026-01-01';
    UPDATE pins SET updated_at = '2026-01-01';
    """  # noqa: S608 - ids of ours

_Call: TypeAlias = Callable[[Transaction, TenantId], Awaitable[object]]


def _talked(tenant_id: TenantId) -> SessionRef:
    return SessionRef(tenant_id, _TALKED)


def _for_answer(tenant_id: TenantId) -> SessionRef:
    return SessionRef(tenant_id, _FOR_ANSWER)


_PAGE = PageBounds(0, 99, 9, newest_first=True)
_NEW_TURN = NewTurn(
    turn_id=_NEW,
    message_id=_NEW,
    user_input=None,
    content=JsonText('"text"'),
    token_estimate=1,
    token_encoding="e",
    terms=b"",
    name=None,
    said_at=None,
    model_alias=None,
    idempotency_key=None,
    request_sha256="sha",
    request=None,
    is_of_response=False,
)
_LONG_TURN = replace(_NEW_TURN, request=JsonText(json.dumps({"instructions": "x" * 2_000})))
_HISTORY = NewHistory(JsonText("[]"), JsonText("[]"), 0, 0, None)
_FOUND_WAITING = WaitingTurn(TurnStatus.AWAITING_TOOLS, 2, 1, "m", None, (), 1, 0)


async def _renamed(tx: Transaction, tenant_id: TenantId) -> object:
    await sessions.name_session(tx, _talked(tenant_id), "external_id", "another")
    return await sessions.named_session(tx, tenant_id, "external_id", "another", lock=False)


async def _updated(tx: Transaction, tenant_id: TenantId) -> object:
    hers = await sessions.get_session(tx, _talked(TenantId("anna")))
    assert hers is not None
    return await sessions.update_session(tx, tenant_id, hers)


async def _appended(tx: Transaction, tenant_id: TenantId) -> object:
    await turns.append_history(tx, _talked(tenant_id), [_HISTORY])
    return True


async def _exported(tx: Transaction, tenant_id: TenantId) -> object:
    session = _talked(tenant_id)
    return await archive.exported_session(tx, session, await archive.fork_point(tx, session.id, None))


_CALLS: dict[Callable[..., Any], tuple[_Call, ...]] = {
    archive.exported_session: (_exported,),
    audits.get_audit: (lambda tx, of: audits.get_audit(tx, _talked(of), _ANSWERED, None),),
    claims.claim_turn: (
        lambda tx, of: claims.claim_turn(tx, _for_answer(of), _NEW_TURN, 30),
        lambda tx, of: claims.claim_turn(tx, _for_answer(of), _LONG_TURN, 30),
    ),
    claims.waiting_turn: (lambda tx, of: claims.waiting_turn(tx, _talked(of), _WAITING),),
    claims.reclaim_turn: (lambda tx, of: claims.reclaim_turn(tx, _talked(of), _WAITING, _FOUND_WAITING, (), 30),),
    erasure.count_idle: (lambda tx, of: _counted(erasure.count_idle(tx, Idle(_LATER, of))),),
    erasure.next_idle: (
        lambda tx, of: erasure.next_idle(tx, Idle(_LATER, of), after=_FIRST, sessions=9, messages=99, lock=True),
        lambda tx, of: erasure.next_idle(tx, Idle(_LATER, of), after=_FIRST, sessions=9, messages=99, lock=False),
    ),
    figures.changed_turns: (
        lambda tx, of: figures.changed_turns(tx, [of], {(_TALKED, _ANSWERED): ""}, within_s=9, limit=9),
    ),
    figures.open_turns: (lambda tx, of: figures.open_turns(tx, of, 9),),
    limits.clear_limits: (limits.clear_limits,),
    limits.list_limits: (limits.list_limits,),
    messages.numbered_messages: (lambda tx, of: messages.numbered_messages(tx, of, [(_TALKED, 1)]),),
    messages.page_of_item_messages: (lambda tx, of: messages.page_of_item_messages(tx, _talked(of), _PAGE),),
    recall.sessions_with_messages: (lambda tx, of: recall.sessions_with_messages(tx, of, first=_AFTER_ALL, limit=9),),
    responses.get_response: (lambda tx, of: responses.get_response(tx, of, ResponseRef(_TALKED, 2)),),
    responses.response_of_request: (lambda tx, of: responses.response_of_request(tx, _talked(of), _ANSWERED, "sha"),),
    responses.has_lost_its_responses: (lambda tx, of: responses.has_lost_its_responses(tx, _for_answer(of)),),
    sessions.delete_pin: (lambda tx, of: sessions.delete_pin(tx, _talked(of), "pin"),),
    sessions.get_pin: (lambda tx, of: sessions.get_pin(tx, _talked(of), "pin"),),
    sessions.get_session: (
        lambda tx, of: sessions.get_session(tx, _talked(of)),
        lambda tx, of: sessions.get_session(tx, _talked(of), lock=True),
    ),
    sessions.get_state: (lambda tx, of: sessions.get_state(tx, _talked(of)),),
    sessions.is_for_answer: (lambda tx, of: sessions.is_for_answer(tx, _for_answer(of)),),
    sessions.list_pins: (lambda tx, of: sessions.list_pins(tx, _talked(of), after="", limit=9),),
    sessions.list_sessions: (
        lambda tx, of: sessions.list_sessions(tx, of, PageBounds(_FIRST, _AFTER_ALL, 9, newest_first=True)),
        lambda tx, of: sessions.list_sessions(tx, of, PageBounds(_FIRST, _AFTER_ALL, 9, newest_first=False)),
    ),
    sessions.lock_session: (
        lambda tx, of: sessions.lock_session(tx, _talked(of)),
        lambda tx, of: sessions.lock_session(tx, _talked(of), to_erase=True),
    ),
    sessions.name_session: (_renamed,),
    sessions.named_session: (lambda tx, of: sessions.named_session(tx, of, "external_id", "name", lock=True),),
    sessions.other_pins: (lambda tx, of: _counted(sessions.other_pins(tx, _talked(of), "another")),),
    sessions.put_pin: (lambda tx, of: sessions.put_pin(tx, _talked(of), Pin("another", "text", None, None)),),
    sessions.search_sessions: (
        lambda tx, of: _sessions_found(
            sessions.search_sessions(tx, of, "goal", before=_AFTER_ALL, limit=9, most_looked_through=9)
        ),
    ),
    sessions.session_exists: (lambda tx, of: sessions.session_exists(tx, _talked(of)),),
    sessions.turn_of_list: (lambda tx, of: sessions.turn_of_list(tx, of, [_DIGEST], None),),
    sessions.update_session: (_updated,),
    summaries.lock_and_restart_count: (lambda tx, of: summaries.lock_and_restart_count(tx, _talked(of)),),
    turns.append_history: (_appended,),
    turns.cancel_open_turns: (lambda tx, of: turns.cancel_open_turns(tx, _talked(of)),),
    turns.cancel_turn: (lambda tx, of: turns.cancel_turn(tx, _talked(of), _WAITING),),
    turns.get_turn: (lambda tx, of: turns.get_turn(tx, _talked(of), _ANSWERED),),
    turns.newest_of: (lambda tx, of: turns.newest_of(tx, _talked(of)),),
    turns.turn_by_key: (lambda tx, of: turns.turn_by_key(tx, _talked(of), "key"),),
    turns.turns_begun_by: (lambda tx, of: turns.turns_begun_by(tx, of, "sha", after_id=_FIRST, limit=9),),
}
_OF_THE_TENANT_ITSELF = {"insert_session", "insert_key", "set_limits", "reserve", "note_window"}
"""These store rows of the tenant that they are given."""
_CASES = [(function.__name__, call) for function, calls in _CALLS.items() for call in calls]


@pytest.mark.parametrize("call", [call for _, call in _CASES], ids=[name for name, _ in _CASES])
async def test_a_statement_finds_and_changes_no_row_of_another_tenant(database_url: str, call: _Call) -> None:
    connection = await cast(Any, asyncpg).connect(past_pooler(database_url))
    await connection.execute(_HERS)
    await connection.close()
    database = own_database(database_url)
    try:
        async with database.begin() as tx:
            before = await _rows(tx)
            assert await _found(call(tx, TenantId("bert"))) in _NOTHING
            assert await _rows(tx) == before
        async with database.begin() as tx:
            assert await _found(call(tx, TenantId("anna"))) not in _NOTHING
    finally:
        await database.aclose()


async def test_the_limits_of_a_tenant_are_listed_with_its_own_use(database_url: str) -> None:
    connection = await cast(Any, asyncpg).connect(past_pooler(database_url))
    await connection.execute(_HERS)
    await connection.close()
    database = own_database(database_url)
    try:
        listed = await database.run(limits.list_limits, TenantId("anna"))
        assert [(row["name"], row["span"], row["turns"]) for row in listed] == [("turns_per_day", "day", 1)]
    finally:
        await database.aclose()


def test_every_function_that_is_given_a_tenant_is_tried() -> None:
    found = {
        name
        for module in pkgutil.iter_modules(app.db.__path__)
        for name, function in inspect.getmembers(importlib.import_module(f"app.db.{module.name}"))
        if inspect.iscoroutinefunction(function) and not name.startswith("_")
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in ("tenant_id", "tenant_ids", "idle") or parameter.annotation == "SessionRef"
    }
    assert found == {function.__name__ for function in _CALLS} | _OF_THE_TENANT_ITSELF


_NO_ROWS: Fetched[object] = Fetched([], has_more=False)
_NOTHING: tuple[object, ...] = (None, False, 0, [], {}, _NO_ROWS)


async def _found(finding: Awaitable[object]) -> object:
    try:
        return await finding
    except NotFound:
        return None


async def _counted(counting: Awaitable[tuple[int, int]]) -> int:
    return sum(await counting)


async def _sessions_found(finding: Awaitable[tuple[Fetched[Any], object]]) -> object:
    return (await finding)[0]


async def _rows(tx: Transaction) -> list[object]:
    """A hash of each table's rows."""
    of_table = "SELECT md5(string_agg(t::text, ',' ORDER BY t)) FROM {} t"
    return [await tx.fetchval(Statement(of_table.format(name), ())) for name in metadata.tables]
