"""Turns that were had elsewhere as rows to add to a session: counted, and written as JSON for the database."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import orjson

from app.domain.content import bytea_json, canonical_json, sha256_hex, tool_call_json
from app.domain.stored import JsonText, NewHistory
from app.domain.types import JsonObject, TurnId, TurnStatus
from app.engine.messages.tokens import message_tokens
from app.engine.recall.index import packed_terms
from app.openai.chat_messages import IncomingMessage, IncomingTurn
from app.services.heavy.child import Tools

BATCH_ROWS = 100
BATCH_BYTES = 128 * 1024
"""After so much a statement ends: who sends it, and who parses it, is held up by no more than that and a row."""
_UNANSWERED: JsonObject = {
    "code": "turn_cancelled",
    "detail": "The turn came from elsewhere without a final answer; the message is kept.",
}


def drafted(tools: Tools, encoding: str, model_alias: str, turns: Sequence[IncomingTurn]) -> NewHistory:
    """The turns with their ids and the counts of their messages, for one statement. CPU-bound.

    The last turn may have open tool calls: it is drafted as `awaiting_tools`. Pairing has been checked.
    """
    history = _Draft()
    for turn in turns:
        history.add(tools, encoding, model_alias, turn)
    return history.ended()


def drafted_in_batches(
    tools: Tools, encoding: str, model_alias: str, turns: Sequence[IncomingTurn]
) -> Generator[NewHistory]:
    """The same for as many statements as it takes, each to be run after the one before."""
    history = _Draft()
    for turn in turns:
        history.add(tools, encoding, model_alias, turn)
        if len(history.messages) >= BATCH_ROWS or history.size >= BATCH_BYTES:
            yield history.ended()
            history = _Draft()
    if history.turns:
        yield history.ended()


def json_text(rows: Sequence[bytes]) -> JsonText:
    """The list of these rows, each of which is JSON already."""
    return JsonText((b"[" + b",".join(rows) + b"]").decode())


class _Draft:
    """What one statement stores; numbers count from 1 in it."""

    def __init__(self) -> None:
        self.turns: list[bytes] = []
        self.messages: list[bytes] = []
        self.size = 0
        self._last_id: TurnId | None = None

    def add(self, tools: Tools, encoding: str, model_alias: str, turn: IncomingTurn) -> None:
        self._last_id = TurnId(tools.new_id())
        row = orjson.dumps(_turn_row(self._last_id, len(self.turns) + 1, turn, model_alias))
        self.turns.append(row)
        self.size += len(row)
        for said in turn.messages:
            message = _message_row(tools, encoding, said)
            row = orjson.dumps({**message, "turn_id": self._last_id, "seq": len(self.messages) + 1})
            self.messages.append(row)
            self.size += len(row)

    def ended(self) -> NewHistory:
        return NewHistory(
            json_text(self.turns), json_text(self.messages), len(self.turns), len(self.messages), self._last_id
        )


def _turn_row(turn_id: TurnId, seq: int, turn: IncomingTurn, model_alias: str) -> JsonObject:
    output = turn.assistant_output
    status = TurnStatus.COMPLETED if output is not None else TurnStatus.CANCELLED
    if turn.open_calls:
        status = TurnStatus.AWAITING_TOOLS
    return {
        "id": turn_id,
        "seq": seq,
        "status": status.value,
        "user_input": turn.user_input,
        "assistant_output": output,
        "error": _UNANSWERED if status is TurnStatus.CANCELLED else None,
        "model_alias": model_alias,
        "finish_reason": {TurnStatus.COMPLETED: "stop", TurnStatus.AWAITING_TOOLS: "tool_calls"}.get(status),
        # No request asked for it here; the column tells two requests apart.
        "request_sha256": sha256_hex(canonical_json([turn.user_input, output])),
    }


def _message_row(tools: Tools, encoding: str, said: IncomingMessage) -> JsonObject:
    tokens, used = tools.tokenizers.count_with(
        encoding,
        lambda estimate: message_tokens(
            said.content, estimate, tool_calls=said.tool_calls, tool_call_id=said.tool_call_id
        ),
    )
    return {
        "id": tools.new_id(),
        "role": said.role,
        "content": said.content,
        "tool_calls": [tool_call_json(call) for call in said.tool_calls] or None,
        "tool_call_id": said.tool_call_id,
        "token_estimate": tokens,
        "token_encoding": used,
        "terms": bytea_json(packed_terms(said.role, said.content, has_calls=bool(said.tool_calls))),
    }
