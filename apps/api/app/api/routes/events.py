"""`/v1/events`: what happens in a tenant's sessions, as it happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import answers, event_stream
from app.api.schemas.turns import OpenTurns
from app.api.streaming import STREAM_HEADERS, encoded_event
from app.domain.errors import PlimsollError
from app.domain.types import JsonObject
from app.services.views.activity import next_event

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=DirectRoute)

EVENT_STREAM = "text/event-stream"
_LOOK_UP_S = 1.0
"""How soon a stream ends that this process may not serve any more."""
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": f"The open turns; with `Accept: {EVENT_STREAM}` a stream: `stream.ready` with them, then "
        "`turn.changed` for every change of a turn's status, and `stream.gap` where some may be missing.",
        "content": event_stream({"type": "string"}),
    }
}


@router.get("", response_model=OpenTurns, responses=_ANSWERS | answers(401, 429, 503))
async def get_events(call: Call) -> JsonObject | Response:
    """Your turns that run or wait for tools; to who accepts `text/event-stream`, and then every turn as it changes."""
    accepted = call.headers.get("accept", "")
    if EVENT_STREAM not in accepted:
        return {"items": await call.service.activity.open_turns(call.rt, call.tenant_id), "next_cursor": None}
    events = _events(call)
    first = await anext(events)  # what is refused is refused as an answer, and not in a stream
    return StreamingResponse(_with(first, events), media_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def _with(first: bytes, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await events.aclose()


async def _events(call: Call) -> AsyncGenerator[bytes]:
    service = call.service
    with service.activity.follow(call.rt, call.tenant_id) as follower:
        yield encoded_event("stream.ready", {"open": await service.activity.open_turns(call.rt, call.tenant_id)})
        looked_up = monotonic()
        while not service.drain.announced:
            news = await next_event(follower, _LOOK_UP_S)
            if news is not None:
                yield encoded_event("turn.changed", news)
            if follower.missed:
                follower.missed = False
                yield encoded_event("stream.gap", {})
            if monotonic() - looked_up >= service.heartbeat_s:
                if not await _still_welcome(call):
                    return
                looked_up = monotonic()
                yield b": still here\n\n"


async def _still_welcome(call: Call) -> bool:
    """A key that was revoked meanwhile hears no more."""
    try:
        return await call.service.authenticator.tenant_of(call.headers.get("authorization", "").encode()) == (
            call.tenant_id
        )
    except PlimsollError:
        return False
