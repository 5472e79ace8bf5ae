"""A message keeps every attribute on every way that it takes: a new one that a copy leaves out is missed here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.api.routes.sessions import spooled
from app.db.messages import messages_of_turn
from app.db.turns import append_history
from app.domain.frozen import names_of, replace
from app.domain.incoming import IncomingMessage
from app.domain.types import Message, ReasoningRule, RecordedReply, SessionId, ToolCall, Turn
from app.engine.messages.turns import with_reasoning
from app.openai.chat_messages import cut_turns
from app.openai.new_messages import next_step
from app.services.archive.transfer import draft_history, export_session, fork_session
from app.services.openai.chat import ChatRequest, turn_of
from app.services.turn.gather import settled_columns
from app.services.turn.take import continue_turn, prepare_regeneration, regenerate_turn, take_turn
from app.services.turn.types import OutputsRequest, TurnOptions, TurnRequest
from tests.services.service import TENANT, Service, ref_of, service

_NOW = datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
_CALL = ToolCall("a", "look_up", '{"id": 7}')
_OF_USER: dict[str, Any] = {"content": "Does it leak?", "name": "Anna", "said_at": _NOW}
_OF_REPLY: dict[str, Any] = {"content": "It is dry.", "name": "planner", "said_at": _NOW + timedelta(minutes=3)}
_MESSAGES = (
    IncomingMessage(0, "user", **_OF_USER),
    IncomingMessage(
        1,
        "assistant",
        None,
        (_CALL,),
        said_at=_NOW + timedelta(minutes=1),
        reasoning="Hm.",
        reasoning_blocks=({"type": "thinking", "thinking": "Hm.", "signature": "s"},),
    ),
    IncomingMessage(2, "tool", "dry", tool_call_id="a", said_at=_NOW + timedelta(minutes=2)),
    IncomingMessage(3, "assistant", reasoning="So.", **_OF_REPLY),
)
"""A turn in which each attribute has a value somewhere."""
_OF_ROW_ONLY = {"id", "turn_id", "seq", "tokens", "reasoning_tokens", "reasoning_sent", "is_look_back"}


def test_the_messages_of_these_tests_have_every_attribute() -> None:
    assert set(names_of(Message)) - _OF_ROW_ONLY == set(names_of(IncomingMessage)) - {"place"}
    for name in names_of(IncomingMessage):
        assert any(getattr(message, name) for message in _MESSAGES), name


@pytest.mark.parametrize("copied_by", ["nothing", "fork", "export"])
async def test_a_copy_has_them(database_url: str, copied_by: str) -> None:
    async with service(database_url) as at:
        session_id = await _stored(at, _MESSAGES)
        if copied_by == "fork":
            session_id = (await fork_session(at.rt, ref_of(session_id), None)).id
        elif copied_by == "export":
            with await spooled(export_session(at.rt, ref_of(session_id))) as file:
                session_id = (await at.imported(json.load(file))).id
        assert await _of_first_turn(at, session_id) == _MESSAGES


@pytest.mark.parametrize(("form", "not_sent"), [("text", {"reasoning_blocks": ()}), ("blocks", {"reasoning": None})])
async def test_the_kept_past_has_them(database_url: str, form: Any, not_sent: dict[str, Any]) -> None:
    async with service(database_url) as at:
        found = await _kept(at, await _stored(at, _MESSAGES), ReasoningRule(form, "tool_turns"))
        assert found == tuple([replace(message, **not_sent) for message in _MESSAGES])


@pytest.mark.parametrize("name", _OF_USER)
async def test_the_kept_past_has_each_of_them_alone(database_url: str, name: str) -> None:
    """Messages of nothing but text are read in another way than others."""
    text: dict[str, Any] = {"content": "No.", "said_at": _NOW}
    user = IncomingMessage(0, "user", **(text | {name: _OF_USER[name]}))
    reply = IncomingMessage(1, "assistant", **(text | {name: _OF_REPLY[name]}))
    async with service(database_url) as at:
        assert await _kept(at, await _stored(at, (user, reply)), None) == (user, reply)


def test_a_turn_of_a_list_has_those_of_its_last_message() -> None:
    step = next_step(_MESSAGES[:1], waiting=False)
    assert step.message
    request = ChatRequest(_MESSAGES, TurnOptions(), "offline", "1")
    turn = turn_of(step.message, request, request.options, 0)
    assert {name: getattr(turn, name) for name in _OF_USER} == _OF_USER


async def test_a_turn_its_outputs_and_its_repetition_have_them(database_url: str) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        options = TurnOptions(recorded_reply=RecordedReply(None, (_CALL,)))
        outcome = await take_turn(at.rt, session, TurnRequest(request_sha256="1", options=options, **_OF_USER), None)
        (output,) = (replace(_MESSAGES[2], tool_call_id=call.id) for call in outcome.turn.tool_calls)
        turn = (await continue_turn(at.rt, session, outcome.turn.id, OutputsRequest((output,)))).turn
        user, _, tool, _ = await _of_first_turn(at, session.id)
        assert (user, tool) == (_MESSAGES[0], output)
        prepared = await prepare_regeneration(at.rt, session, turn.id, TurnRequest(None, "2"))
        await regenerate_turn(at.rt, TENANT, prepared)
        again = await _of_first_turn(at, prepared[0].id)
        assert again[0] == _MESSAGES[0]


async def _stored(at: Service, messages: Sequence[IncomingMessage]) -> SessionId:
    """A session with a turn of these messages, and two more turns."""
    session_id = (await at.session()).id
    more = [IncomingMessage(0, role, "More.") for role in ("user", "assistant") * 2]
    history = await draft_history(at.rt, "offline", cut_turns([*messages, *more]))
    async with at.rt.database.begin() as tx:
        await append_history(tx, ref_of(session_id), history)
    return session_id


async def _of_first_turn(at: Service, session_id: SessionId) -> tuple[IncomingMessage, ...]:
    (turn, *_) = await at.rows("SELECT id FROM turns WHERE session_id = :id ORDER BY seq", id=session_id)
    async with at.rt.database.autocommit() as tx:
        return _incoming(await messages_of_turn(tx, session_id, turn["id"]))


async def _kept(at: Service, session_id: SessionId, rule: ReasoningRule | None) -> tuple[IncomingMessage, ...]:
    """The messages of the first turn, from the columns in which a process keeps a session's past."""

    def as_sent(turn: Turn) -> Turn:
        return with_reasoning(turn, rule)

    async with at.rt.database.autocommit() as tx:
        (last,) = await at.rows("SELECT max(seq) AS seq FROM messages WHERE session_id = :id", id=session_id)
        encoding = at.rt.catalogue.model("offline").encoding
        columns = await settled_columns(tx, session_id, 0, last["seq"], encoding, as_sent, lambda _: None)
    return _incoming(columns.turn(0).messages)


def _incoming(messages: Sequence[Message]) -> tuple[IncomingMessage, ...]:
    return tuple([IncomingMessage.of_stored(at, message) for at, message in enumerate(messages)])
