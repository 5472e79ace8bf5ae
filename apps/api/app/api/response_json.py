"""The JSON of responses, conversations and lists of items in OpenAI's form, and a response as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from app.api import problems
from app.api.streaming import encoded_event
from app.domain.frozen import frozen, replace
from app.domain.incoming import Compaction
from app.domain.responses import ResponseRef, StoredResponse, conversation_id, response_id
from app.domain.types import Completion, FinishReason, JsonObject, Session, SessionId, SummaryId, TurnStatus, Usage
from app.openai.client_tools import tools_by_function
from app.openai.items import compaction_item, reasoning_item, reply_items, text_item
from app.services.openai.responses import is_running
from app.services.turn.types import TurnEvent, TurnOutcome

Status: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
_INCOMPLETE: Mapping[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ERROR_CODES = frozenset({"rate_limit_exceeded", "insufficient_quota", "context_length_exceeded"})
"""The codes that a response's error may have besides `invalid_prompt` and `server_error`."""


@frozen
class ResponseOutcome:
    """The status of a response, and its output or error."""

    status: Status
    model: str
    output: tuple[JsonObject, ...] = ()
    usage: Usage | None = None
    incomplete: str | None = None
    error: JsonObject | None = None


def response_json(form: JsonObject, ref: ResponseRef, created_at: datetime, reply: ResponseOutcome) -> JsonObject:
    """The `response` object. `form` has the fields of the request that a response repeats."""
    return {
        "id": response_id(ref),
        "object": "response",
        "created_at": int(created_at.timestamp()),
        "status": reply.status,
        "error": reply.error,
        "incomplete_details": {"reason": reply.incomplete} if reply.incomplete else None,
        **form,
        "model": reply.model,
        "output": list(reply.output),
        "usage": response_usage(reply.usage),
    }


def stored_json(found: StoredResponse) -> JsonObject:
    return response_json(found.form, found.ref, found.created_at, reply_of_stored(found))


def reply_of_stored(found: StoredResponse) -> ResponseOutcome:
    message = found.reply
    if message is not None:
        completion = Completion(
            text=message.content if isinstance(message.content, str) else None,
            finish_reason=(found.finish_reason if found.is_last_of_turn else None) or "stop",
            usage=found.usage,
            tool_calls=message.tool_calls,
            reasoning=message.reasoning,
            reasoning_blocks=message.reasoning_blocks,
        )
        return _reply(found.ref, found.turn_seq, found.summary_id, found.model_alias, completion, found.form)
    if is_running(found):
        return ResponseOutcome("in_progress", found.model_alias)
    stored = found.error if found.is_last_of_turn else None
    streamed: str | None = stored.get("partial_output") if stored else None
    output = (text_item(found.ref, streamed, "incomplete", is_refusal=False),) if streamed else ()
    if found.turn_status is TurnStatus.CANCELLED and found.is_last_of_turn:
        return ResponseOutcome("cancelled", found.model_alias, output)
    error = response_error(stored and problems.complete(stored))
    return ResponseOutcome("failed", found.model_alias, output, error=error)


def _compaction(form: JsonObject, ref: ResponseRef, turn_seq: int, summary_id: SummaryId | None) -> list[JsonObject]:
    """The item of the summary that was made for a response, if the request asked to see it."""
    is_shown = summary_id is not None and "context_management" in form
    return [compaction_item(Compaction(ref.session_id, turn_seq, summary_id))] if is_shown else []


def _reply(
    ref: ResponseRef, turn_seq: int, summary_id: SummaryId | None, model: str, completion: Completion, form: JsonObject
) -> ResponseOutcome:
    """The outcome of a model's reply. A reply that was cut off is incomplete, and so is its last item."""
    reason = _INCOMPLETE.get(completion.finish_reason)
    status: Literal["completed", "incomplete"] = "incomplete" if reason else "completed"
    items = reply_items(ref, completion, tools_by_function(form["tools"]), status, is_sealed="include" in form)
    output = (*_compaction(form, ref, turn_seq, summary_id), *items)
    return ResponseOutcome(status, model, output, completion.usage, reason)


def compaction_json(compaction_id: str, created_at: datetime, compaction: Compaction, usage: Usage) -> JsonObject:
    """The `response.compaction` object, which answers a request to compact."""
    return {
        "id": compaction_id,
        "object": "response.compaction",
        "created_at": int(created_at.timestamp()),
        "output": [compaction_item(compaction)],
        "usage": response_usage(usage),
    }


