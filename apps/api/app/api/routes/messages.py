"""`/v1/messages`: Anthropic's Messages, whole or as events, with any provider. Each request is a turn of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from app.anthropic.messages import (
    UNSIGNED,
    applied_edits,
    compaction_block,
    conversation_of,
    is_complete,
    read_list,
    reply_blocks,
    stop_reason,
    thinking_blocks,
    usage_json,
)
from app.api.direct_route import Call, DirectRoute, json_response
from app.api.openapi import SESSION_HEADER, session_answers
from app.api.problems import error_json, request_id_header
from app.api.routes import chat
from app.api.routes.turns import chosen_tools, provider_options, request_sha256
from app.api.schemas import messages as schemas
from app.api.streaming import answer_turn, encoded_event, events_response
from app.domain.errors import InvalidRequest, located
from app.domain.incoming import Compaction
from app.domain.stored import StoredSummary
from app.domain.types import JsonObject, SessionId, Summary, ToolDefinition
from app.services.openai import responses
from app.services.openai.chat import ChatRequest
from app.services.openai.open_session import Target, open_session, respond
from app.services.openai.responses import Compacted, compact_before, compaction_policy, shown_text
from app.services.turn.types import TurnEvent, TurnOptions, TurnOutcome

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


@router.post("", response_model=schemas.MessageOut, responses=_ANSWERS)
async def create_message(call: Call, body: schemas.MessagesIn, headers: chat.Headers) -> Response:
    """Answers a list of messages in Anthropic's form, within the token budget, as a turn of a stored session."""
    rt = call.rt
    metadata, thinking = body.metadata or _NO_METADATA, body.thinking
    edit = body.context_management and body.context_management.last(schemas.CompactEdit)
    named = chat.session_or_name(headers.session, metadata.session_id)

    def read() -> ChatRequest:
        request = _request(call, body, headers.idempotency_key)
        if named is not None or headers.is_new or request.compaction is not None:
            return request
        return chat.recognizable(call, request, conversation_of(metadata.user_id), headers.affinity)

    request = await call.aside(read)
    target = await open_session(rt, call.tenant_id, named, request)
    form = MessageForm(
        message_id=f"msg_{rt.new_id().hex}",
        model=body.model,
        headers={SESSION_HEADER: str(target.session.id), **request_id_header()},
        with_thinking=thinking is not None and thinking.type != "disabled" and thinking.display != "omitted",
        with_compaction=edit is not None,
        with_edits=body.context_management is not None,
    )
    pauses = bool(edit and edit.pause_after_compaction)
    answer = _answer(call, target, form, pauses=pauses, stream=bool(body.stream))
    return await chat.in_session(call, target, form.headers, answer)


async def _answer(call: Call, target: Target, form: MessageForm, *, pauses: bool, stream: bool) -> Response:
    if pauses:
        made, target = await compact_before(call.rt, target)
        if made is not None:
            if stream:
                return events_response(form.compacted_events(made), form.headers)
            return json_response(form.compacted(made), headers=form.headers)
    return await answer_turn(call, partial(respond, call.rt, target), form, stream=stream)


@router.post("/count_tokens", response_model=schemas.TokenCountOut)
async def count_message_tokens(call: Call, body: schemas.CountIn) -> Response:
    """Counts a prompt as a turn would. Calls no language model; behind a compaction, an embedding model and the
    provider's count may be called, as for a preview. Stores nothing but an embedding model's usage."""
    request = await call.aside(lambda: _request(call, body))
    tokens = await responses.count_input(call.rt, call.tenant_id, responses.ResponseRequest(request))
    return json_response({"input_tokens": tokens}, headers=request_id_header())


class _ThreadUnsupported(InvalidRequest):
    """Anthropic's clients recognize this refusal by its details: their tool runners retry without `thread`."""

    carries = ("details",)
    details: Final = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def _request(call: Call, body: schemas.PromptIn, idempotency_key: str | None = None) -> ChatRequest:
    chat.check_model(call.rt, body.model)
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
    compact = management and management.last(schemas.CompactEdit)
    clear = management and management.last(schemas.ClearToolUsesEdit)
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
    if isinstance(choice, schemas.ToolByName):
        return {"type": "function", "function": {"name": choice.name}}
    return choice and _CHOICES[choice.type]


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


_EMPTY: Mapping[str, JsonObject] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "compaction": {"content": None, "encrypted_content": None},
}


