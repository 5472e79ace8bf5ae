"""The remote wire protocols as a test scripts them: the same answer, whole or streamed, in each one's words."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from app.domain.types import ToolCall
from app.providers.anthropic import AnthropicProvider
from app.providers.base import Endpoint, Provider
from app.providers.catalogue_file import ModelEntry
from app.providers.openai import OpenAIProvider
from app.providers.transport import RetryPolicy

from .server import Answer, Stream

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "sk-very-secret"


class Waits:
    """Stands in for sleeping: notes how long, and returns at once."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits_s.append(seconds)


@dataclass(frozen=True)
class ModelReply:
    """What the model says: 11 prompt tokens, 4 of them cached, and 3 of completion."""

    text: str = "Hello."
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: str = ""
    """Why it stopped, in the wire's own word; by itself the end, or the calls."""
    ended_at: str | None = None
    """The stop sequence that ended it: vLLM's field, and Anthropic's."""
    thought_tokens: int = 0
    """How many tokens of the completion were reasoning."""


@dataclass(frozen=True)
class Wire:
    """A protocol. `events` are a stream's, in order: `begin`, one for each fragment of text, and `end`."""

    name: Literal["openai", "anthropic", "responses"]
    adapter: type[OpenAIProvider] | type[AnthropicProvider]
    length: str
    answer: Callable[[ModelReply], dict[str, Any]]
    begin: Callable[[], Sequence[bytes]]
    fragments: Callable[[ModelReply], Sequence[bytes]]
    end: Callable[[ModelReply], Sequence[bytes]]

    @property
    def keys(self) -> dict[str, Any]:
        """Those of a catalogue's entry that choose the protocol."""
        return {"provider": "openai", "api": "responses"} if self.name == "responses" else {"provider": self.name}

    @property
    def toml(self) -> str:
        """The same as lines of the file."""
        return "".join(f'{key} = "{value}"\n' for key, value in self.keys.items())

    def whole(self, reply: ModelReply) -> Answer:
        return Answer(self.answer(reply))

    def stream(self, reply: ModelReply, **fields: Any) -> Stream:
        return Stream((*self.begin(), *self.fragments(reply), *self.end(reply)), **fields)

    @asynccontextmanager
    async def provider_at(
        self, base_url: str, sleep: Callable[[float], Awaitable[None]] | None = None, **endpoint: Any
    ) -> AsyncGenerator[Provider]:
        settings: dict[str, Any] = {**self.keys, "model": "served-model", "timeout_s": 60.0, **endpoint}
        adapter = self.adapter(
            Endpoint("main", ModelEntry(base_url=base_url, **settings), SECRET),
            now=lambda: NOW,
            retry=RetryPolicy(jitter=lambda ceiling_s: ceiling_s, sleep=sleep or Waits()),
        )
        try:
            yield adapter
        finally:
            await adapter.aclose()


def event(body: Any, name: str | None = None) -> bytes:
    named = f"event: {name}\n" if name else ""
    return f"{named}data: {json.dumps(body)}\n\n".encode()


