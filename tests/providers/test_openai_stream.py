"""Streamed chat completions against real sockets: deltas, tool calls in fragments, and every way a stream can break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.domain.errors import (
    ProviderDown,
    ProviderOutOfQuota,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
)
from app.domain.types import Completion, CompletionRequest, Delta, ToolCall, Usage
from app.providers.openai_answer import ChatAssembly
from app.providers.stream import MOST_STREAM_BYTES, DeltaTap, read_stream
from app.providers.wire import MalformedAnswerError

from .asking import OK, PROMPT, REQUEST, chat, failure_of, provider_at, settled, streamed
from .server import Answer, Raw, Reset, Step, Stream, serving
from .wires import Waits

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({"id": "c1", "model": "served-model", "choices": [choice], "usage": None, **fields})


def text(piece: str) -> bytes:
    return chunk({"content": piece})


STOP = chunk(finish="stop")
USED = event({"model": "served-model", "choices": [], "usage": USAGE})
HELLO = (chunk({"role": "assistant", "content": ""}), text("Hel"), text("lo."), STOP, USED, DONE)


async def test_a_stream_becomes_deltas_and_the_whole_answer() -> None:
    answer, deltas, server = await streamed(Stream(HELLO))
    assert deltas == [Delta("Hel"), Delta("lo.")]
    assert answer == Completion(
        text="Hello.", finish_reason="stop", usage=Usage(11, 3, 4), provider_model="served-model", attempts=1
    )
    (seen,) = server.seen
    assert (seen.json["stream"], seen.json["stream_options"]) == (True, {"include_usage": True})


async def test_a_plain_request_says_nothing_of_streams() -> None:
    async with serving(OK) as server, provider_at(server.base_url) as adapter:
        await adapter.complete(REQUEST)
    assert not {"stream", "stream_options"}.intersection(server.seen[0].json)


async def test_deltas_arrive_while_the_model_still_writes() -> None:
    received: list[tuple[Delta, int]] = []
    async with serving(Stream(HELLO, pause_s=0.05)) as server, provider_at(server.base_url) as adapter:
        await adapter.complete(REQUEST, lambda delta: received.append((delta, server.pieces_sent)))
    assert [(delta.text, sent < len(HELLO)) for delta, sent in received] == [("Hel", True), ("lo.", True)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_it_does_not_matter_where_the_bytes_are_cut(size: int) -> None:
    whole = b"".join((b": hi\n\n", text("naïve "), chunk({"reasoning": "why 😀"}), text("😀."), STOP, USED, DONE))
    whole = whole.decode().replace("\n", "\r\n").encode()
    pieces = [whole[place : place + size] for place in range(0, len(whole), size)]
    answer, _, _ = await streamed(Stream(pieces))
    assert (answer.text, answer.reasoning, answer.usage) == ("naïve 😀.", "why 😀", Usage(11, 3, 4))


async def test_raw_utf8_may_be_cut_inside_a_character() -> None:
    raw = 'data: {"choices": [{"delta": {"content": "é😀"}, "finish_reason": "stop"}]}\n\n'.encode()
    place = raw.index("😀".encode()) + 2
    answer, _, _ = await streamed(Stream([raw[:place], raw[place:]]))
    assert answer.text == "é😀"


async def test_nul_and_lone_surrogates_are_replaced_and_a_pair_in_two_fragments_is_one_character() -> None:
    pieces = [
        b'data: {"choices": [{"delta": {"content": "a\\u0000b\\ud83d"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "\\ude00c\\udc00d"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "e\\ud800", "reasoning_content": "\\ud800"}}]}\n\n',
        STOP,
        DONE,
    ]
    answer, _, _ = await streamed(Stream(pieces))
    assert answer.text == "a\ufffdb😀c\ufffdde\ufffd"
    assert answer.reasoning == "\ufffd"


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"reasoning_content": "why", "content": None}, Delta(reasoning="why")),
        ({"reasoning": "why"}, Delta(reasoning="why")),
        ({"reasoning": "why", "reasoning_content": "why"}, Delta(reasoning="why")),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}]}, Delta(reasoning="why")),
        ({"content": [{"type": "text", "text": "so"}]}, Delta("so")),
        ({"refusal": "I will not."}, Delta("I will not.", is_refusal=True)),
    ],
)
async def test_reasoning_and_refusals_come_under_many_names(delta: dict[str, Any], expected: Delta) -> None:
    _, deltas, _ = await streamed(Stream((chunk(delta), STOP, DONE)))
    assert deltas == [expected]


async def test_a_refusal_is_told_from_an_answer_that_one_follows() -> None:
    refused, deltas, _ = await streamed(Stream((chunk({"refusal": "I will "}), chunk({"refusal": "not."}), STOP, DONE)))
    assert (refused.text, refused.finish_reason) == ("I will not.", "refusal")
    assert all(delta.is_refusal for delta in deltas)
    answer, deltas, _ = await streamed(Stream((text("Yes. "), chunk({"refusal": "No."}), STOP, DONE)))
    assert (answer.text, answer.finish_reason) == ("Yes. No.", "stop")
    assert not any(delta.is_refusal for delta in deltas)


def call(index: int | None, arguments: Any = None, *, name: str | None = None, identity: str | None = None) -> bytes:
    fragment: dict[str, Any] = {"function": {"arguments": arguments}}
    fragment |= {} if index is None else {"index": index}
    fragment |= {} if identity is None else {"id": identity, "type": "function"}
    if name is not None:
        fragment["function"]["name"] = name
    return chunk({"tool_calls": [fragment]})


TWO = (ToolCall("t1", "f", '{"a": 1}'), ToolCall("t2", "g", '{"b": 2}'))
WHOLE = [
    {"index": n, "id": made.id, "function": {"name": made.name, "arguments": made.arguments}}
    for n, made in enumerate(TWO)
]
FRAGMENTS: dict[str, Sequence[bytes]] = {
    "one after the other, the id only at first": (
        call(0, "", name="f", identity="t1"),
        call(0, '{"a"'),
        call(0, ": 1}"),
        call(1, "", name="g", identity="t2"),
        call(1, '{"b": 2}'),
    ),
    "interleaved": (
        call(0, None, name="f", identity="t1"),
        call(1, None, name="g", identity="t2"),
        call(1, '{"b": '),
        call(0, '{"a": '),
        call(1, "2}"),
        call(0, "1}"),
    ),
    "id and name in every fragment": (
        call(0, '{"a": ', name="f", identity="t1"),
        call(0, "1}", name="f", identity="t1"),
        call(1, '{"b": 2}', name="g", identity="t2"),
    ),
    "empty ids in later fragments": (
        call(0, '{"a": ', name="f", identity="t1"),
        call(0, "1}", name="", identity=""),
        call(1, '{"b": 2}', name="g", identity="t2"),
    ),
    "no index": (
        call(None, '{"a": ', name="f", identity="t1"),
        call(None, "1}"),
        call(None, '{"b": ', name="g", identity="t2"),
        call(None, "2}", identity="t2"),
    ),
    "whole calls at once": (chunk({"tool_calls": WHOLE}),),
    "whole calls, all numbered 0": (
        call(0, '{"a": 1}', name="f", identity="t1"),
        call(0, '{"b": 2}', name="g", identity="t2"),
    ),
    "the argument object itself": (
        call(0, {"a": 1}, name="f", identity="t1"),
        call(1, {"b": 2}, name="g", identity="t2"),
    ),
}


@pytest.mark.parametrize("fragments", FRAGMENTS.values(), ids=FRAGMENTS.keys())
async def test_parallel_tool_calls_are_put_together(fragments: Sequence[bytes]) -> None:
    answer, deltas, _ = await streamed(Stream((*fragments, chunk(finish="tool_calls"), DONE)))
    assert (answer.tool_calls, answer.text, answer.finish_reason) == (TWO, None, "tool_calls")
    assert deltas == []


async def test_tool_calls_without_ids_or_arguments_get_both() -> None:
    fragments = (call(0, '{"a": 1}', name="f"), call(0, '{"a": 2}', name="f"), call(1, name="g"))
    answer, _, _ = await streamed(Stream((*fragments, STOP, DONE)))
    assert [(made.name, made.arguments) for made in answer.tool_calls] == [
        ("f", '{"a": 1}'),
        ("f", '{"a": 2}'),
        ("g", "{}"),
    ]
    assert len({made.id for made in answer.tool_calls} - {""}) == 3
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("names", [("f", None, None), ("f", "f", "f")], ids=["named once", "named in every fragment"])
async def test_the_call_of_an_older_server_is_a_tool_call(names: Sequence[str | None]) -> None:
    parts = ("", '{"a": ', "1}")
    fragments = [
        chunk({"function_call": {"name": name, "arguments": part}}) for name, part in zip(names, parts, strict=True)
    ]
    answer, deltas, _ = await streamed(Stream((*fragments, chunk(finish="function_call"), DONE)))
    (made,) = answer.tool_calls
    assert (made.name, made.arguments, answer.text, answer.finish_reason) == ("f", '{"a": 1}', None, "tool_calls")
    assert made.id
    assert deltas == []


@pytest.mark.parametrize("has_id", [True, False], ids=["the id in every fragment", "the id only at first"])
async def test_parallel_calls_with_one_id_are_told_apart_by_their_index(has_id: bool) -> None:
    later = "same" if has_id else None
    fragments = (
        call(0, "", name="f", identity="same"),
        call(0, '{"a": ', identity=later),
        call(1, "", name="g", identity="same"),
        call(0, "1}", identity=later),
        call(1, '{"b": 2}', identity=later),
    )
    answer, _, _ = await streamed(Stream((*fragments, STOP, DONE)))
    assert [(made.name, made.arguments) for made in answer.tool_calls] == [("f", '{"a": 1}'), ("g", '{"b": 2}')]


async def test_length_is_an_honest_answer() -> None:
    answer, _, _ = await streamed(Stream((text("Hel"), chunk(finish="length"), DONE)))
    assert (answer.text, answer.finish_reason, answer.usage) == ("Hel", "length", None)


@pytest.mark.parametrize(
    "stream",
    [
        Stream((text("Hi"), STOP)),
        Stream((text("Hi"), STOP, USED)),
        Stream((text("Hi"), STOP), ending="cut"),
        Stream((text("Hi"), STOP, b'data: {"choi'), ending="cut"),
        Stream((text("Hi"), STOP, b'data: {"choi')),
        Stream((text("Hi"), DONE)),
        Stream((text("Hi"), STOP, DONE, b"data: garbage\n\n")),
        Stream((text("Hi"), STOP, DONE), ending="open"),
        Stream((text("Hi"), STOP, DONE[:-2])),
        Stream((text("Hi"), STOP, DONE), content_type="text/plain"),
        Stream((text("Hi"), STOP, DONE), content_type=None),
    ],
)
async def test_a_stream_whose_model_stated_that_it_stopped_is_whole_however_it_ends(stream: Stream) -> None:
    begun = asyncio.get_running_loop().time()
    answer, _, server = await streamed(stream)
    assert (answer.text, answer.attempts, server.hits) == ("Hi", 1, 1)
    assert asyncio.get_running_loop().time() - begun < 20


async def test_a_finished_stream_that_lingers_is_not_waited_for_until_the_deadline() -> None:
    begun = asyncio.get_running_loop().time()
    answer, _, _ = await streamed(Stream((text("Hi"), STOP), ending="open"), timeout_s=60.0)
    assert answer.text == "Hi"
    assert asyncio.get_running_loop().time() - begun < 30


async def test_a_finished_stream_that_lingers_at_the_deadline_is_a_whole_answer() -> None:
    answer, _, _ = await streamed(Stream((text("Hi"), STOP), ending="open"), timeout_s=2.0)
    assert (answer.text, answer.finish_reason) == ("Hi", "stop")


async def test_a_server_that_does_not_stream_gives_its_answer_at_once() -> None:
    answer, deltas, _ = await streamed(Answer(chat({"content": "Hello.", "reasoning": "why"})))
    assert (answer.text, deltas) == ("Hello.", [Delta("Hello.", "why")])


BROKEN: list[tuple[Step, type[Exception]]] = [
    (Stream((text("Hel"),)), ProviderDown),
    (Stream((text("Hel"),), ending="cut"), ProviderDown),
    (Stream((text("Hel"), b'data: {"choices": [{"del')), ProviderDown),
    (Stream((text("Hel"), b"data: not json\n\n", STOP, DONE)), ProviderDown),
    (Stream((text("Hel"), event({"error": {"message": PROMPT, "type": "server_error"}}))), ProviderDown),
    (Stream((text("Hel"), b"event: error\ndata: {}\n\n", STOP, DONE)), ProviderDown),
    (Stream((text("Hel"), chunk(finish="error"), DONE)), ProviderDown),
    (Stream((text("Hel"), event({"error": {"code": 429, "message": PROMPT}}))), ProviderRateLimited),
    (Stream((text("Hel"), event({"error": {"code": "invalid_request_error"}}))), ProviderRefused),
    (Stream((text("Hel"), event({"error": {"code": "context_length_exceeded"}}))), ProviderOverflow),
    (Stream((text("Hel"), text("x" * 3)), pause_s=30), ProviderTimeout),
]


@pytest.mark.parametrize(("step", "expected"), BROKEN)
async def test_a_stream_that_breaks_after_its_first_delta_is_not_called_again_and_carries_what_had_come(
    step: Step, expected: type[Exception]
) -> None:
    deltas: list[Delta] = []
    error = await failure_of(step, Stream(HELLO), hits=1, on_delta=deltas.append, timeout_s=2.0)
    assert type(error) is expected
    assert deltas[0] == Delta("Hel")
    assert error.partial == "Hel"
    assert "partial" not in error.members()
    assert "Hel" not in str(error.stored())


async def test_after_reasoning_alone_the_partial_text_is_empty_and_nothing_is_called_again() -> None:
    error = await failure_of(Stream((chunk({"reasoning": "hm"}),)), Stream(HELLO), hits=1, on_delta=lambda _: None)
    assert error.partial == ""


@pytest.mark.parametrize(
    "fault",
    [
        Reset(),
        Raw(b"SSH-2.0\r\n\r\n"),
        Answer({}, 503),
        Stream(()),
        Stream((chunk({"role": "assistant"}),), ending="cut"),
        Stream((call(0, '{"a', name="f", identity="t1"),), ending="cut"),
        Stream((event({"error": {"message": "Overloaded", "type": "overloaded_error"}}),)),
    ],
)
async def test_a_stream_that_breaks_before_its_first_delta_is_called_again(fault: Step) -> None:
    waits = Waits()
    answer, deltas, server = await streamed(fault, fault, Stream(HELLO), sleep=waits)
    assert (answer.text, answer.attempts, server.hits) == ("Hello.", 3, 3)
    assert waits.waits_s == [0.5, 1.0]
    assert len(deltas) == 2


async def test_a_server_that_streams_nothing_is_called_without_a_stream_and_then_reports_the_overflow() -> None:
    """As llama-cpp-python 0.3.36 does: its 200 is out before it counts the prompt, and its stream ends empty."""
    sentence = (
        "This model's maximum context length is 4096 tokens. However, you requested 6090 tokens (6010 in the messages, "
        "80 in the completion). Please reduce the length of the messages or completion."
    )
    received = {
        "message": sentence,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    deltas: list[Delta] = []
    async with serving(Stream(()), Answer({"error": received}, 400)) as server, provider_at(server.base_url) as adapter:
        with pytest.raises(ProviderOverflow) as raised:
            await adapter.complete(REQUEST, deltas.append)
    error = raised.value
    stated = error.stated
    assert (stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens) == (4096, 6090, 6010)
    assert [seen.json.get("stream", False) for seen in server.seen] == [True, False]
    assert deltas == []


@pytest.mark.parametrize("content_type", ["application/json", None])
async def test_after_an_empty_stream_a_plain_answer_is_one_delta(content_type: str | None) -> None:
    answer, deltas, server = await streamed(Stream(()), Answer(OK.body, content_type=content_type))
    assert (answer.text, deltas, server.hits) == ("Hello.", [Delta("Hello.")], 2)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Answer({"error": {"message": PROMPT}}, 401), ProviderRefused),
        (Answer({"error": {"message": PROMPT}}, 400), ProviderRefused),
        (Stream((event({"error": {"code": "insufficient_quota"}}),)), ProviderOutOfQuota),
        (Stream((event({"error": {"code": "context_length_exceeded"}}),)), ProviderOverflow),
        (Stream((b"data: []\n\n",)), ProviderDown),
        (Stream((DONE,)), ProviderDown),
        (Stream((b"data: " + b"x" * 64, b"\n\n")), ProviderDown),
        (Answer(b"<html>", content_type="text/html"), ProviderDown),
    ],
)
async def test_a_failure_that_a_retry_cannot_fix_is_not_retried(step: Step, expected: type[Exception]) -> None:
    error = await failure_of(step, Stream(HELLO), hits=1, on_delta=lambda _: None)
    assert type(error) is expected
    assert error.partial is None


async def test_a_stream_of_any_length_does_not_fill_the_memory() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield text("x" * 1_000_000)

    tap = DeltaTap(lambda _: None)
    with pytest.raises(MalformedAnswerError):
        await read_stream(endless(), ChatAssembly(), tap)
    assert 0 < len(tap.partial or "") <= MOST_STREAM_BYTES


async def test_a_server_that_refuses_stream_options_is_called_without_and_that_is_remembered() -> None:
    refusals = [
        {"error": {"message": "Unrecognized request argument supplied: stream_options"}},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]},
    ]
    for refusal in refusals:
        async with serving(Answer(refusal, 400), Stream(HELLO)) as server, provider_at(server.base_url) as adapter:
            first = await adapter.complete(REQUEST, lambda _: None)
            await adapter.complete(REQUEST, lambda _: None)
        assert ["stream_options" in seen.json for seen in server.seen] == [True, False, False]
        assert first.attempts == 2


async def test_a_cancelled_stream_closes_its_connection() -> None:
    async with serving(Stream((text("Hel"),), ending="open")) as server, provider_at(server.base_url) as adapter:
        first = asyncio.Event()
        question = asyncio.ensure_future(adapter.complete(REQUEST, lambda _: first.set()))
        await first.wait()
        assert server.open_connections == 1
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        await settled(server)


async def test_a_sink_that_fails_ends_the_call_and_closes_its_connection() -> None:
    def sink(_: Delta) -> None:
        raise TimeoutError("the sink's own")

    async with serving(Stream((text("Hel"),), ending="open")) as server, provider_at(server.base_url) as adapter:
        with pytest.raises(TimeoutError, match="the sink's own"):
            await adapter.complete(REQUEST, sink)
        await settled(server)
    assert server.hits == 1


async def test_streams_one_after_the_other_share_a_connection() -> None:
    async with serving(Stream(HELLO)) as server, provider_at(server.base_url) as adapter:
        for _ in range(5):
            await adapter.complete(REQUEST, lambda _: None)
    assert (server.hits, server.connections) == (5, 1)


async def test_reasoning_fields_of_other_apis_are_not_sent() -> None:
    message = {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_blocks": [{"type": "thinking"}]}
    request = CompletionRequest(messages=[message, {"role": "user", "content": "y"}], max_output_tokens=5)
    _, _, server = await streamed(Stream(HELLO), request=request)
    assert server.seen[0].json["messages"][0] == {"role": "assistant", "content": "x"}


async def test_there_is_no_counting_endpoint() -> None:
    async with serving(OK) as server, provider_at(server.base_url) as adapter:
        assert await adapter.count_tokens(REQUEST) is None
    assert server.hits == 0
