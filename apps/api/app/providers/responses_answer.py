"""An answer of OpenAI's Responses API -> `Completion`, whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from app.domain.content import arguments_of, fields_of, storable
from app.domain.types import Completion, Delta, FinishReason, JsonObject
from app.providers.error_object import ErrorObject, error_object
from app.providers.openai_answer import usage_of
from app.providers.stream import Assembly, Event, ReplyRoom, StreamedError, TextFlow
from app.providers.wire import (
    MOST_ITEMS,
    MalformedAnswerError,
    answered_items,
    checked_calls,
    decode_json,
    list_of,
    model_name,
)

REASONING: Final = "reasoning"
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_TEXTS: Final = ("response.output_text.delta", "response.refusal.delta")
_THOUGHTS: Final = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_INPUTS: Final = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_PARAGRAPH: Final = "\n\n"


class ResponseAssembly(Assembly):
    """Reads one response: the deltas of its items as they arrive, and each item once it is done. Other kinds of events
    and items are ignored."""

    reasons = _FINISH_REASONS

    def __init__(self) -> None:
        super().__init__(())
        self._calls: list[tuple[str, str, str]] = []
        self._blocks: list[JsonObject] = []
        self._kept = ReplyRoom()  # what is kept of items may not be what their deltas had
        self._items = 0
        self._in_deltas: set[int | None] = set()
        self._part_of: dict[TextFlow, object] = {}

    def read(self, event: Event) -> Delta:
        if event.data.strip() in (b"", b"[DONE]"):  # gateways end with the mark of chat completions
            return Delta()
        fields = fields_of(decode_json(event.data))
        kind = fields.get("type")
        if kind == "error" or event.name == "error" or fields.get("error"):
            raise StreamedError(error_object(fields) or ErrorObject())
        if kind in _ENDS:
            return self._end(fields_of(fields.get("response")))
        place = _place(fields.get("output_index"))
        if kind == "response.output_item.done":
            return self._take(place, fields_of(fields.get("item")))
        piece = fields.get("delta")
        if not isinstance(piece, str):
            return Delta()
        self._in_deltas.add(place)
        if kind in _INPUTS:
            self._room.take(piece)
        if kind in _TEXTS:
            self._is_refusal = kind == "response.refusal.delta"
            return Delta(self._add(self._text, place, piece), is_refusal=self._is_refusal)
        thought_of = (place, _place(fields.get("summary_index")))
        return Delta(reasoning=self._add(self._reasoning, thought_of, piece)) if kind in _THOUGHTS else Delta()

    def count(self, part: JsonObject) -> None:
        reported = fields_of(part.get("usage"))
        names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
        details = {f"{name}_details": reported.get(f"{own}_details") for name, own in names.items()}
        counts = {name: reported.get(own) for name, own in names.items()}
        self.usage = usage_of({**details, **counts, "total_tokens": reported.get("total_tokens")}) or self.usage

    def read_whole(self, answer: JsonObject) -> None:
        if not isinstance(answer.get("output"), list):
            raise MalformedAnswerError("the response carries no output")
        self._end(answer)

    def completion(self) -> Completion:
        return self._completed(checked_calls(self._calls), tuple(self._blocks))

    def _end(self, response: JsonObject) -> Delta:
        """Takes the response as it ended; of a stream that had no items, with those that it has."""
        self.count(response)
        self._model = model_name(response.get("model"))
        if response.get("status") in ("failed", "cancelled"):
            raise StreamedError(error_object(response) or ErrorObject())
        reason = fields_of(response.get("incomplete_details")).get("reason")
        self._finish = reason or response.get("status") or "completed"
        self._has_begun = self.is_over = True
        if self._items:
            return Delta()
        items = answered_items(response.get("output"), "items")
        deltas = [self._take(place, fields_of(item)) for place, item in enumerate(items)]
        texts, thoughts = ("".join(map(attrgetter(name), deltas)) for name in ("text", "reasoning"))
        return Delta(texts, thoughts, bool(texts) and self._is_refusal)

    def _take(self, place: int | None, item: JsonObject) -> Delta:
        """Takes an item that is done; returns what of it had not come as deltas."""
        self._items += 1
        if self._items > MOST_ITEMS:
            raise MalformedAnswerError(f"it has more than {MOST_ITEMS} items")
        is_new, kind = place not in self._in_deltas, item.get("type")
        if kind == "message" and is_new:
            texts = [self._add(self._text, place, text) for text in _texts(item.get("content"), "text", "refusal")]
            kinds = [fields_of(part).get("type") for part in list_of(item.get("content"))]
            self._is_refusal = "refusal" in kinds
            return Delta("".join(texts), is_refusal=self._is_refusal)
        if kind == REASONING:
            return Delta(reasoning=self._take_reasoning(place, item, is_new=is_new))
        if kind in ("function_call", "custom_tool_call"):
            members = map(item.get, ("call_id", "name", "arguments" if kind == "function_call" else "input"))
            identity, name, text = (self._kept.take(each if isinstance(each, str) else "") for each in members)
            arguments = (text or "{}") if kind == "function_call" else arguments_of(storable(text))
            self._calls.append((identity, name, self._room.take(arguments) if is_new else arguments))
        return Delta()

    def _take_reasoning(self, place: int | None, item: JsonObject, *, is_new: bool) -> str:
        """Keeps an item that the model can be given again: one whose reasoning is with it, encrypted."""
        digests, sealed = _texts(item.get("summary"), "text"), item.get("encrypted_content")
        if isinstance(sealed, str) and all(text == storable(text) for text in (sealed, *digests)):
            kept = {"type": REASONING, "summary": self._kept.take(_PARAGRAPH.join(digests))}
            self._blocks.append({**kept, "encrypted_content": self._room.take(sealed)})
        texts = digests or _texts(item.get("content"), "text")
        if not is_new:
            return ""
        return "".join(self._add(self._reasoning, (place, at), text) for at, text in enumerate(texts))

    def _add(self, flow: TextFlow, part: object, piece: str) -> str:
        """Adds to the text or the reasoning, each part of which is a paragraph."""
        is_next = not flow.is_empty and part != self._part_of.get(flow)
        self._part_of[flow] = part
        return flow.add(f"{_PARAGRAPH}{piece}" if is_next else piece)


def _place(index: Any) -> int | None:
    return index if isinstance(index, int) else None


def _texts(parts: Any, *names: str) -> list[str]:
    """The texts of a list of parts, each under the first of these names that it has."""
    found = (next(filter(None, map(fields_of(part).get, names)), None) for part in answered_items(parts, "parts"))
    return [text for text in found if isinstance(text, str)]