def halves(text: str) -> tuple[str, ...]:
    """Text in two fragments, or none."""
    middle = max(1, len(text) // 2)
    return tuple(filter(None, (text[:middle], text[middle:])))


def _chat_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {"index": n, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(calls)
    ]


CHAT_USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def _chat_usage(reply: ModelReply) -> dict[str, Any]:
    return {**CHAT_USAGE, "completion_tokens_details": {"reasoning_tokens": reply.thought_tokens}}


def _chat_answer(reply: ModelReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    message |= {"reasoning_content": reply.reasoning} if reply.reasoning else {}
    message |= {"tool_calls": _chat_calls(reply.calls)} if reply.calls else {}
    stop = reply.stop or ("tool_calls" if reply.calls else "stop")
    return {
        "model": "served-model",
        "choices": [{"index": 0, "message": message, "finish_reason": stop, "stop_reason": reply.ended_at}],
        "usage": _chat_usage(reply),
    }


def _chat_chunk(delta: dict[str, Any], stop: str | None = None, ended_at: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": stop, "stop_reason": ended_at}
    return event({"model": "served-model", "choices": [choice]})


def _chat_fragments(reply: ModelReply) -> Sequence[bytes]:
    thoughts = [_chat_chunk({"reasoning_content": piece}) for piece in halves(reply.reasoning)]
    texts = [_chat_chunk({"content": piece}) for piece in halves(reply.text)]
    calls = [_chat_chunk({"tool_calls": [call]}) for call in _chat_calls(reply.calls)]
    return [*thoughts, *texts, *calls]


def _chat_end(reply: ModelReply) -> Sequence[bytes]:
    stop = reply.stop or ("tool_calls" if reply.calls else "stop")
    usage = event({"choices": [], "usage": _chat_usage(reply)})
    return [_chat_chunk({}, stop, reply.ended_at), usage, b"data: [DONE]\n\n"]


OPENAI = Wire(
    name="openai",
    adapter=OpenAIProvider,
    length="length",
    answer=_chat_answer,
    begin=lambda: [_chat_chunk({"role": "assistant", "content": ""})],
    fragments=_chat_fragments,
    end=_chat_end,
)

MESSAGE_USAGE = {"input_tokens": 5, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4}


def _message_output(reply: ModelReply) -> dict[str, Any]:
    return {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": reply.thought_tokens}}


def _message_answer(reply: ModelReply) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    blocks += [{"type": "thinking", "thinking": reply.reasoning, "signature": "sig"}] if reply.reasoning else []
    blocks += [{"type": "text", "text": reply.text}] if reply.text else []
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.calls
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-model",
        "content": blocks,
        "stop_reason": reply.stop or ("tool_use" if reply.calls else "end_turn"),
        "stop_sequence": reply.ended_at,
        "usage": {**MESSAGE_USAGE, **_message_output(reply)},
    }


def message_event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def block_events(index: int, block: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> list[bytes]:
    """A block's beginning, its deltas and its end."""
    return [
        message_event("content_block_start", index=index, content_block=block),
        *(message_event("content_block_delta", index=index, delta=delta) for delta in deltas),
        message_event("content_block_stop", index=index),
    ]


def _message_fragments(reply: ModelReply) -> Sequence[bytes]:
    events: list[bytes] = []
    index = 0
    if reply.reasoning:
        thoughts: list[dict[str, Any]] = [
            {"type": "thinking_delta", "thinking": piece} for piece in halves(reply.reasoning)
        ]
        signed = [*thoughts, {"type": "signature_delta", "signature": "sig"}]
        events += block_events(index, {"type": "thinking", "thinking": "", "signature": ""}, signed)
        index += 1
    if reply.text:
        texts = [{"type": "text_delta", "text": piece} for piece in halves(reply.text)]
        events += block_events(index, {"type": "text", "text": ""}, texts)
        index += 1
    for call in reply.calls:
        block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        pieces = ["", *halves(call.arguments)]
        events += block_events(index, block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces])
        index += 1
    return events


def _message_end(reply: ModelReply) -> Sequence[bytes]:
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    delta = {"stop_reason": stop, "stop_sequence": reply.ended_at}
    return [message_event("message_delta", delta=delta, usage=_message_output(reply)), message_event("message_stop")]


def _message_begin() -> Sequence[bytes]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-model",
        "content": [],
        "stop_reason": None,
        "usage": {**MESSAGE_USAGE, "output_tokens": 1},
    }
    return [message_event("message_start", message=message), message_event("ping")]


ANTHROPIC = Wire(
    name="anthropic",
    adapter=AnthropicProvider,
    length="max_tokens",
    answer=_message_answer,
    begin=_message_begin,
    fragments=_message_fragments,
    end=_message_end,
)

RESPONSE_USAGE = {"input_tokens": 11, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}


def _items(reply: ModelReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": "sealed"})
    if reply.text:
        content = [{"type": "output_text", "text": reply.text}]
        items.append({"id": "msg_1", "type": "message", "role": "assistant", "content": content})
    for call in reply.calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"id": f"fc_{call.id}", "type": "function_call", "status": "completed", **named})
    return items


def _response_answer(reply: ModelReply) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "model": "served-model",
        "status": "incomplete" if reply.stop else "completed",
        "incomplete_details": {"reason": reply.stop} if reply.stop else None,
        "error": None,
        "output": _items(reply),
        "usage": {**RESPONSE_USAGE, "output_tokens_details": {"reasoning_tokens": reply.thought_tokens}},
    }


def response_event(kind: str, **fields: Any) -> bytes:
    return event({"type": f"response.{kind}", **fields}, f"response.{kind}")


def _response_begin() -> Sequence[bytes]:
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    return [response_event(kind, response=response) for kind in ("created", "in_progress")]


def _response_fragments(reply: ModelReply) -> Sequence[bytes]:
    events: list[bytes] = []
    of_kind = {"message": ("output_text", reply.text), "reasoning": ("reasoning_summary_text", reply.reasoning)}
    for index, item in enumerate(_items(reply)):
        place = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        kind, text = of_kind.get(item["type"], ("function_call_arguments", item.get("arguments", "")))
        added = {"type": item["type"], "id": item["id"]}
        events.append(response_event("output_item.added", output_index=index, item=added))
        events += [response_event(f"{kind}.delta", **place, delta=piece) for piece in halves(text)]
        events.append(response_event("output_item.done", output_index=index, item=item))
    return events


def _response_end(reply: ModelReply) -> Sequence[bytes]:
    ended = response_event("incomplete" if reply.stop else "completed", response=_response_answer(reply))
    return [ended, b"data: [DONE]\n\n"]  # the mark is that of gateways


RESPONSES = Wire(
    name="responses",
    adapter=OpenAIProvider,
    length="max_output_tokens",
    answer=_response_answer,
    begin=_response_begin,
    fragments=_response_fragments,
    end=_response_end,
)
