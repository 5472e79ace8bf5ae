"""Blocks of reasoning that a provider gave, as its model is given them again: whatever form they have."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.types import CompletionRequest, JsonObject

from .asking import answer_to, chat, streamed
from .server import Answer, Stream, serving
from .wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event

_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_STRANGE: list[JsonObject] = [
    {},
    {"type": None},
    {"type": []},
    {"type": {}},
    {"type": "reasoning"},
    {"type": "reasoning", "summary": None},
    {"type": "thought_signature", "id": [], "signature": {}},
    {"type": "thought_signature"},
    {"type": "reasoning.text", "text": 3},
    {"type": "thinking"},
]


def _asked_with(blocks: list[JsonObject]) -> CompletionRequest:
    return CompletionRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_blocks": blocks},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        ],
        max_output_tokens=9,
    )


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
@pytest.mark.parametrize("block", _STRANGE, ids=str)
async def test_blocks_of_an_imported_session_may_have_any_form(wire: Wire, block: JsonObject) -> None:
    parameters: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if wire is ANTHROPIC else {}
    reply = wire.whole(ModelReply())
    async with serving(reply) as server, wire.provider_at(server.base_url, parameters=parameters) as provider:
        answer = await provider.complete(_asked_with([block]))
    assert (answer.text, server.hits) == ("Hello.", 1)


@pytest.mark.parametrize("kind", [None, [], {}, 3, "reasoning.other"], ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_details_of_a_type_that_is_none_are_no_blocks(kind: object, *, stream: bool) -> None:
    details = {"reasoning_details": [{"type": kind, "text": "Hm."}]}
    if stream:
        chunk = event({"choices": [{"index": 0, "delta": details}]})
        answer, _, _ = await streamed(
            Stream((chunk, *OPENAI.stream(ModelReply()).pieces)), return_reasoning="signatures"
        )
    else:
        message = {"role": "assistant", "content": "Hello.", **details}
        answer, _ = await answer_to(Answer(chat(message)), return_reasoning="signatures")
    assert (answer.text, answer.reasoning, answer.reasoning_blocks) == ("Hello.", "Hm.", ())
