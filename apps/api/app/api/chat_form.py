"""A turn in the form of OpenAI's chat completions: whole, or in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from app.api.openai_errors import error_of
from app.domain.content import tool_call_json
from app.domain.types import JsonObject, ToolCall, Usage
from app.services.turn.types import TurnEvent, TurnOutcome

DONE = b"data: [DONE]\n\n"


class ChatForm:
    """One answer. `completion_id` is of this answer alone: a turn with tools has one for each of its rounds."""

    def __init__(
        self, *, completion_id: str, created: int, model: str, headers: Mapping[str, str], include_usage: bool = False
    ) -> None:
        self.headers = headers
        self._id = completion_id
        self._created = created
        self._model = model
        self._include_usage = include_usage

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        """The `chat.completion`."""
        text, calls, usage = _reply(outcome)
        message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message["tool_calls"] = [tool_call_json(call) for call in calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(outcome, calls)}
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": outcome.turn.model_alias,
            "choices": [choice],
            "usage": usage,
        }

    def event(self, event: TurnEvent) -> bytes:
        """The role once the context is assembled, then the model's text; this form has no field for reasoning."""
        if event.name == "context.assembled":
            return self._chunk({"role": "assistant", "content": ""})
        text = event.data.get("text")
        return self._chunk({"content": text}) if text else b""

    def outcome(self, outcome: TurnOutcome, *, streamed: bool) -> Iterable[bytes]:
        """Tool calls, each whole, the finish reason, and the end mark; before them the text, unless it was streamed."""
        text, calls, usage = _reply(outcome)
        if not streamed:
            yield self._chunk({"role": "assistant", "content": text or ""})
        for index, call in enumerate(calls):
            yield self._chunk({"tool_calls": [{"index": index, **tool_call_json(call)}]})
        yield self._chunk({}, _finish_reason(outcome, calls))
        if self._include_usage:
            yield self._encoded({"choices": [], "usage": usage})
        yield DONE

    def failure(self, problem: JsonObject, turn: JsonObject | None) -> Iterable[bytes]:  # noqa: ARG002 - the protocol's
        """An error in the stream, without an end mark: the answer before it is incomplete."""
        yield b"data: %b\n\n" % orjson.dumps({"error": error_of(problem, "messages")})

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return self._encoded({"choices": [choice], **usage})

    def _encoded(self, fields: JsonObject) -> bytes:
        chunk = {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model}
        return b"data: %b\n\n" % orjson.dumps(chunk | fields)


def _reply(outcome: TurnOutcome) -> tuple[str | None, tuple[ToolCall, ...], JsonObject | None]:
    """Text, tool calls and usage: of this call, or of the whole turn where a stored one is answered."""
    completion, turn = outcome.completion, outcome.turn
    if completion is not None:
        text = completion.text if completion.tool_calls else completion.text or ""
        return text, completion.tool_calls, _usage(completion.usage)
    usage = Usage(turn.prompt_tokens, turn.completion_tokens or 0) if turn.prompt_tokens is not None else None
    return turn.assistant_output, turn.tool_calls, _usage(usage)


def _usage(usage: Usage | None) -> JsonObject | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
    }


def _finish_reason(outcome: TurnOutcome, calls: tuple[ToolCall, ...]) -> str:
    reason = outcome.turn.finish_reason
    return "tool_calls" if calls else reason if reason in ("length", "content_filter") else "stop"
