"""The chunks of a streamed chat completion -> deltas and one `Completion`.

Servers differ most in tool calls: fragments by index, fragments without an index or an id, an id in every fragment,
whole calls at once, several whole calls under one index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.domain.types import Completion, Delta, Usage
from app.providers.failures import ErrorObject, error_object
from app.providers.openai_wire import content_of, finish_reason, read_usage, tool_call
from app.providers.sse import Event
from app.providers.streaming import StreamedError, TextFlow
from app.providers.wire import MalformedAnswerError, fields_of, items_of, json_text, parse_json, storable


class ChatAssembly:
    """Puts one answer together. See `app.providers.streaming.Assembly`."""

    def __init__(self) -> None:
        self.has_finish = False
        self.is_over = False
        self._has_choice = False
        self._text = TextFlow()
        self._reasoning = TextFlow()
        self._calls = _CallFragments()
        self._finish: Any = None
        self._usage: Usage | None = None
        self._model: str | None = None

    def read(self, event: Event) -> Delta:
        """Takes the next chunk; raises `StreamedError` or `MalformedAnswerError`."""
        if event.data.strip() == b"[DONE]":
            self.is_over = True
            return Delta()
        if not event.data.strip():
            return Delta()
        chunk = _parsed(event)
        self._usage = read_usage(chunk.get("usage")) or self._usage
        if isinstance(chunk.get("model"), str):
            self._model = chunk["model"] or self._model
        choice = next((fields_of(found) for found in items_of(chunk.get("choices"))), None)
        if choice is None or choice.get("index") not in {None, 0}:
            return Delta()
        self._has_choice = True
        self._finish = choice.get("finish_reason") or self._finish
        self.has_finish = self._finish is not None
        return self._grown(fields_of(choice.get("delta") or choice.get("message")))

    def rest(self) -> Delta:
        return Delta(self._text.rest(), self._reasoning.rest())

    def completion(self, *, attempts: int) -> Completion:
        """The whole answer; raises `MalformedAnswerError`."""
        if not self._has_choice:
            raise MalformedAnswerError("the stream carries no choices")
        calls = tuple(tool_call(call, position) for position, call in enumerate(self._calls.whole()))
        return Completion(
            text=self._text.text or (None if calls else ""),
            finish_reason=finish_reason(self._finish, called_tools=bool(calls)),
            usage=self._usage,
            tool_calls=calls,
            reasoning=self._reasoning.text or None,
            provider_model=storable(self._model) if self._model else None,
            attempts=attempts,
        )

    def _grown(self, delta: dict[str, Any]) -> Delta:
        text, thought = content_of(delta.get("content"))
        if not text and isinstance(delta.get("refusal"), str):
            text = delta["refusal"]
        for name in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str) and delta[name]:
                thought = delta[name]
                break
        for fragment in items_of(delta.get("tool_calls")):
            self._calls.add(fields_of(fragment))
        return Delta(self._text.add(text), self._reasoning.add(thought))


def _parsed(event: Event) -> dict[str, Any]:
    chunk = parse_json(event.data)
    error = error_object(chunk)
    if error is None and event.name == "error":
        error = ErrorObject()
    if error is not None:
        raise StreamedError(error)
    if not isinstance(chunk, dict):
        raise MalformedAnswerError("a chunk of it is not a JSON object")
    fields = fields_of(chunk)
    if any(fields_of(choice).get("finish_reason") == "error" for choice in items_of(fields.get("choices"))):
        raise StreamedError(ErrorObject())
    return fields


@dataclass(slots=True)
class _CallInParts:
    index: Any
    identity: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def add(self, fragment: dict[str, Any]) -> None:
        function = fields_of(fragment.get("function"))
        identity, name, arguments = fragment.get("id"), function.get("name"), function.get("arguments")
        if isinstance(identity, str) and not self.identity:
            self.identity = identity
        if isinstance(name, str) and not self.name:
            self.name = name  # some servers repeat it in every fragment
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments.append(json_text(arguments))


class _CallFragments:
    """Tool calls as they arrive, in the order of their first fragments."""

    def __init__(self) -> None:
        self._calls: list[_CallInParts] = []

    def add(self, fragment: dict[str, Any]) -> None:
        call = self._continued(fragment)
        if call is None:
            call = _CallInParts(fragment.get("index"))
            self._calls.append(call)
        call.add(fragment)

    def whole(self) -> list[dict[str, Any]]:
        """The calls in the form in which a plain answer carries them."""
        return [
            {"id": call.identity, "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for call in self._calls
        ]

    def _continued(self, fragment: dict[str, Any]) -> _CallInParts | None:
        """The call that a fragment goes on with, newest first, or None when it begins one.

        Servers that send whole calls may number them all 0: `_is_another` tells. Without an index, a known id, or else
        the absence of a name, tells that it goes on.
        """
        index, identity = fragment.get("index"), fragment.get("id")
        begins = bool(fields_of(fragment.get("function")).get("name"))
        for call in reversed(self._calls):
            if identity and call.identity == identity:
                return call
            if index is None:
                continue
            if call.index == index:
                return None if begins and _is_another(call, fragment) else call
        if index is None and not begins and self._calls and not identity:
            return self._calls[-1]
        return None


def _is_another(call: _CallInParts, fragment: dict[str, Any]) -> bool:
    """Whether a fragment that names a function, under the index of `call`, is a call of its own.

    It is when its id is another. Without ids, when it brings arguments and those of `call` are already whole.
    """
    if fragment.get("id") and call.identity:
        return True
    if not fields_of(fragment.get("function")).get("arguments") or not call.arguments:
        return False
    try:
        return isinstance(parse_json("".join(call.arguments).encode("utf-8", "replace")), dict)
    except MalformedAnswerError:
        return False
