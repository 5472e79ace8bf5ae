"""`/v1/responses`: OpenAI's Responses; each chain of responses is a session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api import problems
from app.api.direct_route import Call, DirectRoute, json_response
from app.api.openapi import IdempotencyKey, event_stream, openai_refusals
from app.api.response_form import ResponseForm
from app.api.response_json import list_json, stored_json
from app.api.response_request import input_of, response_request
from app.api.routes.chat import SESSION_HEADER, RetryCount
from app.api.schemas.items import DeletedOut, ItemListOut
from app.api.schemas.responses import ResponseIn, ResponseOut
from app.api.streaming import Work, events_response, stream_turn
from app.domain.errors import InvalidRequest, NotFound, PlimsollError
from app.domain.openai_ids import ResponseRef, read_response_id
from app.domain.types import JsonObject
from app.openai.items import references_of
from app.services.openai import responses
from app.services.openai.conversations import referenced
from app.services.openai.responses import ResponseTarget, resolve_target, respond
from app.services.turn.types import Listener, TurnEvent, TurnOutcome

Order = Annotated[Literal["asc", "desc"], Query(description="By time; the newest first unless `asc`.")]
ItemLimit = Annotated[int, Query(ge=1, le=100, description="Most items of one page.")]
After = Annotated[str | None, Query(max_length=200, description="The last item of the page before.")]
_READ = (400, 401, 404, 503)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The response, or with `stream: true` its events; `X-Session-Id` names the session.",
        "content": event_stream({"type": "string"}),
        "headers": {SESSION_HEADER: {"schema": {"type": "string", "format": "uuid"}}},
    }
}

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=DirectRoute)


@router.post("", response_model=ResponseOut, responses=_ANSWERS | openai_refusals())
async def create_response(
    call: Call,
    body: ResponseIn,
    idempotency_key: IdempotencyKey = None,
    x_stainless_retry_count: RetryCount = None,
) -> Response:
    """Creates a response within the token budget: alone, in a conversation, or after a previous response."""
    rt, tenant_id, raw = call.rt, call.tenant_id, call.raw_body
    named = await referenced(rt, tenant_id, references_of(input_of(raw)))
    request = response_request(rt, raw, body, named, is_retry=x_stainless_retry_count not in (None, "0"))
    target = await resolve_target(rt, tenant_id, request, idempotency_key)
    note = request.chat.options.note
    assert note is not None
    call.note(session_id=str(target.session_id))
    headers = {SESSION_HEADER: str(target.session_id)} if target.is_kept else {}
    form = ResponseForm(target.session_id, note.form, note.created_at, request.chat.model_alias, headers)
    try:
        return await _answer(call, body, target, form, idempotency_key)
    except PlimsollError as error:
        return problems.answer_to(call.scope["path"], error, headers)


async def _answer(
    call: Call, body: ResponseIn, target: ResponseTarget, form: ResponseForm, idempotency_key: str | None
) -> Response:
    if target.stored is not None:
        if body.stream:
            return events_response(form.replay(target.stored), form.headers)
        return _json(stored_json(target.stored), form)

    async def work(listen: Listener | None) -> TurnOutcome:
        outcome = await respond(call.rt, call.tenant_id, target, idempotency_key, listen)
        if outcome.completion is None:
            sha256 = target.request.request_sha256
            form.stored = await responses.response_of_outcome(call.rt, call.tenant_id, outcome, sha256)
        return outcome

    if body.stream:
        return await stream_turn(call, target.session_id, work, form)
    if body.background:
        return _json(await _begin(call, work, form), form)
    outcome = await work(None)
    call.note(turn_id=str(outcome.turn.id))
    return _json(form.whole(outcome), form)


async def _begin(call: Call, work: Work, form: ResponseForm) -> JsonObject:
    """Starts the work, and returns the response once it runs or has ended."""
    begun: asyncio.Future[TurnEvent] = asyncio.get_running_loop().create_future()

    def listen(event: TurnEvent) -> None:
        if not begun.done():
            begun.set_result(event)

    task = asyncio.ensure_future(work(listen))
    await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        return form.whole(task.result())
    call.service.run_aside(_quietly(task))
    return form.begun(begun.result())


async def _quietly(task: asyncio.Future[TurnOutcome]) -> None:
    """Its record says how it ended."""
    with suppress(PlimsollError):
        await task


@router.get("/{response_id}", response_model=ResponseOut, responses=openai_refusals(*_READ))
async def get_response(call: Call, response_id: str, stream: Annotated[str | None, Query()] = None) -> JsonObject:
    """A stored response; while it runs it is `in_progress`."""
    if stream == "true":
        raise InvalidRequest("A stored response is not streamed; fetch it until it has ended.", ("query", "stream"))
    return stored_json(await responses.stored_response(call.rt, call.tenant_id, _ref(call, response_id)))


@router.delete("/{response_id}", response_model=DeletedOut, responses=openai_refusals(*_READ, 409))
async def delete_response(call: Call, response_id: str) -> JsonObject:
    """Deletes a response, and its session if that has nothing else."""
    await responses.delete_response(call.rt, call.tenant_id, _ref(call, response_id))
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel", response_model=ResponseOut, responses=openai_refusals(*_READ, 408, 413))
async def cancel_response(call: Call, response_id: str) -> JsonObject:
    """Ends a response that runs; one that has ended is answered as it is."""
    return stored_json(await responses.cancel_response(call.rt, call.tenant_id, _ref(call, response_id)))


@router.get("/{response_id}/input_items", response_model=ItemListOut, responses=openai_refusals(*_READ))
async def list_input_items(
    call: Call, response_id: str, limit: ItemLimit = 20, order: Order = "desc", after: After = None
) -> JsonObject:
    """The input of a response, without earlier items."""
    page = await responses.input_items(
        call.rt,
        call.tenant_id,
        _ref(call, response_id),
        after=after,
        limit=limit,
        newest_first=order == "desc",
    )
    return list_json(page)


def _ref(call: Call, response_id: str) -> ResponseRef:
    ref = read_response_id(response_id)
    if ref is None:
        raise NotFound("response")
    call.note(session_id=str(ref.session_id))
    return ref


def _json(answer: JsonObject, form: ResponseForm) -> Response:
    response = json_response(answer)
    response.headers.update(form.headers)
    return response
