"""A chat completion -> `Completion`, whole or streamed; vectors of texts -> `Embedded`.

Streams differ most in tool calls: fragments by index, fragments without an index or an id, an id in every fragment,
whole calls at once, several whole calls under one index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from app.domain.content import arguments_of, fields_of, storable
from app.domain.types import Completion, Delta, FinishReason, JsonObject, ToolCall, Usage
from app.providers.base import Embedded
from app.providers.catalogue_file import ThinkTags
from app.providers.error_object import ErrorObject, error_object
from app.providers.failures import unusable_answer
from app.providers.stream import Assembly, Event, ReplyRoom, StreamedError
from app.providers.think_tags import TaggedText
from app.providers.wire import (
    MOST_ITEMS,
    MalformedAnswerError,
    answered_items,
    check_calls,
    checked_calls,
    content_of,
    decode_json,
    list_of,
    model_name,
    storable_json,
    token_count,
)

MOST_DIMENSIONS: Final = 4096
SIGNATURE: Final = "thought_signature"
DETAIL_TYPES: Final = ("reasoning.text", "reasoning.summary", "reasoning.encrypted")
"""The types of OpenRouter's `reasoning_details`. openrouter.ai/docs/guides/best-practices/reasoning-tokens"""
_OF_DETAIL: Final = ("type", "id", "format", "index", "text", "summary", "data", "signature")
_IN_PIECES: Final = frozenset({"text", "summary"})
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("tool_calls", "function_call"), "tool_calls"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "sensitive", "refusal"),
        "content_filter",
    ),
}
_CACHED: Final = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
"""Where DeepSeek, Moonshot and gateways to Anthropic have the cached tokens that OpenAI has in the prompt's details."""

_MATCHED: Final = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang have the stop sequence that ended the answer; or a token's number, or nothing."""


def _said(message: JsonObject) -> tuple[str, str, bool]:
    """Text and reasoning of a message, or of a piece of one, not yet storable; and whether the text is a refusal."""
    text, thinking = content_of(message.get("content"))
    refusal = message.get("refusal")
    is_refusal = False
    if not text and isinstance(refusal, str) and refusal:
        text, is_refusal = refusal, True
    details = map(fields_of, list_of(message.get("reasoning_details")))  # MiniMax has only these
    texts = [detail.get("text") or detail.get("summary") for detail in details]
    in_details = "".join(text for text in texts if isinstance(text, str))
    named = message.get("reasoning_content"), message.get("reasoning"), in_details
    reasoning = next((value for value in named if isinstance(value, str) and value), thinking)
    return text, reasoning, is_refusal


def _called(message: JsonObject) -> Any:
    """The tool calls of a message, or of a piece of one; older servers send a single one as `function_call`."""
    calls, only = message.get("tool_calls"), fields_of(message.get("function_call"))
    return calls if calls or not any(only.values()) else [{"index": 0, "function": only}]


def _signature(call: Any) -> str:
    """The signature of the thoughts that led to a tool call; empty where there is none."""
    extra = fields_of(fields_of(fields_of(call).get("extra_content")).get("google"))
    signature = extra.get("thought_signature")
    return signature if isinstance(signature, str) and signature == storable(signature) else ""


