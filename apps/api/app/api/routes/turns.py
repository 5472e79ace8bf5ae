"""`/v1/sessions/{session_id}/turns`, `/messages`"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api import problems
from app.api.direct_route import UUID_TEXT, Call, DirectRoute, SessionInPath
from app.api.openapi import WRITE, FromSeq, IdempotencyKey, OldestFirst, event_stream, refusals
from app.api.schemas import turns as schemas
from app.api.schemas.values import in_words
from app.api.streaming import answer_turn, encoded_event
from app.domain.content import canonical_bytes, tool_call_json, tool_calls_from_json, tool_name
from app.domain.errors import DatabaseUnavailable, InvalidRequest, LimitExceeded, NotFound, PlimsollError
from app.domain.frozen import values_of
from app.domain.incoming import IncomingMessage
from app.domain.stored import MessageRecord
from app.domain.types import (
    CHAT_OPTIONS,
    JsonObject,
    RecordedReply,
    Session,
    ToolDefinition,
    TurnId,
    TurnRecord,
    TurnStatus,
)
from app.services.paging import Page
from app.services.policies import given_policy
from app.services.sessions import check_alias, has_session
from app.services.turn import take
from app.services.turn.types import OutputsRequest, TurnEvent, TurnOptions, TurnOutcome, TurnRequest
from app.services.views import turns
from app.services.views.turns import SentPrompt

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["turns"], route_class=DirectRoute)

MessageIds = Annotated[
    str | None,
    Query(
        pattern=in_words(
            f"^{UUID_TEXT.pattern}(?:,{UUID_TEXT.pattern}){{0,99}}$", "Must be at most 100 UUIDs, separated by commas"
        ),
        description="Only these ids: at most 100, separated by commas, all on one page.",
    ),
]
Round = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Tool round; defaults to the last one.")]
_answer = partial(answer_turn, status=201, held_s=0)
_AS_IT_WAS = schemas.RegenerateIn()
_EVENTS = ("turn.created", "context.assembled", "output.delta", "turn.completed", "turn.awaiting_tools", "turn.failed")
# An option is not sent at its default, because not every provider knows the option.
_DEFAULTS: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "stop": [],
}
_STREAMED = event_stream(
    "With `stream: true`: server-sent events `turn.created`, `context.assembled`, `output.delta` …, then one of "
    "`turn.completed`, `turn.awaiting_tools`, `turn.failed`.",
    {"type": "string", "enum": list(_EVENTS)},
)
_TURN_ANSWERS = _STREAMED | refusals(*WRITE, 502, 504)


@router.post("/turns", status_code=201, response_model=schemas.TurnAnswer, responses=_TURN_ANSWERS)
async def post_turn(
    call: Call, session: SessionInPath, body: schemas.TurnIn, idempotency_key: IdempotencyKey = None
) -> Response:
    """Sends a message within the token budget, and returns the turn and how its context was built."""
    request = await call.aside(partial(turn_request, call, body))
    work = partial(take.take_turn, call.rt, session, request, idempotency_key)
    return await _answer(call, work, TurnForm(call), stream=body.stream)


@router.post(
    "/turns/{turn_id}/tool-outputs", status_code=201, response_model=schemas.TurnAnswer, responses=_TURN_ANSWERS
)
async def post_tool_outputs(
    call: Call,
    session: SessionInPath,
    turn_id: TurnId,
    body: schemas.ToolOutputsIn,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers all open tool calls of a turn, and runs its next round."""
    request = OutputsRequest(
        outputs=tuple(
            IncomingMessage(place, "tool", output["content"], tool_call_id=output["tool_call_id"])
            for place, output in enumerate(call.raw_body["outputs"])
        ),
        is_repeatable=idempotency_key is not None,
        recorded_reply=_recorded(call.raw_body),
    )
    work = partial(take.continue_turn, call.rt, session, turn_id, request)
    return await _answer(call, work, TurnForm(call), stream=body.stream)


@router.post("/turns/{turn_id}/cancel", response_model=schemas.TurnOut)
async def cancel_turn(call: Call, session: SessionInPath, turn_id: TurnId) -> JsonObject:
    """Ends a turn that runs or waits for tools. Its message is kept; later prompts have no unanswered tool calls."""
    return _turn_json(await take.cancel_turn(call.rt, session, turn_id))


