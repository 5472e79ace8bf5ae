"""`/v1/sessions/{session_id}/turns`"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api import problems
from app.api.direct_route import Call, DirectRoute, json_response
from app.api.openapi import READ, STREAMED, WRITE, answers
from app.api.routes.parameters import DEFAULT_LIMIT, Cursor, IdempotencyKey, Limit, Round
from app.api.schemas.chat import ChatIn
from app.api.schemas.turns import (
    AuditOut,
    PromptOut,
    RecordedReplyIn,
    RegeneratedAnswer,
    RegenerateIn,
    ToolOutputsIn,
    TurnAnswer,
    TurnIn,
    TurnOut,
    TurnPage,
)
from app.api.streaming import Work, stream_turn
from app.api.turn_json import turn_json
from app.domain.errors import InvalidRequest, PlimsollError
from app.domain.types import JsonObject, RecordedReply, SessionId, ToolCall, TurnId
from app.services.archive.regenerate import prepare_again, take_again
from app.services.policies import given_policy
from app.services.sessions import check_alias
from app.services.turn.take import cancel_turn, continue_turn, take_turn
from app.services.turn.types import OutputsRequest, TurnOptions, TurnRequest
from app.services.views import turns

router = APIRouter(prefix="/v1/sessions/{session_id}/turns", tags=["turns"], route_class=DirectRoute)

_AS_IT_WAS = RegenerateIn()


@router.post("", status_code=201, response_model=TurnAnswer, responses=STREAMED | answers(*WRITE, 409, 429, 502, 504))
async def create_turn(
    call: Call, session_id: UUID, body: TurnIn, idempotency_key: IdempotencyKey = None
) -> JsonObject | Response:
    """Sends a message within the budget and answers with the turn and how its context came about."""
    rt, tenant_id, session = call.rt, call.tenant_id, SessionId(session_id)
    request = turn_request(call, body)
    return await _answer(
        call, session, body.stream, lambda listen: take_turn(rt, tenant_id, session, request, idempotency_key, listen)
    )


@router.post(
    "/{turn_id}/tool-outputs",
    status_code=201,
    response_model=TurnAnswer,
    responses=STREAMED | answers(*WRITE, 409, 429, 502, 504),
)
async def post_tool_outputs(call: Call, session_id: UUID, turn_id: UUID, body: ToolOutputsIn) -> JsonObject | Response:
    """Answers a turn's open tool calls, all of them, and runs its next round."""
    rt, tenant_id, session, turn = call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id)
    request = OutputsRequest(
        outputs=tuple((output["tool_call_id"], output["content"]) for output in call.raw_body["outputs"]),
        recorded_reply=_recorded(body.recorded_reply),
    )
    return await _answer(
        call, session, body.stream, lambda listen: continue_turn(rt, tenant_id, session, turn, request, listen)
    )


@router.post("/{turn_id}/cancel", response_model=TurnOut, responses=answers(*WRITE, 409))
async def post_cancel(call: Call, session_id: UUID, turn_id: UUID) -> JsonObject:
    """Ends a turn that runs or waits for tools. Its message is kept; later prompts hold no half of a tool call."""
    return turn_json(await cancel_turn(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id)))


@router.post(
    "/{turn_id}/regenerate",
    status_code=201,
    response_model=RegeneratedAnswer,
    responses=STREAMED | answers(*WRITE, 409, 429, 502, 504),
)
async def post_regenerate(
    call: Call, session_id: UUID, turn_id: UUID, body: RegenerateIn = _AS_IT_WAS
) -> JsonObject | Response:
    """Runs the session's last turn again, with other words where the body has some, in a fork that ends before it.

    A problem after the fork was made carries its `session_id`: the turn is stored there as it ended.
    """
    rt, tenant_id = call.rt, call.tenant_id
    request = turn_request(call, body)
    again = await prepare_again(rt, tenant_id, SessionId(session_id), TurnId(turn_id), request)
    made = again.session.id
    call.note(forked_session_id=str(made))
    try:
        answer = await _answer(call, made, body.stream, lambda listen: take_again(rt, tenant_id, again, listen))
    except InvalidRequest:
        raise
    except PlimsollError as error:
        return problems.of_document(problems.document_of(error) | {"session_id": str(made)}, problems.headers_of(error))
    if isinstance(answer, dict):
        answer = json_response({"session": again.session, **answer}, 201)
    answer.headers["Location"] = f"/v1/sessions/{made}"
    return answer


