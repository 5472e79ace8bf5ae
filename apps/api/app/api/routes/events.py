"""`/v1/events`: changes of a tenant's turns as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

from fastapi import APIRouter
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import event_stream
from app.api.schemas.turns import OpenTurns
from app.api.streaming import EVENT_STREAM, STREAM_HEADERS, ClosingResponse, encoded_event
from app.domain.errors import PlimsollError
from app.domain.types import JsonObject
from app.services.views.activity import next_event

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=DirectRoute)

_LOOK_UP_S = 1.0
"""Longest time in seconds until a stream notices that the process drains, and ends."""
_ANSWERS = event_stream(
    f"The open turns; with `Accept: {EVENT_STREAM}` a stream: `stream.ready` with them, then `turn.changed` for every "
    "change of a turn's status, and `stream.gap` if some may be missing.",
    {"type": "string"},
)


@router.get("", response_model=OpenTurns, responses=_ANSWERS)
async def get_events(call: Call) -> JsonObject | Response:
    """The tenant's open turns; with `Accept: text/event-stream` also an event for each change of a status."""
    if EVENT_STREAM not in call.headers.get("accept", ""):
        return {"items": await call.service.activity.open_turns(call.rt, call.tenant_id), "next_cursor": None}
    events = _events(call)
    first = await anext(events)  # a refusal is an ordinary answer, not a stream
    return ClosingResponse(_with(first, events), EVENT_STREAM, STREAM_HEADERS)


async def _with(first: bytes, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


async def _events(call: Call) -> AsyncGenerator[bytes]:
    service = call.service
    with service.activity.follow(call.rt, call.tenant_id) as follower:
        yield encoded_event("stream.ready", {"open": await service.activity.open_turns(call.rt, call.tenant_id)})
        looked_up = monotonic()
        while not service.drain.announced:
            change = await next_event(follower, _LOOK_UP_S)
            if change is not None:
                yield encoded_event("turn.changed", change)
            if follower.missed:
                follower.missed = False
                yield encoded_event("stream.gap", {})
            if monotonic() - looked_up >= service.heartbeat_s:
                if not await _still_welcome(call):
                    return
                looked_up = monotonic()
                yield b": still here\n\n"


async def _still_welcome(call: Call) -> bool:
    try:
        return await call.service.authenticator.tenant_of(call.exchange.credential) == call.tenant_id
    except PlimsollError:
        return False
