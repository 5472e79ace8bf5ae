"""`/v1/sessions/{session_id}/timeline`: the window over the turns, ready to be plotted."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, answers
from app.api.routes.parameters import Cursor
from app.api.schemas.context import TimelinePage
from app.domain.types import JsonObject, SessionId
from app.services.views.timeline import read_timeline

router = APIRouter(prefix="/v1/sessions/{session_id}/timeline", tags=["context"], route_class=DirectRoute)

Turns = Annotated[int, Query(ge=1, le=500, description="Most turns of one page.")]


@router.get("", response_model=TimelinePage, responses=answers(*READ))
async def get_timeline(call: Call, session_id: UUID, limit: Turns = 200, cursor: Cursor = None) -> JsonObject:
    """Turn by turn, newest first: tokens by region, budget, thresholds, and what was summarized, pruned or recalled."""
    page = await read_timeline(call.rt, call.tenant_id, SessionId(session_id), limit, cursor)
    return {"items": page.items, "next_cursor": page.next_cursor}
