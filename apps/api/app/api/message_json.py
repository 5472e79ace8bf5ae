"""A turn in Anthropic's form: a message, or its stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from app.anthropic.messages import (
    UNSIGNED,
    applied_edits,
    compaction_block,
    reply_blocks,
    stop_reason,
    thinking_blocks,
    usage_json,
)
from app.api.problems import error_json
from app.api.streaming import encoded_event
from app.domain.incoming import Compaction
from app.domain.stored import StoredSummary
from app.domain.types import JsonObject, SessionId, Summary
from app.services.openai.responses import Compacted, shown_text
from app.services.turn.types import TurnEvent, TurnOutcome

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
        return self._message(
            outcome.turn.model_alias,
            [
                *self._compaction(outcome.summary, outcome.turn.session_id, outcome.turn.seq),
                *self._thinking(outcome),
                *reply_blocks(outcome.text, outcome.completion.tool_calls),
            ],
            stop_reason(outcome.turn.finish_reason, outcome.completion.tool_calls),
            usage_json(outcome.completion.usage, _estimated(outcome.context)),
            outcome.context,
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
        for block in message["content"]:
            kind = "thinking" if block["type"] == "redacted_thinking" else block["type"]
            if kind not in self._streamed and not (kind == "thinking" and "text" in self._streamed):
                yield from self._block(block)
        yield from self._end(message)

    def compacted(self, made: Compacted) -> JsonObject:
        """The `message` for a request that pauses after its compaction. No model was called to answer it."""
        assert made.summary is not None
        block = compaction_block(made.compaction, shown_text(made.summary))
        return self._message(self.model, [block], "compaction", usage_json(made.usage, 0), {})

    def compacted_events(self, made: Compacted) -> Iterable[bytes]:
        """The `message` of `compacted` as events."""
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

    def _thinking(self, outcome: TurnOutcome) -> list[JsonObject]:
        shown = outcome.completion
        return thinking_blocks(shown.reasoning, shown.reasoning_blocks) if self.with_thinking else []

    def _message(
        self,
        model: str,
        content: list[JsonObject],
        stopped: str | None,
        usage: JsonObject,
        context: JsonObject | None = None,
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
            "stop_sequence": None,
            "usage": usage,
            **(edits if self.with_edits and context is not None else {}),
        }

    def _begin(self, estimated_tokens: int) -> Iterable[bytes]:
        yield _event("message_start", message=self._message(self.model, [], None, usage_json(None, estimated_tokens)))
        yield _event("ping")

    def _end(self, message: JsonObject) -> Iterable[bytes]:
        stopped = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        edits = {name: message[name] for name in ("context_management",) if name in message}
        yield _event("message_delta", delta=stopped, usage=message["usage"], **edits)
        yield _event("message_stop")

    def _grow(self, kind: Literal["thinking", "text"], text: str) -> Iterable[bytes]:
        if self._open != kind:
            yield from self._close()
            yield self._start(kind, {"type": kind})
            self._open = kind
            self._streamed.add(kind)
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _close(self, signature: str = UNSIGNED) -> Iterable[bytes]:
        """Ends the open block, if any."""
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": signature})
        self._open = None
        yield self._stop()

    def _block(self, block: JsonObject) -> Iterable[bytes]:
        yield self._start(block["type"], block)
        match block["type"]:
            case "text" if block["text"]:
                yield self._delta({"type": "text_delta", "text": block["text"]})
            case "thinking":
                yield self._delta({"type": "thinking_delta", "thinking": block["thinking"]})
                yield self._delta({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                yield self._delta({"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()})
            case "compaction":
                shown = {name: block[name] for name in ("content", "encrypted_content")}
                yield self._delta({"type": "compaction_delta", **shown})
            case _:
                pass
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
