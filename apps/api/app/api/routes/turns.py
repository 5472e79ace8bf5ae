"""`/v1/sessions/{session_id}/turns`"""

from __future__ import annotations

import hashlib
from uuid import UUID

import orjson
from fastapi import APIRouter

from app.api import problems
from app.api.direct_route import Call, DirectRoute
from app.api.openapi import READ, WRITE, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, IdempotencyKey, Limit, Round
from app.api.schemas import Document, PromptOut, RecordedReplyIn, TurnAnswer, TurnIn, TurnOut, TurnPage
from app.domain.errors import InvalidRequest
from app.domain.types import JsonObject, RecordedReply, SessionId, ToolCall, TurnId, TurnRecord
from app.services import turns
from app.services.sessions import check_alias, check_replay_alias
from app.services.take_turn import TurnRequest, take_turn

router = APIRouter(prefix="/v1/sessions/{session_id}/turns", tags=["turns"], route_class=DirectRoute)


@router.post("", status_code=201, response_model=TurnAnswer, responses=answers(*WRITE, 409, 502, 504))
async def create_turn(call: Call, session_id: UUID, body: TurnIn, idempotency_key: IdempotencyKey = None) -> JsonObject:
    """Sends a message within the budget and answers with the turn and how its context came about."""
    rt, tenant_id, session = call.rt, call.tenant_id, SessionId(session_id)
    check_alias(rt, body.model_alias)
    _check_tool_choice(body)
    if body.recorded_reply is not None:
        await check_replay_alias(rt, tenant_id, session, body.model_alias)
    raw: JsonObject = call.raw_body
    request = TurnRequest(
        content=raw["content"],
        tools=tuple(raw.get("tools") or ()),
        tool_choice=raw.get("tool_choice"),
        max_output_tokens=body.max_output_tokens,
        model_alias=body.model_alias,
        recorded_reply=None if body.recorded_reply is None else _recorded(body.recorded_reply),
        request_sha256=request_sha256(raw),
    )
    outcome = await take_turn(rt, tenant_id, session, request, idempotency_key)
    call.note(turn_id=str(outcome.turn.id))
    return {"turn": turn_json(outcome.turn), "context": outcome.context}


@router.get("", response_model=TurnPage, responses=answers(*READ))
async def list_turns(call: Call, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> JsonObject:
    """The session's turns."""
    page = await turns.list_turns(call.rt, call.tenant_id, SessionId(session_id), limit, cursor)
    return {"items": [turn_json(turn) for turn in page.items], "next_cursor": page.next_cursor}


@router.get("/{turn_id}", response_model=TurnOut, responses=answers(*READ))
async def get_turn(call: Call, session_id: UUID, turn_id: UUID) -> JsonObject:
    """One turn."""
    return turn_json(await turns.get_turn(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id)))


@router.get("/{turn_id}/audit", response_model=Document, responses=answers(*READ))
async def get_audit(call: Call, session_id: UUID, turn_id: UUID, round: Round = None) -> JsonObject:  # noqa: A002 - the parameter's public name
    """Why every token of the turn's prompt went in or stayed out."""
    return await turns.get_audit(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id), round)


@router.get("/{turn_id}/prompt", response_model=PromptOut, responses=answers(*READ))
async def get_prompt(call: Call, session_id: UUID, turn_id: UUID, round: Round = None) -> JsonObject:  # noqa: A002 - the parameter's public name
    """The exact messages and tools that were sent, rebuilt from stored rows."""
    return await turns.get_prompt(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id), round)


def request_sha256(body: JsonObject) -> str:
    """Tells whether two bodies ask for the same turn: key-sorted JSON, without `stream` (contract, decision 14)."""
    asked = {name: value for name, value in body.items() if name != "stream"}
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()


def turn_json(turn: TurnRecord) -> JsonObject:
    """A turn as clients read it."""
    return {
        "id": turn.id,
        "session_id": turn.session_id,
        "seq": turn.seq,
        "status": turn.status,
        "user_input": turn.user_input,
        "assistant_output": turn.assistant_output,
        "tool_calls": [tool_call_json(tool_call) for tool_call in turn.tool_calls],
        "finish_reason": turn.finish_reason,
        "error": problems.complete(turn.error),
        "model_alias": turn.model_alias,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "idempotency_key": turn.idempotency_key,
        "created_at": turn.created_at,
        "completed_at": turn.completed_at,
    }


def tool_call_json(tool_call: ToolCall) -> JsonObject:
    """A tool call in the OpenAI form."""
    return {
        "id": tool_call.id,
        "type": "function",
        "function": {"name": tool_call.name, "arguments": tool_call.arguments},
    }


def _recorded(reply: RecordedReplyIn) -> RecordedReply:
    calls = (ToolCall(call.id, call.function.name, call.function.arguments) for call in reply.tool_calls)
    return RecordedReply(content=reply.content, tool_calls=tuple(calls))


def _check_tool_choice(body: TurnIn) -> None:
    if body.tool_choice is None or isinstance(body.tool_choice, str):
        return
    if body.tool_choice.function.name not in {tool.function.name for tool in body.tools or ()}:
        raise InvalidRequest("tool_choice names a function that tools does not have.", ("body", "tool_choice"))
