"""`/v1/messages`: Anthropic's Messages, whole or as events, with any provider. Each request is a turn of a session."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from app.anthropic.messages import conversation_of, is_complete, read_list
from app.api.direct_route import Call, DirectRoute, json_response
from app.api.message_json import MessageForm
from app.api.openapi import SESSION_HEADER, IdempotencyKey, messages_refusals, session_answers
from app.api.problems import request_id_header
from app.api.routes.chat import (
    NewSessionHeader,
    SessionHeader,
    answer_list,
    check_model,
    named_session,
    provider_options,
    recognizable,
)
from app.api.routes.turns import chosen_tools, request_sha256
from app.api.schemas import messages as schemas
from app.api.streaming import events_response
from app.domain.errors import InvalidRequest, located
from app.domain.types import JsonObject, ToolDefinition
from app.services.openai.chat import ChatRequest, count_behind
from app.services.openai.open_session import open_session
from app.services.openai.responses import compact_before, compaction_policy
from app.services.turn.types import TurnOptions
from app.services.views.preview import count_tokens

_EVENTS = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
)
_ANSWERS = session_answers("The message, or with `stream: true` its events", {"type": "string", "enum": list(_EVENTS)})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_COMPACT_AT = 150_000
"""Input tokens at which a request compacts if it names no number; Anthropic's default."""
_NO_METADATA = schemas.MessagesMetadata()

router = APIRouter(prefix="/v1/messages", tags=["messages"], route_class=DirectRoute)


@router.post(
    "", response_model=schemas.MessageOut, responses=_ANSWERS | messages_refusals(), operation_id="create_message"
)
async def create_message(
    call: Call,
    body: schemas.MessagesIn,
    x_session_id: SessionHeader = None,
    x_session_new: NewSessionHeader = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers a list of messages in Anthropic's form, within the token budget, as a turn of a stored session."""
    rt = call.rt
    metadata, thinking = body.metadata or _NO_METADATA, body.thinking
    edit = body.context_management and body.context_management.compact_edit()
    named = named_session(x_session_id, metadata.session_id)

    def read() -> ChatRequest:
        request = _request(call, body, idempotency_key)
        if named is not None or x_session_new or request.compaction is not None:
            return request
        return recognizable(call, request, conversation_of(metadata.user_id))

    request = await call.aside(read)
    target = await open_session(rt, call.tenant_id, named, request)
    session_id = str(target.session.id)
    call.note(session_id=session_id)
    form = MessageForm(
        message_id=f"msg_{rt.new_id().hex}",
        model=body.model,
        headers={SESSION_HEADER: session_id, **request_id_header()},
        with_thinking=thinking is not None and thinking.type != "disabled" and thinking.display != "omitted",
        with_compaction=edit is not None,
        with_edits=body.context_management is not None,
    )
    if edit is not None and edit.pause_after_compaction:
        made, target = await compact_before(rt, target)
        if made is not None:
            if body.stream:
                return events_response(form.compacted_events(made), form.headers)
            return json_response(form.compacted(made), headers=form.headers)
    return await answer_list(call, target, form, stream=bool(body.stream))


@router.post(
    "/count_tokens",
    response_model=schemas.TokenCountOut,
    responses=messages_refusals(),
    operation_id="count_message_tokens",
)
async def count_message_tokens(call: Call, body: schemas.CountIn) -> Response:
    """Counts a prompt as a turn would. Calls no language model; behind a compaction, an embedding model and the
    provider's count may be called, as for a preview. Stores nothing but an embedding model's usage."""
    request = await call.aside(lambda: _request(call, body))
    if request.compaction is not None:
        session = call.session_ref(request.compaction.session_id)
        tokens = await count_behind(call.rt, session, request, "compaction")
    else:
        tokens = await count_tokens(call.rt, call.tenant_id, body.model, request.messages, request.options)
    return json_response({"input_tokens": tokens}, headers=request_id_header())


class _ThreadUnsupported(InvalidRequest):
    """Anthropic's clients recognize this refusal by its details: their tool runners retry without `thread`."""

    carries = ("details",)
    details: Final = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def _request(call: Call, body: schemas.PromptIn, idempotency_key: str | None = None) -> ChatRequest:
    check_model(call.rt, body.model)
    if body.thread is not None:
        raise _ThreadUnsupported("Threads are not supported; X-Session-Id names a conversation.", ("body", "thread"))
    raw: JsonObject = call.raw_body
    with located("body", "messages"):
        listed = read_list(raw.get("system"), raw["messages"])
    tools, tool_choice = chosen_tools(list(map(_tool, raw.get("tools") or ())), _tool_choice(body))
    return ChatRequest(
        messages=listed.messages,
        options=TurnOptions(
            tools=tools,
            tool_choice=tool_choice,
            max_output_tokens=raw.get("max_tokens"),
            instructions=listed.instructions,
            provider_options=provider_options(_chat_options(raw, body)),
            policy=_policy(body.context_management),
        ),
        model_alias=body.model,
        request_sha256=request_sha256(raw),
        idempotency_key=idempotency_key,
        is_retry=call.is_retry,
        compaction=listed.compaction,
    )


def _policy(management: schemas.ContextManagement | None) -> JsonObject | None:
    """The policy of a request with these edits; None if they change nothing."""
    compact = management and management.compact_edit()
    clear = management and management.clear_edit()
    policy: JsonObject = {}
    if compact:
        policy |= compaction_policy(compact.trigger.value if compact.trigger else _COMPACT_AT, compact.instructions)
    if clear:
        policy["clear_tool_results"] = _clearing(clear)
    return policy or None


def _clearing(edit: schemas.ClearToolUsesEdit) -> JsonObject:
    given = {
        "trigger_tokens": edit.trigger.value if isinstance(edit.trigger, schemas.SomeTokens) else None,
        "trigger_uses": edit.trigger.value if isinstance(edit.trigger, schemas.SomeUses) else None,
        "keep": edit.keep and edit.keep.value,
        "at_least_tokens": edit.clear_at_least and edit.clear_at_least.value,
        "exclude_tools": edit.exclude_tools,
        "clear_inputs": edit.clear_tool_inputs,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tool(tool: JsonObject) -> ToolDefinition:
    """The tool in the neutral form."""
    described = {"description": tool["description"]} if tool.get("description") else {}
    return {"type": "function", "function": {"name": tool["name"], **described, "parameters": tool["input_schema"]}}


def _tool_choice(body: schemas.PromptIn) -> str | JsonObject | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if not isinstance(choice, schemas.ToolByName):
        return _CHOICES[choice.type]
    return {"type": "function", "function": {"name": choice.name}}


def _chat_options(raw: JsonObject, body: schemas.PromptIn) -> JsonObject:
    """The options of a body, by their names in chat completions."""
    choice = body.tool_choice
    form = (body.output_config and body.output_config.format) or body.output_format
    return {
        "temperature": raw.get("temperature"),
        "top_p": raw.get("top_p"),
        "top_k": raw.get("top_k"),
        "stop": raw.get("stop_sequences"),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "response_format": form
        and {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form.schema_, "strict": is_complete(form.schema_)},
        },
    }
