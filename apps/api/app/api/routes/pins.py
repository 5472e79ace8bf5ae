"""`/v1/sessions/{session_id}/pins`"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import DEFAULT_LIMIT, READ, WRITE, Cursor, Limit, refusals
from app.api.schemas.sessions import PinIn, PinOut, PinPage
from app.api.schemas.values import as_json
from app.domain.errors import InvalidRequest, NotFound
from app.domain.types import JsonObject, Pin, SessionId
from app.services import pins
from app.services.paging import Page

router = APIRouter(prefix="/v1/sessions/{session_id}/pins", tags=["pins"], route_class=DirectRoute)

_LONGEST_NAME = 255
PinName = Annotated[
    str, Path(min_length=1, max_length=_LONGEST_NAME, description="1 to 255 printable characters; slashes are fine.")
]

PinFiguresQuery = Annotated[bool, Query(description="Adds tokens and relevance of each.")]


@router.get("", response_model=PinPage, responses=refusals(*READ))
async def list_pins(
    call: Call,
    session_id: SessionId,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    figures: PinFiguresQuery = False,
) -> JsonObject | Page[Pin]:
    """The session's pins by name."""
    page = await pins.list_pins(call.rt, call.tenant_id, session_id, limit, cursor)
    if not figures:
        return page
    found = await pins.pin_figures(call.rt, call.tenant_id, session_id)
    items = [as_json(pin) | {"figures": found.get(pin.name)} for pin in page.items]
    return {"items": items, "next_cursor": page.next_cursor}


@router.put("/{name:path}", response_model=PinOut, responses=refusals(*WRITE))
async def put_pin(call: Call, session_id: SessionId, name: PinName, body: PinIn) -> Pin:
    """Adds content to every prompt of the session, or replaces the pin of this name."""
    if not _can_be_a_name(name):
        raise InvalidRequest(f"A pin's name is 1 to {_LONGEST_NAME} printable characters.", ("path", "name"))
    pin = Pin(name=name, content=body.content, relevance=body.relevance, source=body.source)
    return await pins.put_pin(call.rt, call.tenant_id, session_id, pin)


@router.get("/{name:path}", response_model=PinOut, responses=refusals(*READ))
async def get_pin(call: Call, session_id: SessionId, name: PinName) -> Pin:
    """One pin."""
    if not _can_be_a_name(name):
        raise NotFound("pin")
    return await pins.get_pin(call.rt, call.tenant_id, session_id, name)


@router.delete("/{name:path}", status_code=204, responses=refusals(*READ))
async def delete_pin(call: Call, session_id: SessionId, name: PinName) -> Response:
    """Removes the pin. Prompts that contained it can still be rebuilt."""
    if not _can_be_a_name(name):
        raise NotFound("pin")
    await pins.delete_pin(call.rt, call.tenant_id, session_id, name)
    return Response(status_code=204)


def _can_be_a_name(name: str) -> bool:
    """U+FFFD replaces bytes of the path that are not UTF-8."""
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and "\ufffd" not in name