def usage_of(value: Any) -> Usage | None:
    """The usage; None without the prompt's tokens: a partial count would falsify the comparison with the estimate.

    The tokens of reasoning are part of the completion. Gemini and xAI add them to the total only, and Portkey's gateway
    what Anthropic read from its cache or wrote to it, which is part of the prompt.
    """
    fields = fields_of(value)
    prompt, answer, total = (
        token_count(fields.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None and total is not None and answer is not None and total >= answer:
        prompt = total - answer
    if prompt is None:
        return None
    details = fields_of(fields.get("prompt_tokens_details"))
    cached = _first_count(details.get("cached_tokens"), *map(fields.get, _CACHED))
    written = _first_count(details.get("cache_write_tokens"), fields.get("cache_creation_input_tokens"))
    if total == prompt + (answer or 0) + cached + written:
        prompt += cached + written
    answer = max(answer or 0, (total or 0) - prompt)
    reasoning = token_count(fields_of(fields.get("completion_tokens_details")).get("reasoning_tokens")) or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        cached_prompt_tokens=min(cached, prompt),
        cache_write_prompt_tokens=min(written, prompt - min(cached, prompt)),
        reasoning_completion_tokens=min(reasoning, answer),
    )


def _first_count(*values: Any) -> int:
    return next((found for found in map(token_count, values) if found is not None), 0)


class ChatAssembly(Assembly):
    """Reads the chunks of one answer, or a chat completion's first choice."""

    reasons = _FINISH_REASONS

    def __init__(
        self, stop_sequences: Sequence[str] = (), *, with_details: bool = False, think_tags: ThinkTags = "separate"
    ) -> None:
        super().__init__(stop_sequences)
        self._tagged = TaggedText(think_tags)
        self._calls = _CallFragments(self._room)
        self._details = _Details() if with_details else None
        self._in_deltas = False

    def read(self, event: Event) -> Delta:
        data = event.data.strip()
        self.is_over = data == b"[DONE]"
        if self.is_over or not data:
            return Delta()
        chunk = decode_json(event.data)
        fields = fields_of(chunk)
        self.count(fields)
        if error := error_object(chunk) or (ErrorObject() if event.name == "error" else None):
            raise StreamedError(error)
        if not isinstance(chunk, dict):
            raise MalformedAnswerError("a chunk of it is not a JSON object")
        return self._take(fields, _first_choice(fields))

    def count(self, part: JsonObject) -> None:
        reported = part.get("usage") or fields_of(_first_choice(part)).get("usage")  # Moonshot's is within the choice
        self.usage = usage_of(reported) or self.usage

    def _take(self, chunk: JsonObject, choice: JsonObject | None) -> Delta:
        """Adds a chunk with its first choice, or a whole answer."""
        self._model = model_name(chunk.get("model")) or self._model
        if choice is None or choice.get("index") not in (None, 0):  # it may be anything, unhashable too
            return Delta()
        self._has_begun = True
        self._finish = choice.get("finish_reason") or self._finish
        self._take_stop_sequence(*map(choice.get, _MATCHED))
        delta = fields_of(choice.get("delta"))
        # MiniMax ends a stream with the whole message once more.
        message = delta or ({} if self._in_deltas else fields_of(choice.get("message")))
        content, named, is_refusal = _said(message)
        text, tagged = self._tagged.add(content)
        reasoning = named or tagged
        if text:  # what follows an answer is part of it
            self._is_refusal = is_refusal and (self._is_refusal or self._text.is_empty)
        called = _called(message)
        self._in_deltas = self._in_deltas or bool(delta and (text or reasoning or called))
        if called and not isinstance(called, list):
            raise MalformedAnswerError("its tool_calls are not a list")
        for position, fragment in enumerate(answered_items(called, "fragments of tool calls in an event")):
            call = fields_of(fragment)
            self._calls.add(call if delta else {**call, "index": position})
        if self._details is not None:
            details = answered_items(message.get("reasoning_details"), "reasoning details in an event")
            self._details.add([fields_of(detail) for detail in details], in_pieces=bool(delta))
        return Delta(self._text.add(text), self._reasoning.add(reasoning), bool(text) and self._is_refusal)

    def read_whole(self, answer: JsonObject) -> None:
        choice = _first_choice(answer) or {}
        # Gemini's refusals have no message.
        if not isinstance(choice.get("message"), dict) and not choice.get("finish_reason"):
            raise MalformedAnswerError("the answer carries no message")
        self._take(answer, {**choice, "index": 0})

    def rest(self) -> Delta:
        text, reasoning = self._tagged.rest()
        held = Delta(self._text.add(text), self._reasoning.add(reasoning))
        last = super().rest()
        return Delta(held.text + last.text, held.reasoning + last.reasoning)

    def completion(self) -> Completion:
        calls, details = self._calls.whole(), self._details.whole() if self._details else ()
        return self._completed(calls, (*self._calls.signature_blocks(calls), *details))


def _first_choice(part: JsonObject) -> JsonObject | None:
    return next((fields_of(found) for found in list_of(part.get("choices"))), None)


class _Details:
    """OpenRouter's blocks of reasoning, which it requires as they were. In a stream, fragments with one type and index
    are one block, whose signature may come last and alone; encrypted blocks are whole."""

    def __init__(self) -> None:
        self._room = ReplyRoom()  # their text is also in `reasoning`, which the answer's room has
        self._blocks: list[dict[str, Any]] = []
        self._by_place: dict[tuple[str, int | str | None], dict[str, Any]] = {}

    def add(self, details: Sequence[JsonObject], *, in_pieces: bool) -> None:
        """Takes those of an event, or of a message. Raises `MalformedAnswerError` when they have become too large."""
        for detail in details:
            kind, index = detail.get("type"), detail.get("index")
            if kind not in DETAIL_TYPES:
                continue
            place = kind, index if isinstance(index, int | str) else None
            block = self._by_place.get(place) if in_pieces and kind != "reasoning.encrypted" else None
            if block is None:
                block = self._by_place[place] = {}
                self._blocks.append(block)
            for name in _OF_DETAIL:
                value = detail.get(name)
                if not isinstance(value, str | int):
                    continue
                self._room.take(str(value))
                if name in _IN_PIECES:
                    block.setdefault(name, []).append(str(value))
                else:
                    block.setdefault(name, value)
        if len(self._blocks) > MOST_ITEMS:
            raise MalformedAnswerError(f"it has more than {MOST_ITEMS} reasoning details")

    def whole(self) -> tuple[JsonObject, ...]:
        """All blocks; none if storing would alter one."""
        blocks = [
            {name: "".join(value) if name in _IN_PIECES else value for name, value in block.items()}
            for block in self._blocks
        ]
        texts = [value for block in blocks for value in block.values() if isinstance(value, str)]
        return tuple(blocks) if all(text == storable(text) for text in texts) else ()


@dataclass(slots=True)
class _CallInParts:
    identity: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    is_custom: bool = False
    signature: str = ""

    def whole_arguments(self) -> str:
        text = "".join(self.arguments)
        return arguments_of(storable(text)) if self.is_custom else text or "{}"

    def has_whole_arguments(self) -> bool:
        """Whether the arguments came in one piece and are a JSON object. A piece is parsed once at most."""
        if len(self.arguments) != 1:
            return False
        try:
            return isinstance(decode_json(self.arguments[0].encode("utf-8", "replace")), dict)
        except MalformedAnswerError:
            return False


class _CallFragments:
    """Tool calls as they arrive, in the order of their first fragments.

    A fragment continues the newest call with its id, else with its index. Servers that give several calls one id number
    them; servers that send whole calls may number them all 0: see `_is_another`. Without a known index, a fragment
    with a known id, or without a name, continues a call.
    """

    def __init__(self, room: ReplyRoom) -> None:
        self._room = room
        self._calls: list[_CallInParts] = []
        self._by_id: dict[str, _CallInParts] = {}
        self._by_index: dict[int | str | None, _CallInParts] = {}

    def add(self, fragment: dict[str, Any]) -> None:
        """Takes the next fragment. Raises `MalformedAnswerError` when the answer has become too large."""
        custom = fields_of(fragment.get("custom"))
        function = fields_of(fragment.get("function")) or {**custom, "arguments": custom.get("input")}
        index, identity = fragment.get("index"), fragment.get("id")
        identity = identity if isinstance(identity, str) else ""
        name = function["name"] if isinstance(function.get("name"), str) else ""
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = storable_json(arguments)
        index = index if isinstance(index, int | str) else None
        call = self._continued(index, identity, name, arguments)
        if call is None:
            call = _CallInParts()
            self._calls.append(call)
            check_calls(len(self._calls))
            if index is not None:
                self._by_index[index] = call
        if identity and not call.identity:
            call.identity = self._room.take(identity)
            self._by_id[identity] = call
        call.is_custom = call.is_custom or bool(custom)
        call.name = call.name or self._room.take(name)  # some servers repeat it in every fragment
        call.signature = call.signature or self._room.take(_signature(fragment))
        if arguments is not None:
            call.arguments.append(self._room.take(arguments))

    def whole(self) -> tuple[ToolCall, ...]:
        """All calls. Raises as `checked_calls`."""
        return checked_calls([(call.identity, call.name, call.whole_arguments()) for call in self._calls])

    def signature_blocks(self, whole: Sequence[ToolCall]) -> tuple[JsonObject, ...]:
        """What Gemini requires with its calls, given `whole`, in the next request: their signatures."""
        return tuple(
            {"type": SIGNATURE, "id": each.id, "signature": call.signature}
            for call, each in zip(self._calls, whole, strict=True)
            if call.signature
        )

    def _continued(
        self, index: int | str | None, identity: str, name: str, arguments: str | None
    ) -> _CallInParts | None:
        """The call that a fragment continues, or None when it begins a new one."""
        call = self._by_index.get(index)
        if identity in self._by_id:
            if call is not None and call.identity == identity:
                return call
            is_new = index is not None and call is None and name
            return None if is_new else self._by_id[identity]
        if call is None:
            return self._calls[-1] if self._calls and not name and not identity else None
        return None if name and _is_another(call, identity, arguments) else call


def _is_another(call: _CallInParts, identity: str, arguments: str | None) -> bool:
    """Whether a fragment that names a function, with the index of `call`, is a new call.

    It is if its id differs. Without ids, it is if it has arguments and those of `call` are already complete.
    """
    if identity and call.identity:
        return True
    return bool(arguments) and call.has_whole_arguments()


def embeddings_of(answer: Any, count: int, label: str) -> Embedded:
    """A vector for each of `count` texts. Raises `ProviderDown` for any other answer, or if their dimensions differ."""
    items = [fields_of(item) for item in list_of(fields_of(answer).get("data"))]
    indexes = [item.get("index", at) for at, item in enumerate(items)]
    if sorted(index for index in indexes if type(index) is int) != list(range(count)) or len(items) != count:
        raise unusable_answer(label, f"it has other vectors than one for each of {count} texts", 200)
    rows = [
        list_of(item.get("embedding")) for _, item in sorted(zip(indexes, items, strict=True), key=lambda pair: pair[0])
    ]
    if {len(row) for row in rows} - set(range(1, MOST_DIMENSIONS + 1)) or len({len(row) for row in rows}) != 1:
        raise unusable_answer(label, f"its vectors have not all the same 1 to {MOST_DIMENSIONS} dimensions", 200)
    if not all(type(value) in (float, int) for row in rows for value in row):
        raise unusable_answer(label, "its vectors are not made of numbers", 200)
    with np.errstate(all="ignore"):
        try:
            vectors = np.array(rows, np.float64).astype(np.float32)
        except OverflowError as error:
            raise unusable_answer(label, "its vectors are not made of numbers", 200) from error
    usage = fields_of(fields_of(answer).get("usage"))
    return Embedded(vectors, token_count(usage.get("prompt_tokens", usage.get("total_tokens"))))