def response_error(problem: JsonObject | None) -> JsonObject:
    """The `error` of a response that failed, with one of OpenAI's codes."""
    if problem is None:
        return {"code": "server_error", "message": "The call did not end; it was tried again."}
    error = problems.error_of("/v1/responses", problem)
    other = "invalid_prompt" if error["type"] == "invalid_request_error" else "server_error"
    return {"code": error["code"] if error["code"] in _ERROR_CODES else other, "message": error["message"]}


def response_usage(usage: Usage | None) -> JsonObject | None:
    """The provider's token counts. `reasoning_tokens` is 0 if it does not report them."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": usage.cache_write_prompt_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_completion_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def conversation_json(session: Session) -> JsonObject:
    return {
        "id": conversation_id(session.id),
        "object": "conversation",
        "created_at": int(session.created_at.timestamp()),
        "metadata": session.metadata,
    }


def list_json(items: list[JsonObject], has_more: bool) -> JsonObject:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


SEALED = "reasoning.encrypted_content"
"""What a request includes, and its form repeats, if it wants reasoning in a form that it can send back."""
_STREAMED = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call's item that is streamed as a delta, by the item's type."""
_TEXTS = {
    "message": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning": ("reasoning_text", "text"),
}
"""The name of an open item's events, and their field with the whole text."""
_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


