"""An answer of the Messages API -> `Completion`, whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.domain.content import fields_of, storable
from app.domain.types import Completion, Delta, FinishReason, JsonObject, Usage
from app.providers.error_object import ErrorObject, error_object
from app.providers.stream import Assembly, Event, StreamedError
from app.providers.wire import (
    MOST_ITEMS,
    MalformedAnswerError,
    answered_items,
    checked_calls,
    decode_json,
    model_name,
    storable_json,
    token_count,
)

_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""`pause_turn` and unknown reasons are `other`: only the provider's own tools pause, and none is ever requested."""
_COUNTED: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "thinking_tokens",  # of `output_tokens_details`
)


def _reasoning_blocks(blocks: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """The signed thinking blocks, to be sent back unaltered; none if storing would alter one."""
    kept: list[JsonObject] = []
    for block in blocks:
        if block.get("type") == "thinking" and block.get("signature"):
            kept.append({name: block[name] for name in ("type", "thinking", "signature")})
        elif block.get("type") == "redacted_thinking" and "data" in block:
            kept.append({name: block[name] for name in ("type", "data")})
    return tuple(kept) if all(value == storable(value) for block in kept for value in block.values()) else ()


def _usage(fields: JsonObject) -> Usage | None:
    """The prompt has the `input_tokens`, which exclude the cache, and those written to the cache and read from it."""
    fresh, answer, written, read, thinking = (token_count(fields.get(name)) for name in _COUNTED)
    if fresh is None:
        return None
    return Usage(
        prompt_tokens=fresh + (written or 0) + (read or 0),
        completion_tokens=answer or 0,
        cached_prompt_tokens=read or 0,
        cache_write_prompt_tokens=written or 0,
        reasoning_completion_tokens=min(thinking or 0, answer or 0),
    )


_KEPT: Final = ("type", "id", "name", "signature", "data")
"""The members that are kept of the start of a streamed block."""


@dataclass(slots=True)
class _BlockInParts:
    fields: JsonObject
    parts: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])

    def whole(self) -> JsonObject:
        kind = self.fields.get("type")
        text = "".join(self.parts)
        if kind == "tool_use":
            return self.fields | ({"input": text} if text.strip() else {})
        signed = {"signature": "".join((self.fields.get("signature", ""), *self.signature))} if self.signature else {}
        return self.fields | signed | ({kind: text} if kind in {"text", "thinking"} else {})


class MessageAssembly(Assembly):
    """Reads one message. Unknown kinds of events are ignored."""

    reasons = _FINISH_REASONS

    def __init__(self, stop_sequences: Sequence[str] = ()) -> None:
        super().__init__(stop_sequences)
        self._blocks: list[_BlockInParts] = []
        self._by_number: dict[int | str | None, _BlockInParts] = {}
        self._counts: JsonObject = {}

    def read(self, event: Event) -> Delta:
        fields = fields_of(decode_json(event.data))
        self.count(fields)
        if fields.get("type") == "error" or event.name == "error" or fields.get("error"):
            raise StreamedError(error_object(fields) or ErrorObject())
        match fields.get("type"):
            case "message_start":
                self._begin(fields_of(fields.get("message")))
            case "content_block_start":
                return self._begin_block(fields.get("index"), fields_of(fields.get("content_block")))
            case "content_block_delta":
                return self._grow(fields.get("index"), fields_of(fields.get("delta")))
            case "message_delta":
                self._end(fields_of(fields.get("delta")))
            case "message_stop":
                self.is_over = True
            case _:
                pass  # pings, the ends of blocks, and what the API may add
        return Delta()

    def read_whole(self, answer: JsonObject) -> None:
        if not isinstance(answer.get("content"), list):
            raise MalformedAnswerError("the message carries no content")
        self._begin(answer)
        for number, block in enumerate(answered_items(answer["content"], "blocks")):
            self._begin_block(number, fields_of(block))
        self._end(answer)

    def completion(self) -> Completion:
        blocks = [block.whole() for block in self._blocks]
        called = [block for block in blocks if block.get("type") == "tool_use"]
        calls = checked_calls([(block.get("id"), block.get("name"), block["input"]) for block in called])
        return self._completed(calls, _reasoning_blocks(blocks))

    def _begin(self, message: JsonObject) -> None:
        """Takes what a message has beside its blocks."""
        self._has_begun = bool(message)
        self._model = model_name(message.get("model"))
        self.count(message)

    def count(self, part: JsonObject) -> None:
        """Keeps the newest counts that are not 0: they rise during a stream, gateways may send zeros until its end, and
        Dynamo begins with an estimate of the prompt, Kimi and Qwen with all of it. What they send with the count of the
        cache is the rest, even if it is 0."""
        usage = fields_of(part.get("usage"))
        usage = {**usage, **fields_of(usage.get("output_tokens_details"))}
        if usage.get("input_tokens") == 0 and token_count(usage.get("cache_read_input_tokens")):
            self._counts["input_tokens"] = 0
        for name in _COUNTED if usage else ():
            tokens = token_count(usage.get(name))
            if tokens is not None:
                self._counts[name] = tokens or self._counts.get(name, 0)
            self.usage = _usage(self._counts)

    def _end(self, delta: JsonObject) -> None:
        self._finish = delta.get("stop_reason") or self._finish
        self._take_stop_sequence(delta.get("stop_sequence"))

    def _begin_block(self, index: Any, block: JsonObject) -> Delta:
        """Adds a block, which may grow. Raises `MalformedAnswerError`."""
        kept: JsonObject = {name: self._room.take(block[name]) for name in _KEPT if isinstance(block.get(name), str)}
        kind = kept.get("type")
        if kind == "tool_use":
            given: Any = block.get("input") or {}
            kept["input"] = self._room.take(given if isinstance(given, str) else storable_json(given))
        started = _BlockInParts(kept)
        self._blocks.append(started)
        self._by_number[_number(index)] = started  # gateways may give one number to several blocks, one after the other
        if len(self._blocks) > MOST_ITEMS:
            raise MalformedAnswerError(f"it has more than {MOST_ITEMS} blocks")
        text = block.get(kind) if kind in {"text", "thinking"} else None
        return self._add_text(started, text) if isinstance(text, str) else Delta()

    def _grow(self, index: Any, delta: JsonObject) -> Delta:
        block = self._by_number.get(_number(index))
        if block is None:
            raise MalformedAnswerError("a delta belongs to no block")
        for kind in ("text", "thinking"):
            if isinstance(delta.get(kind), str):
                return self._add_text(block, delta[kind])
        if isinstance(delta.get("partial_json"), str):
            block.parts.append(self._room.take(delta["partial_json"]))
        elif isinstance(delta.get("signature"), str):
            block.signature.append(self._room.take(delta["signature"]))
        return Delta()

    def _add_text(self, block: _BlockInParts, text: str) -> Delta:
        block.parts.append(text)
        is_thought = block.fields.get("type") == "thinking"
        return Delta(reasoning=self._reasoning.add(text)) if is_thought else Delta(self._text.add(text))


def _number(index: Any) -> int | str | None:
    """A block's number as a dictionary key; raises `MalformedAnswerError` for any other value."""
    if index is None or isinstance(index, int | str):
        return index
    raise MalformedAnswerError("a block's number is none")
