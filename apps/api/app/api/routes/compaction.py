"""`/v1/responses/compact`: a conversation is summarized now, and an item stands for it in what is sent next."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute, json_response
from app.api.openapi import SESSION_HEADER, IdempotencyKey, openai_refusals
from app.api.response_json import compaction_json
from app.api.routes.chat import NewSessionHeader, SessionHeader, check_model
from app.api.routes.responses import in_session, items_of_input, previous_of
from app.api.routes.turns import request_sha256
from app.api.schemas.responses import CompactIn, CompactionOut
from app.domain.errors import InvalidRequest, located
from app.openai.items import read_items, references_of
from app.services.openai.chat import ChatRequest
from app.services.openai.conversations import referenced
from app.services.openai.responses import ResponseRequest, compact
from app.services.turn.types import TurnOptions

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=DirectRoute)


@router.post("/compact", response_model=CompactionOut, responses=openai_refusals())
async def compact_response(
    call: Call,
    body: CompactIn,
    x_session_id: SessionHeader = None,
    x_session_new: NewSessionHeader = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Summarizes a conversation now. The answer's `output` stands for it at the beginning of a next `input`."""
    rt, tenant_id, raw = call.rt, call.tenant_id, call.raw_body
    check_model(rt, body.model)
    items = items_of_input(raw) if body.input is not None else []
    named = await referenced(rt, tenant_id, references_of(items))

    def read_body() -> ResponseRequest:
        with located("body", "input"):
            read = read_items(items, named)
        previous = previous_of(body.previous_response_id)
        if previous is None and not read.messages and read.compaction is None:
            raise InvalidRequest(
                "There is nothing to compact: neither input nor a previous response.", ("body", "input")
            )
        chat = ChatRequest(
            messages=read.messages,
            options=TurnOptions(instructions=body.instructions or None),
            model_alias=body.model or rt.catalogue.default,
            request_sha256=request_sha256(raw),
            all_new=previous is not None and read.compaction is None,
            directions=read.directions,
            within="input",
            compaction=read.compaction,
            all_past=True,
        )
        request = ResponseRequest(chat, previous)
        return in_session(call, request, None, x_session_id, recognize=not x_session_new)

    request = await call.aside(read_body)
    made = await compact(rt, tenant_id, request, idempotency_key)
    compaction = made.compaction
    call.note(session_id=str(compaction.session_id))
    answer = compaction_json(f"resp_{rt.new_id().hex}", rt.now(), compaction, made.usage)
    return json_response(answer, headers={SESSION_HEADER: str(compaction.session_id)})