@dataclass(kw_only=True)
class MessageForm:
    """One answer. It shows the model's reasoning if `with_thinking`, a summary that was made for it if
    `with_compaction`, and what was cleared for it if `with_edits`.

    Blocks have this order: compaction, thinking, text, calls. A streamed thinking block ends when the text begins. Its
    signature is known only at the end, so in the stream a thinking block that text follows is `UNSIGNED`.
    """

    headers: Mapping[str, str]
    message_id: str
    model: str
    with_thinking: bool
    with_compaction: bool
    with_edits: bool
    _turn: JsonObject = field(default_factory=dict[str, Any], init=False)
    _index: int = field(default=0, init=False)
    _open: Literal["thinking", "text"] | None = field(default=None, init=False)
    _streamed: set[str] = field(default_factory=set[str], init=False)

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        reply = outcome.completion
        return self._message(
            outcome.turn.model_alias,
            [
                *self._compaction(outcome.summary, outcome.turn.session_id, outcome.turn.seq),
                *(thinking_blocks(reply.reasoning, reply.reasoning_blocks) if self.with_thinking else ()),
                *reply_blocks(outcome.text, reply.tool_calls),
            ],
            stop_reason(outcome.turn.finish_reason, reply),
            usage_json(reply.usage, _estimated(outcome.context)),
            outcome.context,
            reply.stop_sequence,
        )

    def event(self, event: TurnEvent) -> Iterable[bytes]:
        """The message's start when the context is assembled, then the model's reasoning and text."""
        match event.name:
            case "turn.created":
                self._turn = event.data["turn"]
            case "context.assembled":
                yield from self._begin(_estimated(event.data["context"]))
                for block in self._compaction(event.summary, self._turn["session_id"], self._turn["seq"]):
                    self._streamed.add(block["type"])
                    yield from self._block(block)
            case "output.delta":
                reasoning, text = event.data.get("reasoning"), event.data.get("text")
                if reasoning and self.with_thinking and "text" not in self._streamed:
                    yield from self._grow("thinking", reasoning)
                if text:
                    yield from self._grow("text", text)

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """The blocks that were not streamed, each whole, then the stop reason and the end of the message."""
        if not streamed:
            yield from self._begin(_estimated(outcome.context))
        message = self.whole(outcome)
        yield from self._close(_only_signature(message["content"]))
        sent = {*self._streamed, *(("thinking",) if "text" in self._streamed else ())}
        for block in message["content"]:
            if block["type"].removeprefix("redacted_") not in sent:
                yield from self._block(block)
        yield from self._end(message)

    def compacted(self, made: Compacted) -> JsonObject:
        """The `message` for a request that pauses after its compaction. No model was called to answer it."""
        assert made.summary is not None
        block = compaction_block(made.compaction, shown_text(made.summary))
        return self._message(self.model, [block], "compaction", usage_json(made.usage, 0), {})

    def compacted_events(self, made: Compacted) -> Iterable[bytes]:
        message = self.compacted(made)
        yield from self._begin(0)
        yield from self._block(message["content"][0])
        yield from self._end(message)

    async def failure(self, problem: JsonObject) -> Iterable[bytes]:
        """An error event, and no end of the message: the answer before it is incomplete."""
        return (encoded_event("error", error_json(problem)),)

    def _compaction(
        self, summary: Summary | StoredSummary | None, session_id: SessionId, turn_seq: int
    ) -> list[JsonObject]:
        if summary is None or not self.with_compaction:
            return []
        return [compaction_block(Compaction(session_id, turn_seq, summary.id), shown_text(summary))]

    def _message(
        self,
        model: str,
        content: list[JsonObject],
        stopped: str | None,
        usage: JsonObject,
        context: JsonObject | None = None,
        stop_sequence: str | None = None,
    ) -> JsonObject:
        """The `message` object. It has the applied edits if the client asked for any; `context` is None until known."""
        edits = {"context_management": {"applied_edits": applied_edits(context or {})}}
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": stopped,
            "stop_sequence": stop_sequence,
            "usage": usage,
            **(edits if self.with_edits and context is not None else {}),
        }

    def _begin(self, estimated_tokens: int) -> Iterable[bytes]:
        yield _event("message_start", message=self._message(self.model, [], None, usage_json(None, estimated_tokens)))
        yield _event("ping")

    def _end(self, message: JsonObject) -> Iterable[bytes]:
        stopped = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        edits = {name: message[name] for name in ("context_management",) if name in message}
        yield _event("message_delta", delta=stopped, usage=message["usage"], **edits)
        yield _event("message_stop")

    def _grow(self, kind: Literal["thinking", "text"], text: str) -> Iterable[bytes]:
        if self._open != kind:
            yield from self._close()
            yield self._start(kind, {"type": kind})
            self._open = kind
            self._streamed.add(kind)
        if text:
            yield self._delta({"type": f"{kind}_delta", kind: text})

    def _close(self, signature: str = UNSIGNED) -> Iterable[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": signature})
        self._open = None
        yield self._stop()

    def _block(self, block: JsonObject) -> Iterable[bytes]:
        kind = block["type"]
        if kind in ("text", "thinking"):
            yield from self._grow(kind, block[kind])
            yield from self._close(block.get("signature", UNSIGNED))
            return
        yield self._start(kind, block)
        if kind == "tool_use":
            yield self._delta({"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()})
        elif kind == "compaction":
            yield self._delta(block | {"type": "compaction_delta"})
        yield self._stop()

    def _start(self, kind: str, block: JsonObject) -> bytes:
        return _event("content_block_start", index=self._index, content_block={**block, **_EMPTY.get(kind, {})})

    def _delta(self, delta: JsonObject) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        self._index += 1
        return _event("content_block_stop", index=self._index - 1)


def _event(name: str, **fields: object) -> bytes:
    return encoded_event(name, {"type": name, **fields})


def _estimated(context: JsonObject) -> int:
    """The estimated tokens of the prompt; 0 if a stored turn has no audit."""
    return context.get("estimated_wire_tokens", 0)


def _only_signature(content: list[JsonObject]) -> str:
    """The signature of the only thinking block: of several, none signs the whole of what was streamed."""
    signed = [block.get("signature", UNSIGNED) for block in content if block["type"].endswith("thinking")]
    return signed[0] if len(signed) == 1 else UNSIGNED
