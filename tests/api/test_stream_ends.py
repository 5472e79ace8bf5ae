"""A stream has its last event, whatever ended its turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from starlette.responses import StreamingResponse
from starlette.types import Message

from app.api.direct_route import AppState, Call
from app.api.edge import Exchange
from app.api.routes.messages import MessageForm
from app.api.routes.turns import TurnForm
from app.api.streaming import EVENT_STREAM, AnswerForm, ClosingResponse, answer_turn
from app.domain.errors import DatabaseUnavailable, PlimsollError, ProviderDown
from app.domain.types import SessionId, TenantId
from app.services.turn.types import Listener, TurnEvent, TurnOutcome

SESSION = SessionId(uuid4())


class _DatabaseAway:
    asked = 0

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[None]:
        self.asked += 1
        raise DatabaseUnavailable("The database does not answer.")
        yield


def _call(database: _DatabaseAway) -> Call:
    runtime = SimpleNamespace(database=database)
    unused = cast(Any, None)
    service = AppState(cast(Any, runtime), authenticator=unused, activity=unused, answers=unused, exports=unused)
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    call = Call({"type": "http", "app": app, "plimsoll": Exchange({}, {}), "headers": []})
    call.tenant_id = TenantId("default")
    return call


async def _streamed(call: Call, form: AnswerForm, error: PlimsollError) -> list[tuple[str, Any]]:
    """The names and data of the events of a stream whose turn ends with the error."""

    async def work(listen: Listener | None) -> TurnOutcome:
        assert listen is not None
        listen(TurnEvent("turn.created", {"turn": {"id": uuid4(), "session_id": SESSION, "seq": 1}}))
        listen(TurnEvent("context.assembled", {"context": {}}))
        raise error

    answer = await answer_turn(call, work, form, stream=True, held_s=0)
    assert isinstance(answer, StreamingResponse)
    text = b"".join([cast(bytes, piece) async for piece in answer.body_iterator]).decode()
    lines = [event.split("\n") for event in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.mark.parametrize("error", [DatabaseUnavailable("It does not answer."), ProviderDown("It does not answer.")])
async def test_a_stream_ends_with_what_ended_its_turn_while_the_database_is_away(error: PlimsollError) -> None:
    database = _DatabaseAway()
    call = _call(database)
    events = await _streamed(call, TurnForm(call), error)
    assert [name for name, _ in events] == ["turn.created", "context.assembled", "turn.failed"]
    assert (events[-1][1]["turn"], events[-1][1]["error"]["code"]) == (None, error.code)
    assert database.asked == 1


async def test_a_stream_whose_form_does_not_show_the_turn_reads_nothing_at_its_end() -> None:
    database = _DatabaseAway()
    form = MessageForm(
        headers={}, message_id="msg_1", model="main", with_thinking=False, with_compaction=False, with_edits=False
    )
    events = await _streamed(_call(database), form, ProviderDown("It does not answer."))
    assert [name for name, _ in events] == ["message_start", "ping", "error"]
    assert database.asked == 0


async def test_what_is_streamed_is_closed_when_its_client_leaves_while_a_chunk_waits_for_it() -> None:
    """And not by the garbage collector: what it holds, others could not get until then."""
    waits, closed = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes]:
        try:
            yield b"the first of many"
            pytest.fail("the client has left")
        finally:
            closed.set()

    async def receive() -> Message:
        await waits.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            waits.set()
            await asyncio.Event().wait()

    response = ClosingResponse(chunks(), EVENT_STREAM, {})
    await response({"type": "http"}, receive, send)
    assert closed.is_set()
