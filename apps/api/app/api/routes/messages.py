"""`/v1/sessions/{session_id}/messages`: what was said, as it is stored."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, Limit
from app.api.schemas.turns import MessagePage
from app.domain.types import JsonObject, SessionId
from app.services.views import turns

router = APIRouter(prefix="/v1/sessions/{session_id}/messages", tags=["turns"], route_class=DirectRoute)

_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
MessageIds = Annotated[
    str | None,
    Query(
        pattern=f"^{_UUID}(?:,{_UUID}){{0,99}}$",
        description="Only these, at most 100, with commas between them, all on one page.",
    ),
]


@router.get("", response_model=MessagePage, responses=answers(*READ))
async def list_messages(
    call: Call, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, ids: MessageIds = None
) -> JsonObject:
    """The session's messages in time order, as they were said: nothing that compresses a prompt changes them."""
    session = SessionId(session_id)
    if ids is not None:
        page = await turns.get_messages(call.rt, call.tenant_id, session, [UUID(each) for each in ids.split(",")])
    else:
        page = await turns.list_messages(call.rt, call.tenant_id, session, limit, cursor)
    return {"items": page.items, "next_cursor": page.next_cursor}
