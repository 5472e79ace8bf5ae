"""`/v1/sessions`: sessions, their pins, and a whole session as one document (`/export`, `/import`)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, cast

import orjson
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute, SessionInPath, UnreadRoute, plain_json
from app.api.openapi import DEFAULT_LIMIT, Cursor, Limit, NewestFirst
from app.api.schemas import sessions as schemas
from app.api.schemas.imports import Document, ImportIn, read_import
from app.api.schemas.values import in_words
from app.api.streaming import ClosingResponse
from app.archive.document import FORMAT, VERSION
from app.domain.errors import Busy, InvalidRequest, NotFound, ProcessBusy
from app.domain.frozen import values_of
from app.domain.types import JsonObject, Pin, Session, TurnId
from app.services import sessions
from app.services.archive import transfer
from app.services.paging import Page
from app.services.process_state import BUSY_RETRY_S, HeldBytes
from app.services.views.context import pin_figures

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)

Words = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=in_words(r"^[^\x00]*$", "Must have no NUL character"),
        description="Only sessions with these words, in any case, in id, goal, labels, metadata or first message.",
    ),
]
Figures = Annotated[bool, Query(description="Adds each session's newest window, usage and state.")]
_NO_FIELDS = schemas.SessionIn()
_WHOLE = schemas.ForkIn()


@router.post("", status_code=201, response_model=schemas.SessionOut)
async def create_session(call: Call, body: schemas.SessionIn = _NO_FIELDS) -> Session:  # noqa: ARG001 - used as received
    """Creates a session. `mode` and `agent_role` name instructions of the catalogue; if it has none, all are valid."""
    session = await sessions.create_session(call.rt, call.tenant_id, call.raw_body)
    call.note(session_id=str(session.id))
    return session


@router.get("", response_model=schemas.SessionPage)
async def list_sessions(
    call: Call, wanted: NewestFirst, q: Words = None, figures: Figures = False
) -> Page[Session] | Page[JsonObject]:
    """The tenant's sessions; with `q`, those with its words, newest first (a short page may not be the last)."""
    if q and q.strip():
        if not wanted.newest_first:
            raise InvalidRequest("A search lists the newest first.", ("query", "order"))
        page = await sessions.search_sessions(call.rt, call.tenant_id, q.strip(), wanted.limit, wanted.cursor)
    else:
        page = await sessions.list_sessions(call.rt, call.tenant_id, wanted)
    if not figures:
        return page
    found = await sessions.figures_of(call.rt, page.items)
    return Page([values_of(session) | {"figures": found.get(session.id)} for session in page.items], page.next_cursor)


@router.get("/{session_id}", response_model=schemas.SessionDetail)
async def get_session(call: Call, session: SessionInPath) -> JsonObject:
    """One session with its state, and its tokens and cost so far by model and purpose."""
    found = await sessions.get_session(call.rt, session)
    figures = (await sessions.figures_of(call.rt, [found])).get(found.id)
    return values_of(found) | {"usage": await sessions.session_usage(call.rt, found.id), "figures": figures}


@router.patch("/{session_id}", response_model=schemas.SessionOut)
async def change_session(call: Call, session: SessionInPath, body: schemas.SessionPatch) -> Session:  # noqa: ARG001 - used as received
    """Sets the fields in the body. Null removes a value; `policy`, `metadata` and `limits` are replaced as a whole."""
    return await sessions.change_session(call.rt, session, call.raw_body)


@router.delete("/{session_id}", status_code=204)
async def delete_session(call: Call, session: SessionInPath) -> Response:
    """Permanently deletes the session with everything in it. A running turn is cancelled."""
    await sessions.delete_session(call.rt, session)
    return Response(status_code=204)


@router.post("/{session_id}/fork", status_code=201, response_model=schemas.SessionOut)
async def fork_session(call: Call, session: SessionInPath, body: schemas.ForkIn = _WHOLE) -> Session:
    """Creates a session with the same history, through the given turn, or the last one that has ended."""
    through = None if body.through_turn_id is None else TurnId(body.through_turn_id)
    forked = await transfer.fork_session(call.rt, session, through)
    call.note(forked_session_id=str(forked.id))
    return forked


pins_router = APIRouter(prefix="/v1/sessions/{session_id}/pins", tags=["pins"], route_class=DirectRoute)

_LONGEST_NAME = 255
PinName = Annotated[
    str, Path(min_length=1, max_length=_LONGEST_NAME, description="1 to 255 printable characters; slashes are allowed.")
]

PinFiguresQuery = Annotated[bool, Query(description="Adds each pin's tokens and relevance.")]


@pins_router.get("", response_model=schemas.PinPage)
async def list_pins(
    call: Call,
    session: SessionInPath,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    figures: PinFiguresQuery = False,
) -> Page[Pin] | Page[JsonObject]:
    """The session's pins, ordered by name."""
    page = await sessions.list_pins(call.rt, session, limit, cursor)
    if not figures:
        return page
    found = await pin_figures(call.rt, session)
    return Page([values_of(pin) | {"figures": found.get(pin.name)} for pin in page.items], page.next_cursor)


