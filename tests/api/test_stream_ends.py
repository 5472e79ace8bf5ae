"""A stream has its last event, whatever ended its turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from starlette.responses import StreamingResponse

from app.api.direct_route import AppState, Call
from app.api.edge import Exchange
from app.api.streaming import answer_turn
from app.domain.errors import DatabaseUnavailable, PlimsollError, ProviderDown
from app.domain.types import JsonObject, SessionId, TenantId, TurnRecord
from app.services.turn.types import Listener, TurnEvent, TurnOutcome


class _DatabaseAway:
    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[None]:
        raise DatabaseUnavailable("The database does not answer.")
        yield


class _Form:
    """Events by their names, and at last the code of what ended the turn."""

    headers: Mapping[str, str] = {}

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        raise NotImplementedError

    def event(self, event: TurnEvent) -> Iterable[bytes]:
        yield event.name.encode()

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        raise NotImplementedError

    def failure(self, problem: JsonObject, turn: TurnRecord | None) -> Iterable[bytes]:
        assert turn is None
        yield problem["code"].encode()


@pytest.mark.parametrize("error", [DatabaseUnavailable("It does not answer."), ProviderDown("It does not answer.")])
async def test_a_stream_ends_with_what_ended_its_turn_while_the_database_is_away(error: PlimsollError) -> None:
    runtime = SimpleNamespace(database=_DatabaseAway())
    service = AppState(cast(Any, runtime), authenticator=cast(Any, None), activity=cast(Any, None))
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    call = Call({"type": "http", "app": app, "plimsoll": Exchange({}, {}), "headers": []})
    call.tenant_id = TenantId("default")

    async def work(listen: Listener | None) -> TurnOutcome:
        assert listen is not None
        listen(TurnEvent("turn.created", {"turn": {"id": uuid4()}}))
        listen(TurnEvent("context.assembled", {"context": {}}))
        raise error

    answer = await answer_turn(call, SessionId(uuid4()), work, _Form(), stream=True)
    assert isinstance(answer, StreamingResponse)
    assert [piece async for piece in answer.body_iterator] == [
        b"turn.created",
        b"context.assembled",
        error.code.encode(),
    ]