@router.get("", response_model=TurnPage, responses=answers(*READ))
async def list_turns(call: Call, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> JsonObject:
    """The session's turns."""
    page = await turns.list_turns(call.rt, call.tenant_id, SessionId(session_id), limit, cursor)
    return {"items": [turn_json(turn) for turn in page.items], "next_cursor": page.next_cursor}


@router.get("/{turn_id}", response_model=TurnOut, responses=answers(*READ))
async def get_turn(call: Call, session_id: UUID, turn_id: UUID) -> JsonObject:
    """One turn."""
    return turn_json(await turns.get_turn(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id)))


@router.get("/{turn_id}/audit", response_model=AuditOut, responses=answers(*READ))
async def get_audit(
    call: Call,
    session_id: UUID,
    turn_id: UUID,
    round: Round = None,  # noqa: A002 - the parameter's public name
    expand: Annotated[
        Literal["actions"] | None, Query(description="`actions`: each range of the trim log message by message.")
    ] = None,
) -> JsonObject:
    """Why every token of the turn's prompt went in or stayed out."""
    of = call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id)
    return await (turns.get_audit(*of, round) if expand is None else turns.get_expanded_audit(*of, round))


@router.get("/{turn_id}/prompt", response_model=PromptOut, responses=answers(*READ))
async def get_prompt(call: Call, session_id: UUID, turn_id: UUID, round: Round = None) -> JsonObject:  # noqa: A002 - the parameter's public name
    """The exact messages and tools that were sent, rebuilt from stored rows."""
    return await turns.get_prompt(call.rt, call.tenant_id, SessionId(session_id), TurnId(turn_id), round)


def request_sha256(body: JsonObject) -> str:
    """Tells whether two bodies ask for the same turn: key-sorted JSON, without `stream` (contract.md, decision 14)."""
    asked = {name: value for name, value in body.items() if name != "stream"}
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()


def turn_request(call: Call, body: TurnIn | RegenerateIn) -> TurnRequest:
    """What a body asks for. Raises `InvalidRequest`."""
    check_alias(call.rt, body.model_alias)
    check_tool_choice(body)
    raw: JsonObject = call.raw_body
    policy: JsonObject | None = raw.get("policy")
    return TurnRequest(
        content=raw.get("content"),
        request_sha256=request_sha256(raw),
        options=TurnOptions(
            tools=tuple(raw.get("tools") or ()),
            tool_choice=raw.get("tool_choice"),
            max_output_tokens=body.max_output_tokens,
            policy=given_policy(call.rt, policy) if policy else policy,
            recorded_reply=_recorded(body.recorded_reply),
        ),
        model_alias=body.model_alias,
    )


async def _answer(call: Call, session_id: SessionId, stream: bool, work: Work) -> JsonObject | Response:
    if stream:
        return await stream_turn(call, session_id, work)
    outcome = await work(None)
    call.note(turn_id=str(outcome.turn.id))
    return {"turn": turn_json(outcome.turn), "context": outcome.context}


def _recorded(reply: RecordedReplyIn | None) -> RecordedReply | None:
    if reply is None:
        return None
    calls = (ToolCall(call.id, call.function.name, call.function.arguments) for call in reply.tool_calls)
    return RecordedReply(content=reply.content, tool_calls=tuple(calls))


def check_tool_choice(body: TurnIn | RegenerateIn | ChatIn) -> None:
    """Raises `InvalidRequest` for a choice of a function that is not there."""
    if body.tool_choice is None or isinstance(body.tool_choice, str):
        return
    if body.tool_choice.function.name not in {tool.function.name for tool in body.tools or ()}:
        raise InvalidRequest("tool_choice names a function that tools does not have.", ("body", "tool_choice"))