@router.post(
    "/turns/{turn_id}/regenerate", status_code=201, response_model=schemas.RegeneratedAnswer, responses=_TURN_ANSWERS
)
async def regenerate_turn(
    call: Call, session: SessionInPath, turn_id: TurnId, body: schemas.RegenerateIn = _AS_IT_WAS
) -> Response:
    """Runs the session's last turn again in a fork that ends before it, with the fields of the body changed.

    An error after the fork was created has the `session_id` of the fork, in which the turn is stored.
    """
    request = await call.aside(partial(turn_request, call, body))
    prepared = await take.prepare_regeneration(call.rt, session, turn_id, request, keeps_tools=body.tools is None)
    made, _ = prepared
    call.note(forked_session_id=str(made.id))
    work = partial(take.regenerate_turn, call.rt, call.tenant_id, prepared)
    try:
        return await _answer(call, work, TurnForm(call, made), stream=body.stream)
    except PlimsollError as error:
        is_erased = isinstance(error, LimitExceeded) and not await has_session(call.rt, call.session_ref(made.id))
        if is_erased or isinstance(error, InvalidRequest):
            raise
        problem = problems.document_of(error) | {"session_id": str(made.id)}
        return problems.answer(call.scope, problem, problems.headers_of(error))


@router.get("/turns", response_model=schemas.TurnPage)
async def list_turns(call: Call, session: SessionInPath, wanted: OldestFirst, from_seq: FromSeq = 1) -> JsonObject:
    """The session's turns, from the first or from a given number on."""
    page = await turns.list_turns(call.rt, session, wanted, from_seq)
    return {"items": [_turn_json(turn) for turn in page.items], "next_cursor": page.next_cursor}


@router.get("/turns/{turn_id}", response_model=schemas.TurnOut)
async def get_turn(call: Call, session: SessionInPath, turn_id: TurnId) -> JsonObject:
    """One turn."""
    return _turn_json(await turns.get_turn(call.rt, session, turn_id))


@router.get("/turns/{turn_id}/audit", response_model=schemas.AuditOut)
async def get_audit(
    call: Call,
    session: SessionInPath,
    turn_id: TurnId,
    round: Round = None,  # noqa: A002 - the parameter's public name
    expand: Annotated[
        Literal["actions"] | None, Query(description="`actions` lists each range of the trim log message by message.")
    ] = None,
) -> JsonObject:
    """How the turn's prompt was built: why each part was included or left out."""
    read = turns.get_audit if expand is None else turns.get_expanded_audit
    return values_of(await read(call.rt, session, turn_id, round), "prompt_refs")


@router.get("/turns/{turn_id}/prompt", response_model=schemas.PromptOut)
async def get_prompt(call: Call, session: SessionInPath, turn_id: TurnId, round: Round = None) -> SentPrompt:  # noqa: A002 - the parameter's public name
    """The exact messages and tools that were sent, rebuilt from stored rows."""
    return await turns.get_prompt(call.rt, session, turn_id, round)


@router.get("/messages", response_model=schemas.MessagePage)
async def list_messages(
    call: Call, session: SessionInPath, wanted: OldestFirst, ids: MessageIds = None
) -> Page[MessageRecord]:
    """The session's messages as received; compression of prompts does not change them. Those of `ids` in time order."""
    if ids is not None:
        return await turns.get_messages(call.rt, session, [UUID(each) for each in ids.split(",")])
    return await turns.list_messages(call.rt, session, wanted)


def request_sha256(body: JsonObject) -> str:
    """The SHA-256 of the body as key-sorted JSON, without the fields about streaming. Bodies that request the same turn
    have the same hash (contract.md, decision 14)."""
    compared = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return hashlib.sha256(canonical_bytes(compared)).hexdigest()


def provider_options(options: Mapping[str, Any]) -> JsonObject:
    """The options that are sent to the provider, by their names in chat completions, without those at their default."""
    given = {name: options[name] for name in CHAT_OPTIONS & options.keys() if options[name] is not None}
    return {name: value for name, value in given.items() if _DEFAULTS.get(name) != value}


def turn_request(call: Call, body: schemas.TurnIn | schemas.RegenerateIn) -> TurnRequest:
    """The turn that a body requests. Raises `InvalidRequest`."""
    if body.model_alias is not None:
        check_alias(call.rt, body.model_alias)
    raw: JsonObject = call.raw_body
    has_own = isinstance(body, schemas.RegenerateIn) and body.tools is None
    tools, tool_choice = chosen_tools(raw.get("tools") or (), raw.get("tool_choice"), has_own=has_own)
    policy: JsonObject | None = raw.get("policy")
    return TurnRequest(
        content=raw.get("content"),
        request_sha256=request_sha256(raw),
        options=TurnOptions(
            tools=tools,
            tool_choice=tool_choice,
            max_output_tokens=body.max_output_tokens,
            instructions=raw.get("instructions"),
            provider_options=provider_options(raw["options"]) if body.options else {},
            policy=given_policy(call.rt, policy) if policy else policy,
            recorded_reply=_recorded(raw),
        ),
        model_alias=body.model_alias,
        name=raw.get("name"),
        said_at=datetime.fromisoformat(raw["said_at"]) if raw.get("said_at") else None,
    )


