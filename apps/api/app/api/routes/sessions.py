"""`/v1/sessions`"""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, WRITE, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, Figures, Limit, Words
from app.api.schemas import ForkIn, SessionDetail, SessionIn, SessionOut, SessionPage, SessionPatch
from app.api.session_json import session_json
from app.domain.types import JsonObject, SessionId, TurnId
from app.services import sessions
from app.services.archive.fork import fork_session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)

_NO_FIELDS = SessionIn()
_WHOLE = ForkIn()


@router.post("", status_code=201, response_model=SessionOut, responses=answers(401, 408, 413, 415, 422, 503))
async def create_session(call: Call, body: SessionIn = _NO_FIELDS) -> JsonObject:
    """Makes a session. A mode or role is one of the catalogue's instructions; where it has none, any name will do."""
    session = await sessions.create_session(call.rt, call.tenant_id, _given(call, body))
    call.note(session_id=str(session.id))
    return session_json(session)


@router.get("", response_model=SessionPage, responses=answers(401, 422, 503))
async def list_sessions(
    call: Call, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, q: Words = None, figures: Figures = False
) -> JsonObject:
    """Your sessions, newest first; with `q` those that have its words, of which a page may be short and still go on."""
    if q and q.strip():
        page = await sessions.search_sessions(call.rt, call.tenant_id, q.strip(), limit, cursor)
    else:
        page = await sessions.list_sessions(call.rt, call.tenant_id, limit, cursor)
    items = [session_json(session) for session in page.items]
    if figures:
        found = await sessions.figures_of(call.rt, page.items)
        items = [item | {"figures": found.get(item["id"])} for item in items]
    return {"items": items, "next_cursor": page.next_cursor}


@router.get("/{session_id}", response_model=SessionDetail, responses=answers(*READ))
async def get_session(call: Call, session_id: UUID) -> JsonObject:
    """One session, with its state, and the tokens and the cost it used so far, by model and purpose."""
    session = await sessions.get_session(call.rt, call.tenant_id, SessionId(session_id))
    figures = (await sessions.figures_of(call.rt, [session])).get(session.id)
    return session_json(session) | {"usage": await sessions.session_usage(call.rt, session.id), "figures": figures}


@router.patch("/{session_id}", response_model=SessionOut, responses=answers(*WRITE))
async def change_session(call: Call, session_id: UUID, body: SessionPatch) -> JsonObject:
    """Sets what the body names: null takes a value away, `policy`, `metadata` and `limits` are replaced whole."""
    fields = _given(call, body)
    return session_json(await sessions.change_session(call.rt, call.tenant_id, SessionId(session_id), fields))


@router.delete("/{session_id}", status_code=204, responses=answers(*READ))
async def delete_session(call: Call, session_id: UUID) -> Response:
    """Erases the session with everything in it, for good. A turn that runs is cancelled."""
    await sessions.delete_session(call.rt, call.tenant_id, SessionId(session_id))
    return Response(status_code=204)


@router.post("/{session_id}/fork", status_code=201, response_model=SessionOut, responses=answers(*WRITE, 409))
async def post_fork(call: Call, session_id: UUID, body: ForkIn = _WHOLE) -> JsonObject:
    """Makes a new session with the same past, through the given turn or the last that has ended."""
    through = None if body.through_turn_id is None else TurnId(body.through_turn_id)
    forked = await fork_session(call.rt, call.tenant_id, SessionId(session_id), through)
    call.note(forked_session_id=str(forked.id))
    return session_json(forked)


def _given(call: Call, body: SessionIn) -> JsonObject:
    """The fields that the body names, as they came."""
    return {name: call.raw_body[name] for name in body.model_fields_set}
