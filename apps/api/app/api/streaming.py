"""A turn as server-sent events, in the form of the route that streams it.

The stream begins when the context is assembled, or, for the vendors' clients, with the model's answer, for which it
waits a few seconds. A failure before that is an ordinary problem with its own status: they retry by it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias

import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api import problems
from app.api.direct_route import Call, json_response, plain_json
from app.domain.errors import PlimsollError
from app.domain.types import JsonObject
from app.services.turn.take import cancel_turn
from app.services.turn.types import Listener, TurnEvent, TurnOutcome

MOST_APART: Final = 64
"""Most events that wait for a slow client as separate events. Deltas after them are joined."""
LONG_DELTA_CHARS: Final = 16_384
MOST_HELD_S: Final = 5.0
"""Longest wait for the model's answer before a stream begins: longer than most calls that fail take with their retries.
A client that disconnects is noticed only once the stream has begun, so none waits where that cancels the turn."""
EVENT_STREAM: Final = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Work: TypeAlias = Callable[[Listener | None], Awaitable[TurnOutcome]]


class ClosingResponse(StreamingResponse):
    """Closes what it streams at its end, however that comes. The error of a client that left would keep the generator,
    and all that it holds, until the error is collected."""

    def __init__(self, content: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._content):
            await super().__call__(scope, receive, send)


class AnswerForm(Protocol):
    """How a turn is answered, whole or as events. One event of a turn becomes zero or more events of the form.

    In `outcome`, `streamed` is false if a stored turn is answered again, so that no event was sent before.
    """

    headers: Mapping[str, str]

    def whole(self, outcome: TurnOutcome) -> JsonObject: ...
    def event(self, event: TurnEvent) -> Iterable[bytes]: ...
    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]: ...
    async def failure(self, problem: JsonObject) -> Iterable[bytes]: ...


async def answer_turn(
    call: Call,
    work: Work,
    form: AnswerForm,
    *,
    stream: bool,
    background: bool = False,
    status: int = 200,
    held_s: float = MOST_HELD_S,
) -> Response:
    """Does the work, and answers with its outcome or streams its events.

    If the client of a stream disconnects, the turn continues and is stored, unless the deployment is configured to
    cancel it and it is not in the `background`. Raises the work's error if there is no stream, or if the error precedes
    the assembled context, or the model's answer within `held_s` after that; there is no wait in the `background`, or if
    the deployment cancels.
    """
    if not stream:
        outcome = await work(None)
        call.note(turn_id=str(outcome.turn.id))
        return json_response(form.whole(outcome), status, form.headers)
    cancels = call.service.cancel_on_disconnect and not background
    streamed = _Stream(call, work, form, cancels_on_disconnect=cancels)
    error = await streamed.begun(0 if background or cancels else min(held_s, call.service.heartbeat_s))
    if error is not None:
        try:
            raise error
        finally:
            del error, streamed  # they refer to the error, whose traceback refers to this frame
    return ClosingResponse(streamed.events(), EVENT_STREAM, {**STREAM_HEADERS, **form.headers})


def events_response(events: Iterable[bytes], headers: Mapping[str, str]) -> Response:
    """An event stream whose events are all known already."""
    return Response(b"".join(events), headers={**STREAM_HEADERS, **headers}, media_type=EVENT_STREAM)


class PendingEvents:
    """Events that wait for the client. If it reads slowly, deltas are joined to save memory."""

    def __init__(self) -> None:
        self._events: deque[TurnEvent | None] = deque()
        self._has_some = asyncio.Event()

    def put(self, event: TurnEvent | None) -> None:
        """Add an event; None marks the end."""
        last = self._events[-1] if len(self._events) >= MOST_APART else None
        if last is not None and event is not None and _can_be_joined(last, event):
            joined = {name: last.data.get(name, "") + event.data.get(name, "") for name in last.data | event.data}
            self._events[-1] = TurnEvent("output.delta", joined)
        else:
            self._events.append(event)
            self._has_some.set()

    async def get(self) -> TurnEvent | None:
        while not self._events:
            self._has_some.clear()
            await self._has_some.wait()
        return self._events.popleft()

    def ready(self) -> Iterator[TurnEvent]:
        """Yield the events that are waiting, without the end mark, so that a burst of deltas is sent in one write."""
        for _ in range(MOST_APART):
            if not self._events or (event := self._events[0]) is None:
                return
            self._events.popleft()
            yield event


def _can_be_joined(last: TurnEvent, event: TurnEvent) -> bool:
    return last.name == event.name == "output.delta" and sum(map(len, last.data.values())) < LONG_DELTA_CHARS


class _Stream:
    def __init__(self, call: Call, work: Work, form: AnswerForm, *, cancels_on_disconnect: bool) -> None:
        self._call = call
        self._cancels_on_disconnect = cancels_on_disconnect
        self._form = form
        self._turn: JsonObject | None = None
        self._pending = PendingEvents()
        self._early: list[TurnEvent] = []
        self._task = asyncio.ensure_future(work(self._pending.put))
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Future[TurnOutcome]) -> None:
        if not task.cancelled():
            task.exception()  # the last event reports it, or the turn's record if the client has disconnected
        self._pending.put(None)

    async def begun(self, held_s: float) -> BaseException | None:
        """Waits until the context is assembled and then up to `held_s` for the answer's first event, or until the turn
        ends if that is earlier. Returns the turn's error."""
        wait_s = None
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    event = await self._pending.get()
            except TimeoutError:
                return None
            if event is None:
                self._pending.put(None)
                return None if self._task.cancelled() else self._task.exception()
            self._early.append(event)
            if event.name == "turn.created":
                self._turn = event.data["turn"]
                self._call.note(turn_id=str(event.data["turn"]["id"]))
            elif event.name == "output.delta" or not held_s:
                return None
            else:
                wait_s = held_s

    async def events(self) -> AsyncGenerator[bytes]:
        """The stream's bytes: the events, a comment after each interval without one, and the last event."""
        heartbeat_s = self._call.service.heartbeat_s
        try:
            for event in self._early:
                if encoded := b"".join(self._form.event(event)):
                    yield encoded
            while True:
                try:
                    async with asyncio.timeout(heartbeat_s):
                        event = await self._pending.get()
                except TimeoutError:
                    yield b": the model is still silent\n\n"
                    continue
                if event is None:
                    break
                if encoded := b"".join(chain.from_iterable(map(self._form.event, (event, *self._pending.ready())))):
                    yield encoded
            async for last in self._ending():
                yield last
        finally:
            if not self._task.done() and self._turn is not None and self._cancels_on_disconnect:
                self._call.rt.chores.start(self._cancel(self._turn), f"the end of turn {self._turn['id']}")

    async def _ending(self) -> AsyncGenerator[bytes]:
        try:
            outcome = await self._task
        except PlimsollError as error:
            error.__traceback__ = None  # it has this frame, whose `self` has the task that has the error
            for last in await self._failure(problems.document_of(error)):
                yield last
            return
        except Exception:
            detail = "Something broke on our side; the message is kept."
            for last in await self._failure(problems.document("internal_error", detail)):
                yield last
            raise
        for last in self._form.outcome(outcome, streamed=bool(self._early)):
            yield last

    async def _failure(self, problem: JsonObject) -> Iterable[bytes]:
        problems.note(self._call.scope, problem)
        return await self._form.failure(problem)

    async def _cancel(self, turn: JsonObject) -> None:
        with suppress(PlimsollError):  # the turn has ended in the meantime
            await cancel_turn(self._call.rt, self._call.session_ref(turn["session_id"]), turn["id"])


def encoded_event(name: str, data: Any) -> bytes:
    """A server-sent event whose data is JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data, default=plain_json, option=orjson.OPT_UTC_Z))