def _turn_json(turn: TurnRecord) -> JsonObject:
    return values_of(turn) | {
        "tool_calls": [tool_call_json(tool_call) for tool_call in turn.tool_calls],
        "error": turn.error and problems.complete(turn.error),
        "cost_usd": None if turn.cost_usd is None else float(turn.cost_usd),
    }


class TurnForm:
    """The service's own answer and events (contract.md, section 5). The last event has the turn as it is read later.

    `made` is the session that was created for the turn; None if the session existed before.
    """

    def __init__(self, call: Call, made: Session | None = None) -> None:
        self.headers: Mapping[str, str] = {} if made is None else {"Location": f"/v1/sessions/{made.id}"}
        self._call, self._made = call, made
        self._created: JsonObject | None = None

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        made = {} if self._made is None else {"session": self._made}
        return {**made, "turn": _turn_json(outcome.turn), "context": outcome.context}

    def event(self, event: TurnEvent) -> Iterable[bytes]:
        if event.name == "turn.created":
            self._created = event.data["turn"]
        yield encoded_event(event.name, event.data)

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """The last event. If nothing was streamed, the earlier events precede it, with the stored text in one delta."""
        turn = _turn_json(outcome.turn)
        if not streamed:
            created = {name: turn[name] for name in ("id", "session_id", "seq", "status")}
            yield encoded_event("turn.created", {"turn": created})
            yield encoded_event("context.assembled", {"context": outcome.context})
            if outcome.turn.assistant_output:
                yield encoded_event("output.delta", {"text": outcome.turn.assistant_output})
        last = "turn.awaiting_tools" if outcome.turn.status is TurnStatus.AWAITING_TOOLS else "turn.completed"
        yield encoded_event(last, {"turn": turn, "context": outcome.context})

    async def failure(self, problem: JsonObject) -> Iterable[bytes]:
        """The last event of a turn that failed, with the turn as it was stored, if that can be read."""
        turn = None
        if self._created is not None:
            session = self._call.session_ref(self._created["session_id"])
            with suppress(NotFound, DatabaseUnavailable):  # its session was erased, or the database is down
                turn = await turns.get_turn(self._call.rt, session, self._created["id"])
        return (encoded_event("turn.failed", {"turn": turn and _turn_json(turn), "error": problem}),)


def _recorded(body: JsonObject) -> RecordedReply | None:
    reply: JsonObject | None = body.get("recorded_reply")
    if reply is None:
        return None
    return RecordedReply(reply.get("content"), tool_calls_from_json(reply.get("tool_calls")))


def chosen_tools(
    tools: Sequence[ToolDefinition], choice: str | JsonObject | None, *, has_own: bool = False
) -> tuple[tuple[ToolDefinition, ...], str | JsonObject | None]:
    """The tools that a turn offers and its tool choice, as they are stored. The choice may be in the form of chat
    completions or of responses; one of `allowed_tools` leaves the others out. Raises `InvalidRequest` if two tools have
    one name, or if the choice is of a tool that `tools` does not have; with `has_own` the turn may have some."""
    seen = set[str | None]()
    for at, name in enumerate(map(tool_name, tools)):
        if name is not None and name in seen:
            raise InvalidRequest("Another tool has this name.", ("body", "tools", str(at)))
        seen.add(name)
    if choice == "required" and not (tools or has_own):
        raise InvalidRequest("tool_choice requires a call, and there are no tools.", ("body", "tool_choice"))
    if choice is None or isinstance(choice, str):
        return tuple(tools), choice
    chosen, is_list = _of_choice(choice), choice["type"] == "allowed_tools"
    names = {_of_choice(each)["name"] for each in (chosen["tools"] if is_list else [choice])}
    if not names <= seen:
        raise InvalidRequest("tool_choice names a tool that tools does not have.", ("body", "tool_choice"))
    if is_list:
        return tuple(tool for tool in tools if tool_name(tool) in names), chosen["mode"]
    return tuple(tools), {"type": "function", "function": {"name": chosen["name"]}}


def _of_choice(choice: JsonObject) -> JsonObject:
    """What a choice, or a tool in one, says of itself. Responses have it beside the type, chat completions below it."""
    return choice if "name" in choice or "tools" in choice else choice[choice["type"]]
