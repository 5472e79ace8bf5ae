"""`/v1/sessions`"""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, WRITE, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, Limit
from app.api.schemas import SessionDetail, SessionIn, SessionOut, SessionPage, SessionPatch
from app.domain.types import JsonObject, Session, SessionId
from app.services import sessions

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=DirectRoute)

_NO_FIELDS = SessionIn()


@router.post("", status_code=201, response_model=SessionOut, responses=answers(401, 408, 413, 415, 422, 503))
async def create_session(call: Call, body: SessionIn = _NO_FIELDS) -> JsonObject:
    """Makes a session. A mode or role is one of the catalogue's instructions; where it has none, any name will do."""
    session = await sessions.create_session(call.rt, call.tenant_id, _given(call, body))
    call.note(session_id=str(session.id))
    return session_json(session)


@router.get("", response_model=SessionPage, responses=answers(401, 422, 503))
async def list_sessions(call: Call, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> JsonObject:
    """Your sessions, newest first."""
    page = await sessions.list_sessions(call.rt, call.tenant_id, limit, cursor)
    return {"items": [session_json(session) for session in page.items], "next_cursor": page.next_cursor}


@router.get("/{session_id}", response_model=SessionDetail, responses=answers(*READ))
async def get_session(call: Call, session_id: UUID) -> JsonObject:
    """One session, with the tokens and the cost it used so far, by model and purpose."""
    session = await sessions.get_session(call.rt, call.tenant_id, SessionId(session_id))
    return session_json(session) | {"usage": await sessions.session_usage(call.rt, session.id)}


@router.patch("/{session_id}", response_model=SessionOut, responses=answers(*WRITE))
async def change_session(call: Call, session_id: UUID, body: SessionPatch) -> JsonObject:
    """Sets what the body names: null takes a value away, `policy` and `metadata` are replaced whole."""
    fields = _given(call, body)
    return session_json(await sessions.change_session(call.rt, call.tenant_id, SessionId(session_id), fields))


@router.delete("/{session_id}", status_code=204, responses=answers(*READ))
async def delete_session(call: Call, session_id: UUID) -> Response:
    """Erases the session with everything in it, for good."""
    await sessions.delete_session(call.rt, call.tenant_id, SessionId(session_id))
    return Response(status_code=204)


def _given(call: Call, body: SessionIn) -> JsonObject:
    """The fields that the body names, as they came."""
    return {name: call.raw_body[name] for name in body.model_fields_set}


def session_json(session: Session) -> JsonObject:
    """A session as clients read it."""
    return {
        "id": session.id,
        "model_alias": session.model_alias,
        "mode": session.mode,
        "agent_role": session.agent_role,
        "room_goal": session.room_goal,
        "instructions": session.instructions,
        "policy": session.policy,
        "metadata": session.metadata,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "forked_from": session.forked_from,
    }
