"""`/v1/sessions/{session_id}/export` and `/v1/sessions/import`: a whole session as one document, and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import IO
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from app.api.archive_document import read_conversation, read_export, spooled
from app.api.direct_route import Call, DirectRoute, HeavyRoute
from app.api.openapi import READ, answers
from app.api.schemas.archive import Document, ImportIn
from app.api.schemas.sessions import SessionOut
from app.domain.types import JsonObject, Session, SessionId
from app.services.archive.export import export_session
from app.services.archive.import_export import import_export
from app.services.archive.import_messages import import_messages

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)
import_router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=HeavyRoute)

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
async def post_import(call: Call, body: ImportIn) -> Session:
    """Makes a session of an export, or of `messages` in the OpenAI form: all of it or nothing, under new ids."""
    document: JsonObject = call.raw_body
    if body.format is not None:
        export = await asyncio.to_thread(read_export, document)
        session = await import_export(call.rt, call.tenant_id, export)
    else:
        fields, messages = await asyncio.to_thread(read_conversation, document)
        session = await import_messages(call.rt, call.tenant_id, fields, messages)
    call.note(session_id=str(session.id))
    return session


async def _chunks(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
