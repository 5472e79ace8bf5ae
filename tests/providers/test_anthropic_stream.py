"""Streamed messages: the events of this wire alone, and what gateways make of them."""

from __future__ import annotations

import pytest

from app.domain.errors import ProviderDown
from app.domain.types import Completion, CompletionRequest, Delta, JsonObject, ToolCall, Usage

from .server import Stream, serving
from .wires import ANTHROPIC, ModelReply, block_events, event, message_event

THOUGHT = {"type": "thinking", "thinking": "They ask for both.", "signature": "sig"}
HIDDEN = {"type": "redacted_thinking", "data": "abc"}


async def streamed(*events: bytes) -> tuple[Completion, list[Delta]]:
    deltas: list[Delta] = []
    request = CompletionRequest(messages=[{"role": "user", "content": "Hi"}], max_output_tokens=9)
    async with serving(Stream(events)) as server, ANTHROPIC.provider_at(server.base_url) as provider:
        answer = await provider.complete(request, deltas.append)
    assert server.hits == 1
    return answer, deltas


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
async def test_stop_reasons_are_mapped(reason: str, meant: str) -> None:
    answer, _ = await streamed(*ANTHROPIC.stream(ModelReply(stop=reason)).pieces)
    assert answer.finish_reason == meant


async def test_signed_and_hidden_thoughts_are_kept_as_they_came() -> None:
    thinking = [
        {"type": "thinking_delta", "thinking": "They ask "},
        {"type": "thinking_delta", "thinking": "for both."},
    ]
    answer, deltas = await streamed(
        *ANTHROPIC.begin(),
        *block_events(
            0, {"type": "thinking", "thinking": ""}, [*thinking, {"type": "signature_delta", "signature": "sig"}]
        ),
        *block_events(1, HIDDEN, []),
        *ANTHROPIC.end(ModelReply()),
    )
    assert answer.reasoning_blocks == (THOUGHT, HIDDEN)
    assert answer.reasoning == "They ask for both."
    assert (answer.text, deltas) == ("", [Delta(reasoning="They ask "), Delta(reasoning="for both.")])


async def test_unsigned_thoughts_are_reasoning_but_cannot_be_sent_back() -> None:
    block = {"type": "thinking", "thinking": "Hm."}
    answer, _ = await streamed(*ANTHROPIC.begin(), *block_events(0, block, []), *ANTHROPIC.end(ModelReply()))
    assert (answer.reasoning, answer.reasoning_blocks) == ("Hm.", ())


async def test_a_gateway_that_sends_a_whole_call_or_none_of_its_arguments_is_understood() -> None:
    whole = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    bare: JsonObject = {"type": "tool_use", "id": "t2", "name": "g", "input": {}}
    answer, _ = await streamed(
        *ANTHROPIC.begin(), *block_events(0, whole, []), *block_events(1, bare, []), *ANTHROPIC.end(ModelReply())
    )
    assert answer.tool_calls == (ToolCall("t1", "f", '{"a": 1}'), ToolCall("t2", "g", "{}"))
    assert answer.finish_reason == "tool_calls"


async def test_blocks_that_a_gateway_gives_one_number_are_all_kept() -> None:
    first: JsonObject = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    second: JsonObject = {"type": "tool_use", "id": "t2", "name": "g", "input": {}}
    answer, _ = await streamed(
        *ANTHROPIC.begin(),
        *block_events(0, THOUGHT, []),
        *block_events(0, first, [{"type": "input_json_delta", "partial_json": '{"a": 1}'}]),
        *block_events(0, second, []),
        *ANTHROPIC.end(ModelReply()),
    )
    assert answer.tool_calls == (ToolCall("t1", "f", '{"a": 1}'), ToolCall("t2", "g", "{}"))
    assert answer.reasoning_blocks == (THOUGHT,)


async def test_unknown_additions_to_the_api_are_ignored() -> None:
    answer, _ = await streamed(
        *ANTHROPIC.begin(),
        message_event("something_new", x=1),
        *block_events(0, {"type": "server_tool_use", "id": "s", "name": "search"}, [{"type": "new_delta", "y": 1}]),
        *block_events(1, {"type": "text", "text": "Hel"}, [{"type": "citations_delta", "citation": {}}]),
        *block_events(2, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "lo."}]),
        *ANTHROPIC.end(ModelReply()),
    )
    assert (answer.text, answer.tool_calls) == ("Hello.", ())


async def test_a_gateway_that_counts_the_prompt_only_at_the_end_is_read() -> None:
    usage = {"input_tokens": 90, "cache_read_input_tokens": 10, "output_tokens": 7}
    start: JsonObject = {"model": "m", "content": [], "usage": {"input_tokens": 0, "output_tokens": 0}}
    answer, _ = await streamed(
        message_event("message_start", message=start),
        message_event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage),
        message_event("message_stop"),
    )
    assert answer.usage == Usage(100, 7, cached_prompt_tokens=10)
    assert answer.text == ""


@pytest.mark.parametrize(
    ("begins", "rest", "read"),
    [
        ({"input_tokens": 133, "output_tokens": 0}, 10, 90),  # NVIDIA Dynamo, with its estimate
        # Kimi and Qwen, with the whole prompt
        ({"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}, 10, 90),
        ({"input_tokens": 100, "output_tokens": 0}, 0, 100),
    ],
)
async def test_a_gateway_that_tells_apart_what_it_read_from_its_cache_at_the_end_is_read(
    begins: JsonObject, rest: int, read: int
) -> None:
    usage = {"input_tokens": rest, "cache_read_input_tokens": read, "output_tokens": 7}
    start: JsonObject = {"model": "m", "content": [], "usage": begins}
    answer, _ = await streamed(
        message_event("message_start", message=start),
        message_event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage),
        message_event("message_delta", delta={}, usage={"input_tokens": 0, "output_tokens": 0}),
        message_event("message_stop"),
    )
    assert answer.usage == Usage(100, 7, cached_prompt_tokens=read)


@pytest.mark.parametrize(
    "events",
    [
        (message_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}),),
        (message_event("message_stop"),),
        (event({"type": "message_start", "message": {}}), message_event("message_stop")),
    ],
)
async def test_a_stream_that_is_no_message_is_down(events: tuple[bytes, ...]) -> None:
    with pytest.raises(ProviderDown):
        await streamed(*events)
