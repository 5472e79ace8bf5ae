"""`/v1/sessions/{session_id}/context`, `/search`: the window now and next, and what is found in and out of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from app.api import problems
from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, WRITE, answers
from app.api.routes.turns import turn_request
from app.api.schemas.context import FoundOut, WindowOut
from app.api.schemas.turns import PreviewIn, PreviewOut
from app.domain.figures import CurrentWindow
from app.domain.types import JsonObject, SessionId
from app.services.views import context as window
from app.services.views.preview import preview_turn
from app.services.views.search import search_session

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["context"], route_class=DirectRoute)

SearchWords = Annotated[str, Query(min_length=1, max_length=1000, description="Words to look for.")]
MostFound = Annotated[int, Query(ge=1, le=50, description="Most messages that are answered.")]
DEFAULT_FOUND = 10


@router.get("/context", response_model=WindowOut, responses=answers(*READ))
async def get_window(call: Call, session_id: UUID) -> CurrentWindow:
    """The window now: tokens by region, budget, limit and its source, turns to the next summary."""
    return await window.window_now(call.rt, call.tenant_id, SessionId(session_id))


@router.get("/search", response_model=FoundOut, responses=answers(*READ))
async def search(call: Call, session_id: UUID, q: SearchWords, limit: MostFound = DEFAULT_FOUND) -> JsonObject:
    """The session's messages that have words of `q`, in the window or out of it, best first. Writes nothing."""
    return await search_session(call.rt, call.tenant_id, SessionId(session_id), q, limit)


@router.post("/context/preview", response_model=PreviewOut, responses=answers(*WRITE))
async def preview(call: Call, session_id: UUID, body: PreviewIn) -> JsonObject:
    """What the next turn would send: calls no model, writes nothing, waits for nothing. 200 also where it would be
    refused."""
    seen = await preview_turn(call.rt, call.tenant_id, SessionId(session_id), turn_request(call, body))
    return seen | {"refusal": problems.complete(seen["refusal"])}