@dataclass
class ResponseForm:
    """One answer or stream, with its own sequence numbers. `stored` is the stored response to repeat, or None.

    Items have this order: compaction, reasoning, text, calls. Each begins with its first chunk. Reasoning ends when the
    text begins; reasoning that arrives later is only in the stored item.
    """

    session_id: SessionId
    form: JsonObject
    created_at: datetime
    model: str
    headers: Mapping[str, str]
    stored: StoredResponse | None = None
    _reply_seq: int | None = field(default=None, init=False)
    _turn_seq: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)
    _done: list[JsonObject] = field(default_factory=list[JsonObject], init=False)
    _open: Literal["reasoning", "message", "refusal"] | None = field(default=None, init=False)
    _texts: list[str] = field(default_factory=list[str], init=False)
    _sealed: JsonObject = field(default_factory=dict[str, Any], init=False)

    @property
    def _ref(self) -> ResponseRef:
        assert self._reply_seq is not None
        return ResponseRef(self.session_id, self._reply_seq)

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        if self.stored is not None:
            return stored_json(self.stored)
        self._reply_seq = outcome.reply_seq
        return self._response(self._reply(outcome))

    def begun(self, event: TurnEvent) -> JsonObject:
        """The `response` object of a response that is running. `event` is the first event of its turn."""
        self._reply_seq = event.reply_seq
        return self._response(ResponseOutcome("in_progress", self.model))

    def event(self, event: TurnEvent) -> Iterable[bytes]:
        """The first events when the context is assembled, then the model's reasoning and text."""
        match event.name:
            case "turn.created":
                self._reply_seq = event.reply_seq
                self._turn_seq = event.data["turn"]["seq"]
            case "context.assembled":
                yield from self._begin()
                made = event.summary and event.summary.id
                for item in _compaction(self.form, self._ref, self._turn_seq, made):
                    yield from self._compaction(item)
            case "output.delta":
                if reasoning := event.data.get("reasoning"):
                    yield from self._reasoning(reasoning)
                if text := event.data.get("text"):
                    yield from self._message(text, is_refusal=event.data.get("refusal") == text)

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """Ends the open item, then sends each call and the response whole; of a repeated response, all events."""
        if self.stored is not None:
            yield from self._replay(self.stored)
        elif streamed and self._reply_seq is not None:
            yield from self._end(self._reply(outcome))

    def _replay(self, stored: StoredResponse) -> Iterable[bytes]:
        """The events of a stored response, each text in one delta."""
        self.session_id, self._reply_seq = stored.ref.session_id, stored.ref.reply_seq
        self.form, self.created_at = stored.form, stored.created_at
        reply = reply_of_stored(stored)
        self.model = reply.model
        yield from self._begin()
        yield from self._end(reply)

    async def failure(self, problem: JsonObject) -> Iterable[bytes]:
        """The last events of a response that failed or was cancelled."""
        closed = tuple(self._close("incomplete"))
        cancelled = problem["code"] == "turn_cancelled"
        error = None if cancelled else response_error(problem)
        reply = ResponseOutcome("cancelled" if cancelled else "failed", self.model, tuple(self._done), error=error)
        return (*closed, self._event("response.failed", response=self._response(reply)))

    def _reply(self, outcome: TurnOutcome) -> ResponseOutcome:
        turn, made = outcome.turn, outcome.summary and outcome.summary.id
        return _reply(self._ref, turn.seq, made, turn.model_alias, outcome.completion, self.form)

    def _begin(self) -> Iterable[bytes]:
        response = self._response(ResponseOutcome("in_progress", self.model))
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def _end(self, reply: ResponseOutcome) -> Iterable[bytes]:
        """The events of the reply that were not sent yet, and the response with the items as they were streamed."""
        for item in reply.output:
            match item["type"]:
                case "compaction":
                    if not self._done:
                        yield from self._compaction(item)
                case "reasoning":
                    self._sealed = {name: item[name] for name in ("encrypted_content",) if name in item}
                    if self._open is None:
                        yield from self._reasoning(item["content"][0]["text"])
                case "message":
                    if self._open not in ("message", "refusal"):
                        part = item["content"][0]
                        is_refusal = part["type"] == "refusal"
                        yield from self._message(part["refusal" if is_refusal else "text"], is_refusal=is_refusal)
                    yield from self._close(item["status"])
                case _:
                    yield from self._close()
                    yield from self._call(item)
        final = replace(reply, output=tuple(self._done))
        yield self._event(_TERMINAL.get(reply.status, "response.failed"), response=self._response(final))

    def _compaction(self, item: JsonObject) -> Iterable[bytes]:
        yield self._item_event("added", item)
        yield from self._item_done(item)

    def _reasoning(self, text: str) -> Iterable[bytes]:
        if self._open is None:
            yield from self._begin_item("reasoning")
        if self._open == "reasoning":
            self._texts.append(text)
            yield self._text_event("delta", delta=text)

    def _message(self, text: str, *, is_refusal: bool) -> Iterable[bytes]:
        """The next part of the text. It is that of a refusal from its first part on or not at all."""
        if self._open not in ("message", "refusal"):
            yield from self._close()
            yield from self._begin_item("refusal" if is_refusal else "message")
        self._texts.append(text)
        if text:
            yield self._text_event("delta", delta=text)

    def _begin_item(self, kind: Literal["reasoning", "message", "refusal"]) -> Iterable[bytes]:
        self._open = kind
        item = self._item("")
        yield self._item_event("added", item | {"content": []})
        yield self._part_event("added", item)

    def _close(self, status: Literal["completed", "incomplete"] = "completed") -> Iterable[bytes]:
        if self._open is None:
            return
        text = "".join(self._texts)
        item = self._item(text, status)
        yield self._text_event("done", **{_TEXTS[self._open][1]: text})
        yield self._part_event("done", item)
        yield from self._item_done(item)
        self._open, self._texts = None, []

    def _item(self, text: str, status: Literal["in_progress", "completed", "incomplete"] = "in_progress") -> JsonObject:
        if self._open == "reasoning":
            return reasoning_item(self._ref, text, () if "include" in self.form else None) | self._sealed
        return text_item(self._ref, text, status, is_refusal=self._open == "refusal")

    def _text_event(self, what: str, **fields: object) -> bytes:
        assert self._open is not None
        fields |= {"logprobs": []} if self._open == "message" else {}
        name = f"response.{_TEXTS[self._open][0]}.{what}"
        return self._event(name, **self._at(self._item("")["id"]), content_index=0, **fields)

    def _call(self, item: JsonObject) -> Iterable[bytes]:
        name = _STREAMED.get(item["type"])
        yield self._item_event("added", item | ({name: ""} if name else {}) | {"status": "in_progress"})
        if name is not None:
            at, events = self._at(item["id"]), f"response.{item['type']}_{name}"
            called = {"name": item["name"]} if name == "arguments" else {}
            yield self._event(f"{events}.delta", **at, delta=item[name])
            yield self._event(f"{events}.done", **at, **called, **{name: item[name]})
        yield from self._item_done(item)

    def _item_done(self, item: JsonObject) -> Iterable[bytes]:
        yield self._item_event("done", item)
        self._done.append(item)

    def _at(self, item_id: str) -> JsonObject:
        return {"item_id": item_id, "output_index": len(self._done)}

    def _item_event(self, what: str, item: JsonObject) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=len(self._done), item=item)

    def _part_event(self, what: str, item: JsonObject) -> bytes:
        name = f"response.content_part.{what}"
        return self._event(name, **self._at(item["id"]), content_index=0, part=item["content"][0])

    def _response(self, reply: ResponseOutcome) -> JsonObject:
        return response_json(self.form, self._ref, self.created_at, reply)

    def _event(self, event_name: str, /, **fields: object) -> bytes:
        data = {"type": event_name, "sequence_number": self._number, **fields}
        self._number += 1
        return encoded_event(event_name, data)
