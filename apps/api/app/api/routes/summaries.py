"""`/v1/sessions/{session_id}/summaries`: what stands for messages that have left the window."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, Limit
from app.api.schemas.context import SummaryOut, SummaryPage
from app.domain.stored import StoredSummary
from app.domain.types import JsonObject, SessionId, SummaryId
from app.services import summaries

router = APIRouter(prefix="/v1/sessions/{session_id}/summaries", tags=["context"], route_class=DirectRoute)


@router.get("", response_model=SummaryPage, responses=answers(*READ))
async def list_summaries(
    call: Call, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> JsonObject:
    """The session's summaries, active and past."""
    page = await summaries.list_summaries(call.rt, call.tenant_id, SessionId(session_id), limit, cursor)
    return {"items": page.items, "next_cursor": page.next_cursor}


@router.post("", status_code=201, response_model=SummaryOut, responses=answers(*READ, 409, 429, 502, 504))
async def summarize_now(call: Call, session_id: UUID) -> StoredSummary:
    """Summarizes now what may be summarized, whatever the thresholds say. Takes no body."""
    return await summaries.summarize_now(call.rt, call.tenant_id, SessionId(session_id))


@router.post("/active/undo", response_model=SummaryOut, responses=answers(*READ, 409))
async def undo_active_summary(call: Call, session_id: UUID) -> StoredSummary:
    """Takes back whichever summary is active now, also one that was made meanwhile. Takes no body."""
    return await summaries.undo_summary(call.rt, call.tenant_id, SessionId(session_id), None)


@router.post("/{summary_id}/undo", response_model=SummaryOut, responses=answers(*READ, 409))
async def undo_summary(call: Call, session_id: UUID, summary_id: UUID) -> StoredSummary:
    """Takes the active summary back: its predecessor stands again, its range is raw again. Takes no body."""
    return await summaries.undo_summary(call.rt, call.tenant_id, SessionId(session_id), SummaryId(summary_id))
