"""`/v1/sessions/{session_id}/export` and `/v1/sessions/import`: a whole session as one document, and back."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import IO
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from app.api.archive_document import spooled
from app.api.direct_route import Call, DirectRoute, UnreadRoute
from app.api.import_reading import read_import
from app.api.openapi import READ, answers
from app.api.schemas.archive import Document, ImportIn
from app.api.schemas.sessions import SessionOut
from app.domain.types import Session, SessionId
from app.services.archive.transfer import export_session, import_session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)
import_router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=UnreadRoute)

IMPORT_PATH = "/v1/sessions/import"
_CHUNK_BYTES = 64 * 1024


@router.get("/{session_id}/export", response_model=Document, responses=answers(*READ, 429))
async def get_export(call: Call, session_id: UUID) -> Response:
    """The whole session as one JSON document: turns that have ended, messages, summaries, audits, blocks and pins."""
    file = await spooled(export_session(call.rt, call.tenant_id, SessionId(session_id)))
    headers = {
        "Content-Length": str(file.seek(0, os.SEEK_END)),
        "Content-Disposition": f'attachment; filename="session-{session_id}.json"',
    }
    file.seek(0)
    return StreamingResponse(_chunks(file), headers=headers, media_type="application/json")


@import_router.post(
    "/import", status_code=201, response_model=SessionOut, responses=answers(401, 408, 413, 415, 422, 429, 503)
)
async def post_import(call: Call, body: ImportIn) -> Session:  # noqa: ARG001 - describes what is read elsewhere
    """Makes a session of an export, or of `messages` in the OpenAI form: all of it or nothing, under new ids."""
    session = await import_session(call.rt, call.tenant_id, call.unread_body, read_import)
    call.note(session_id=str(session.id))
    return session


async def _chunks(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
