"""A response as a stream of OpenAI's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal

import orjson

from app.api.response_json import ResponseOutcome, reply_of_outcome, reply_of_stored, response_error, response_json
from app.domain.openai_ids import ResponseRef
from app.domain.responses import StoredResponse
from app.domain.types import JsonObject, SessionId
from app.openai.items import reasoning_item, text_item
from app.services.turn.types import TurnEvent, TurnOutcome

_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


class ResponseForm:
    """One stream, with its own sequence numbers. `stored` is the response it repeats, where one was answered before.

    Items come in this order: reasoning, text, calls. Each begins with its first piece. Reasoning ends where the text
    begins; reasoning that comes later is in the stored item alone.
    """

    def __init__(
        self, session_id: SessionId, form: JsonObject, created_at: datetime, model: str, headers: Mapping[str, str]
    ) -> None:
        self.headers = headers
        self.stored: StoredResponse | None = None
        self._session_id = session_id
        self._form = form
        self._created_at = created_at
        self._model = model
        self._ref: ResponseRef | None = None
        self._number = 0
        self._done: list[JsonObject] = []
        self._open: Literal["reasoning", "message"] | None = None
        self._texts: list[str] = []

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        """The `response` object."""
        if self.stored is not None:
            return response_json(
                self.stored.form, self.stored.ref, self.stored.created_at, reply_of_stored(self.stored)
            )
        assert outcome.reply_seq is not None
        ref = ResponseRef(self._session_id, outcome.reply_seq)
        return self._response(ref, reply_of_outcome(outcome, ref))

    def begun(self, event: TurnEvent) -> JsonObject:
        """The `response` object of one that runs: `event` is its turn's first."""
        assert event.reply_seq is not None
        ref = ResponseRef(self._session_id, event.reply_seq)
        return self._response(ref, ResponseOutcome("in_progress", self._model))

    def event(self, event: TurnEvent) -> bytes:
        """The first events once the context is assembled, then the model's reasoning and text."""
        match event.name:
            case "turn.created":
                assert event.reply_seq is not None
                self._ref = ResponseRef(self._session_id, event.reply_seq)
                return b""
            case "context.assembled":
                return b"".join(self._begin())
            case "output.delta":
                reasoning, text = event.data.get("reasoning"), event.data.get("text")
                return b"".join(
                    (*(self._reasoning(reasoning) if reasoning else ()), *(self._message(text) if text else ()))
                )

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """Ends the open item, then calls, each whole, then the whole response; every event, where none was streamed."""
        if self.stored is not None:
            yield from self.replay(self.stored)
            return
        if not streamed or self._ref is None:
            return
        reply = reply_of_outcome(outcome, self._ref)
        yield from self._end(self._ref, reply)

    def replay(self, stored: StoredResponse) -> Iterable[bytes]:
        """The events of a stored response, each text in one delta."""
        self._ref, self._form, self._created_at = stored.ref, stored.form, stored.created_at
        reply = reply_of_stored(stored)
        self._model = reply.model
        yield from self._begin()
        yield from self._end(stored.ref, reply)

    def failure(self, problem: JsonObject, turn: JsonObject | None) -> Iterable[bytes]:  # noqa: ARG002 - the protocol's
        """The last event of a response that failed or was cancelled."""
        if self._ref is None:
            return
        cancelled = problem["code"] == "turn_cancelled"
        error = None if cancelled else response_error(problem)
        yield from self._close("incomplete")
        reply = ResponseOutcome("cancelled" if cancelled else "failed", self._model, tuple(self._done), error=error)
        yield self._event("response.failed", response=self._response(self._ref, reply))

    def _begin(self) -> Iterable[bytes]:
        assert self._ref is not None
        response = self._response(self._ref, ResponseOutcome("in_progress", self._model))
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def _end(self, ref: ResponseRef, reply: ResponseOutcome) -> Iterable[bytes]:
        """The events of the reply that are still missing, and the response with the items as they were streamed."""
        for item in reply.output:
            match item["type"]:
                case "reasoning":
                    if self._open is None:
                        yield from self._reasoning(item["content"][0]["text"])
                case "message":
                    if self._open != "message":
                        yield from self._message(item["content"][0]["text"])
                    yield from self._close(item["status"])
                case _:
                    yield from self._close()
                    yield from self._call(item)
        final = replace(reply, output=tuple(self._done))
        yield self._event(_TERMINAL.get(reply.status, "response.failed"), response=self._response(ref, final))

    def _reasoning(self, text: str) -> Iterable[bytes]:
        if self._open is None:
            item = self._item("reasoning", "")
            yield self._item_event("added", item | {"content": []})
            yield self._part_event("added", item["id"], item["content"][0])
            self._open = "reasoning"
        if self._open == "reasoning":
            self._texts.append(text)
            yield self._text_event("response.reasoning_text.delta", delta=text)

    def _message(self, text: str) -> Iterable[bytes]:
        if self._open != "message":
            yield from self._close()
            item = self._item("message", "")
            yield self._item_event("added", item | {"content": []})
            yield self._part_event("added", item["id"], item["content"][0])
            self._open = "message"
        self._texts.append(text)
        if text:
            yield self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def _close(self, status: Literal["completed", "incomplete"] = "completed") -> Iterable[bytes]:
        """Ends the open item, if there is one."""
        if self._open is None:
            return
        text = "".join(self._texts)
        item = self._item(self._open, text, status)
        if self._open == "message":
            yield self._text_event("response.output_text.done", text=text, logprobs=[])
        else:
            yield self._text_event("response.reasoning_text.done", text=text)
        yield self._part_event("done", item["id"], item["content"][0])
        yield from self._item_done(item)
        self._open, self._texts = None, []

    def _item(
        self,
        kind: Literal["reasoning", "message"],
        text: str,
        status: Literal["in_progress", "completed", "incomplete"] = "in_progress",
    ) -> JsonObject:
        assert self._ref is not None
        if kind == "reasoning":
            return reasoning_item(self._session_id, self._ref.reply_seq, text)
        return text_item(self._session_id, self._ref.reply_seq, text, status)

    def _text_event(self, name: str, **fields: object) -> bytes:
        assert self._open is not None
        item_id = self._item(self._open, "")["id"]
        return self._event(name, **self._at(item_id), content_index=0, **fields)

    def _call(self, item: JsonObject) -> Iterable[bytes]:
        yield self._item_event("added", item | {"arguments": "", "status": "in_progress"})
        at = self._at(item["id"])
        yield self._event("response.function_call_arguments.delta", **at, delta=item["arguments"])
        yield self._event("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        yield from self._item_done(item)

    def _item_done(self, item: JsonObject) -> Iterable[bytes]:
        yield self._item_event("done", item)
        self._done.append(item)

    def _at(self, item_id: str) -> JsonObject:
        return {"item_id": item_id, "output_index": len(self._done)}

    def _item_event(self, what: str, item: JsonObject) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=len(self._done), item=item)

    def _part_event(self, what: str, item_id: str, part: JsonObject) -> bytes:
        return self._event(f"response.content_part.{what}", **self._at(item_id), content_index=0, part=part)

    def _response(self, ref: ResponseRef, reply: ResponseOutcome) -> JsonObject:
        return response_json(self._form, ref, self._created_at, reply)

    def _event(self, event_name: str, /, **fields: object) -> bytes:
        data = {"type": event_name, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event_name.encode(), orjson.dumps(data))
