"""A turn as server-sent events (contract, section 5).

The answer begins when the context is assembled, so whatever is refused before that is an ordinary problem with its own
status. The last event carries what reading the turn gives afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.responses import Response, StreamingResponse

from app.api import problems
from app.api.direct_route import Call, plain_json
from app.api.turn_json import turn_json
from app.domain.errors import NotFound, PlimsollError
from app.domain.types import JsonObject, SessionId, TurnId, TurnStatus
from app.services.claiming import TurnOutcome
from app.services.events import Listener, TurnEvent
from app.services.take_turn import cancel_turn
from app.services.turns import get_turn

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Work: TypeAlias = Callable[[Listener | None], Awaitable[TurnOutcome]]


async def stream_turn(call: Call, session_id: SessionId, work: Work) -> Response:
    """Starts the work and answers with its events, or raises what it raised before the context was assembled.

    A client that goes away ends only the stream: the turn runs on and is stored, unless the deployment says `cancel`.
    """
    stream = _Stream(call, session_id, work)
    await stream.begun()
    return StreamingResponse(stream.events(), media_type="text/event-stream", headers=_HEADERS)


class _Stream:
    def __init__(self, call: Call, session_id: SessionId, work: Work) -> None:
        self._call = call
        self._session_id = session_id
        self._turn_id: TurnId | None = None
        self._waiting: asyncio.Queue[TurnEvent | None] = asyncio.Queue()
        self._early: list[TurnEvent] = []
        self._task = asyncio.ensure_future(work(self._waiting.put_nowait))
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Future[TurnOutcome]) -> None:
        if not task.cancelled():
            task.exception()  # told by the last event, or by the turn's record when nobody listens any more
        self._waiting.put_nowait(None)

    async def begun(self) -> None:
        """Waits for the context, or for the end when that comes first."""
        while True:
            event = await self._waiting.get()
            if event is None:
                self._waiting.put_nowait(None)
                if self._task.cancelled() or self._task.exception() is None:
                    return
                self._task.result()
                return
            self._early.append(event)
            if event.name == "turn.created":
                self._turn_id = event.data["turn"]["id"]
                self._call.note(turn_id=str(self._turn_id))
            if event.name == "context.assembled":
                return

    async def events(self) -> AsyncGenerator[bytes]:
        """The stream's bytes: events, a comment when the model is silent for long, and the last event."""
        try:
            for event in self._early:
                yield _encoded(event.name, event.data)
            while True:
                try:
                    async with asyncio.timeout(self._call.service.heartbeat_s):
                        event = await self._waiting.get()
                except TimeoutError:
                    yield b": the model is still silent\n\n"
                    continue
                if event is None:
                    break
                yield _encoded(event.name, event.data)
            async for last in self._ending():
                yield last
        finally:
            if not self._task.done() and self._turn_id is not None and self._call.service.cancel_on_disconnect:
                self._call.service.run_aside(self._cancel(self._turn_id))

    async def _ending(self) -> AsyncGenerator[bytes]:
        try:
            outcome = await self._task
        except PlimsollError as error:
            yield _encoded("turn.failed", {"turn": await self._turn(), "error": problems.document_of(error)})
            return
        except Exception:
            detail = "Something broke on our side; the message is kept."
            yield _encoded(
                "turn.failed", {"turn": await self._turn(), "error": problems.document("internal_error", detail)}
            )
            raise
        if not self._early:
            for early in _replayed(outcome):
                yield early
        waits = outcome.turn.status is TurnStatus.AWAITING_TOOLS
        name = "turn.awaiting_tools" if waits else "turn.completed"
        yield _encoded(name, {"turn": turn_json(outcome.turn), "context": outcome.context})

    async def _turn(self) -> JsonObject | None:
        if self._turn_id is None:
            return None
        return turn_json(await get_turn(self._call.rt, self._call.tenant_id, self._session_id, self._turn_id))

    async def _cancel(self, turn_id: TurnId) -> None:
        try:
            await cancel_turn(self._call.rt, self._call.tenant_id, self._session_id, turn_id)
        except (NotFound, PlimsollError):
            return  # it ended by itself meanwhile


def _replayed(outcome: TurnOutcome) -> list[bytes]:
    """A stored turn as a stream: its text in one delta (contract, decision 14)."""
    created = {name: turn_json(outcome.turn)[name] for name in ("id", "session_id", "seq", "status")}
    told = [
        _encoded("turn.created", {"turn": created}),
        _encoded("context.assembled", {"context": outcome.context}),
    ]
    if outcome.turn.assistant_output:
        told.append(_encoded("output.delta", {"text": outcome.turn.assistant_output}))
    return told


def _encoded(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data, default=plain_json, option=orjson.OPT_UTC_Z))
