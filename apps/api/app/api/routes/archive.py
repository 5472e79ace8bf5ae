"""`/v1/sessions/{session_id}/export` and `/v1/sessions/import`: a whole session as one document, and back."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import orjson
from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from app.api.direct_route import Call, DirectRoute, UnreadRoute, plain_json
from app.api.openapi import READ, refusals
from app.api.schemas.archive import Document, ImportIn, read_import
from app.api.schemas.sessions import SessionOut
from app.archive.document import FORMAT, SECTIONS, VERSION
from app.domain.types import Session, SessionId
from app.services.archive.transfer import export_session, import_session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)
import_router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=UnreadRoute)

IMPORT_PATH = "/v1/sessions/import"
_CHUNK_BYTES = 64 * 1024
_IN_MEMORY_BYTES = 1024 * 1024


@router.get(
    "/{session_id}/export", response_model=Document, responses=refusals(*READ, 429), operation_id="export_session"
)
async def get_export(call: Call, session_id: SessionId) -> Response:
    """The whole session as one JSON document: turns that have ended, messages, summaries, audits, blocks and pins."""
    file = await spooled(export_session(call.rt, call.tenant_id, session_id))
    headers = {
        "Content-Length": str(file.seek(0, os.SEEK_END)),
        "Content-Disposition": f'attachment; filename="session-{session_id}.json"',
    }
    file.seek(0)
    return StreamingResponse(_chunks(file), headers=headers, media_type="application/json")


@import_router.post(
    "/import",
    status_code=201,
    response_model=SessionOut,
    responses=refusals(401, 408, 413, 415, 422, 429, 503),
    operation_id="import_session",
)
async def post_import(call: Call, body: ImportIn) -> Session:  # noqa: ARG001 - describes the body, which is read elsewhere
    """Creates a session from an export, or from `messages` in OpenAI's form, with new ids: completely or not at all."""
    session = await import_session(call.rt, call.tenant_id, call.unread_body, read_import)
    call.note(session_id=str(session.id))
    return session


async def _chunks(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


async def spooled(parts: AsyncIterator[tuple[str, Any]]) -> IO[bytes]:
    """The document of these parts as a private temporary file, at its beginning.

    A slow client then reads from the file, while the database connection is free for others. Up to 1 MiB stays in
    memory.
    """
    file = cast("IO[bytes]", SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115 - whoever sends it closes it
    try:
        file.write(orjson.dumps({"format": FORMAT, "version": VERSION})[:-1])
        waiting = list(SECTIONS)
        separator = b""
        async for name, value in parts:
            if name == "session":
                file.write(b',"session":%b' % _encoded(value))
                continue
            while name in waiting:
                file.write(_opening(waiting.pop(0)))
                separator = b""
            for row in value:
                file.write(separator + _encoded(row))
                separator = b",\n"
        file.write(b"".join(map(_opening, waiting)) + b"]}\n")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _opening(section: str) -> bytes:
    """The end of the list before, and the beginning of this one."""
    return (b"" if section == SECTIONS[0] else b"]") + b',"%b":[' % section.encode()


def _encoded(value: object) -> bytes:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_UTC_Z)


def _plain(value: object) -> object:
    """Prices keep all digits."""
    return format(value, "f") if isinstance(value, Decimal) else plain_json(value)