@pins_router.put("/{name:path}", response_model=schemas.PinOut)
async def put_pin(call: Call, session: SessionInPath, name: PinName, body: schemas.PinIn) -> Pin:
    """Adds content to every prompt of the session, or replaces the pin of this name."""
    if not _can_be_a_name(name):
        raise InvalidRequest(f"A pin's name is 1 to {_LONGEST_NAME} printable characters.", ("path", "name"))
    pin = Pin(name=name, content=body.content, relevance=body.relevance, source=body.source)
    return await sessions.put_pin(call.rt, session, pin)


@pins_router.get("/{name:path}", response_model=schemas.PinOut)
async def get_pin(call: Call, session: SessionInPath, name: PinName) -> Pin:
    """One pin."""
    if not _can_be_a_name(name):
        raise NotFound("pin")
    return await sessions.get_pin(call.rt, session, name)


@pins_router.delete("/{name:path}", status_code=204)
async def delete_pin(call: Call, session: SessionInPath, name: PinName) -> Response:
    """Removes the pin. Prompts that contained it can still be rebuilt."""
    if not _can_be_a_name(name):
        raise NotFound("pin")
    await sessions.delete_pin(call.rt, session, name)
    return Response(status_code=204)


def _can_be_a_name(name: str) -> bool:
    """Whether a pin can have the name. U+FFFD stands for bytes of the path that are not UTF-8."""
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and "\ufffd" not in name


import_router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=UnreadRoute)

IMPORT_PATH = "/v1/sessions/import"
_CHUNK_BYTES = 256 * 1024
"""Bytes that are written or read in one step, on a thread, because the file may be on a disk."""
_IN_MEMORY_BYTES = 1024 * 1024


@router.get("/{session_id}/export", response_model=Document)
async def export_session(call: Call, session: SessionInPath) -> Response:
    """The whole session as one JSON document: turns that have ended, messages, summaries, audits, blocks and pins."""
    exports = call.service.exports
    async with aclosing(transfer.export_session(call.rt, session)) as parts:  # also if the disk is full
        file = await spooled(parts)
    size_bytes = file.seek(0, os.SEEK_END)
    held = HeldBytes(exports, call.tenant_id)
    try:
        held.take(min(size_bytes, exports.per_tenant))  # a tenant can always have one, however large
    except Busy:
        file.close()
        raise
    headers = {
        "Content-Length": str(size_bytes),
        "Content-Disposition": f'attachment; filename="session-{session.id}.json"',
    }
    file.seek(0)
    return ClosingResponse(file_chunks(file, held), "application/json", headers)


@import_router.post("/import", status_code=201, response_model=schemas.SessionOut)
async def import_session(call: Call, body: ImportIn) -> Session:  # noqa: ARG001 - describes the body, which is read elsewhere
    """Creates a session from an export, or from `messages` in OpenAI's form, with new ids: completely or not at all."""
    session = await transfer.import_session(call.rt, call.tenant_id, call.exchange.body, read_import)
    call.note(session_id=str(session.id))
    return session


async def file_chunks(file: IO[bytes], held: HeldBytes) -> AsyncGenerator[bytes]:
    """The file in chunks. At the end it is closed, and its bytes are no longer `held`."""
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
    finally:
        held.give_back()
        # Not awaited: a cancelled task must not wait here, and it takes milliseconds to close a large file.
        asyncio.get_running_loop().run_in_executor(None, file.close)


async def spooled(parts: AsyncIterator[tuple[str, Any]]) -> IO[bytes]:
    """Return the document of these parts as a private temporary file, positioned at its beginning.

    A slow client then reads from the file, and the database connection is free for other requests. A file of up to
    1 MiB is kept in memory. Raises `ProcessBusy` if the file cannot be written.
    """
    file = cast("IO[bytes]", SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115 - whoever sends it closes it
    pieces = [orjson.dumps({"format": FORMAT, "version": VERSION})[:-1]]
    unwritten_bytes = 0
    try:
        opened, separator = "", b""
        async for name, value in parts:
            if name == "session":
                pieces.append(b',"session":%b' % _encoded(value))
                continue
            if name != opened:
                pieces.append(b'%b,"%b":[' % (b"]" if opened else b"", name.encode()))
                opened, separator = name, b""
            for row in value:
                encoded = _encoded(row)
                pieces += (separator, encoded)
                separator = b",\n"
                unwritten_bytes += len(encoded)
                if unwritten_bytes >= _CHUNK_BYTES:
                    await asyncio.to_thread(file.writelines, pieces)
                    pieces, unwritten_bytes = [], 0
        await asyncio.to_thread(file.writelines, [*pieces, b"]}\n"])
        file.seek(0)
    except BaseException as error:
        with suppress(OSError):  # on a full disk, for what was not written yet
            file.close()
        if not isinstance(error, OSError):
            raise
        logger.warning("an export could not be written to the temporary folder: %s", error.strerror)
        raise ProcessBusy("This process has no room for the temporary file of an export.", BUSY_RETRY_S) from error
    return file


def _encoded(value: object) -> bytes:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_UTC_Z)


def _plain(value: object) -> object:
    """Encode what orjson does not. Prices keep all their digits."""
    return format(value, "f") if isinstance(value, Decimal) else plain_json(value)
