"""Whatever a provider answers: an end as documented, within bounds, with other tasks running meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import sys
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from app.domain.errors import ProviderDown, ProviderError, ProviderRateLimited, ProviderRefused
from app.domain.types import Delta
from app.providers import remote
from app.providers.anthropic_answer import MessageAssembly
from app.providers.openai_answer import ChatAssembly
from app.providers.responses_answer import ResponseAssembly
from app.providers.stream import MOST_EVENTS, MOST_SILENT_BYTES, Assembly, DeltaTap, TextFlow, read_stream
from app.providers.transport import MOST_ANSWER_BYTES
from app.providers.wire import (
    MOST_JSON_MARKS,
    MOST_NESTING,
    MOST_REPLY_CHARS,
    MOST_SLOW_JSON_BYTES,
    MOST_TOOL_CALLS,
    MalformedAnswerError,
    decode_json,
    json_bytes,
)

from .asking import REQUEST, answer_to, chat, failure_of, streamed
from .hostile import HOSTILE, Hostile
from .playing import threaded_serving
from .server import Answer, Stream
from .wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event, response_event


def to_nobody(_: Delta) -> None:
    """What is streamed is not looked at."""


_DEADLINE_S = 600.0
"""Longer than a busy machine takes for what needs 2 s of CPU while its memory is traced: once it took 60 s."""
_SHORT_DEADLINE_S = 1.0
_MOST_PEAK_BYTES = 128 * 1024 * 1024
_ASSEMBLIES: dict[str, Callable[[], Assembly]] = {
    "openai": ChatAssembly,
    "anthropic": MessageAssembly,
    "responses": ResponseAssembly,
}


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
async def test_a_hostile_answer_ends_as_documented_in_bounded_memory(hostile: Hostile) -> None:
    deadline_s = _SHORT_DEADLINE_S if hostile.or_late else _DEADLINE_S
    code: str | None = None
    # The server's memory is counted too, but what it sends has been made before.
    with threaded_serving(hostile.step()) as server, _peak() as peak:
        async with hostile.wire.provider_at(server.base_url, timeout_s=deadline_s) as adapter:
            try:
                await adapter.complete(REQUEST, to_nobody if hostile.stream else None)
            except ProviderError as error:
                code = error.code
        assert peak() < _MOST_PEAK_BYTES
    assert code in hostile.codes
    assert server.hits >= 1


@contextmanager
def _peak() -> Generator[Callable[[], int]]:
    """The most memory that Python has held during the block, beyond what it held before."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
def test_there_are_thirty_hostile_answers_on_each_wire(wire: Wire) -> None:
    assert sum(hostile.wire is wire for hostile in HOSTILE) >= 30


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
@pytest.mark.parametrize("flood", [b": a comment\n", b"\n", b"data: {}\n\n", b'data: {"type": "ping"}\n\n'])
async def test_other_tasks_run_for_every_kibibyte_of_a_stream_that_is_all_there(flood: bytes, wire: Wire) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        yield b"".join(
            (*wire.begin(), flood * (65_536 // len(flood)), *wire.fragments(ModelReply()), *wire.end(ModelReply()))
        )

    assert await _beats_during(read_stream(chunks(), _ASSEMBLIES[wire.name](), DeltaTap(to_nobody))) >= 64


async def _beats_during(work: Any) -> int:
    """How often another task ran."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    await work
    beating.cancel()
    return beats


async def test_other_tasks_run_for_every_slice_of_what_decompresses() -> None:
    body = gzip.compress(json_bytes(chat() | {"padding": " " * 3 * 2**20}))
    assert await _beats_during(answer_to(Answer(body, headers={"content-encoding": "gzip"}))) >= 3 * 2**20 // 65_536


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
async def test_a_stream_has_so_many_events_and_no_more(wire: Wire) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        while True:
            yield b"data:{}\n\n" * 8_192 if wire is ANTHROPIC else b"data: \n\n" * 8_192

    with pytest.raises(MalformedAnswerError, match=f"more than {MOST_EVENTS} events"):
        await read_stream(chunks(), _ASSEMBLIES[wire.name](), DeltaTap(to_nobody))


async def test_a_stream_has_so_many_bytes_without_an_event_and_no_more() -> None:
    flood, sent = b": the model is still silent, and so it goes on\n\n", 0

    async def chunks() -> AsyncGenerator[bytes]:
        nonlocal sent
        yield flood * (MOST_SILENT_BYTES // len(flood)) + b"data: \n\n"
        while True:
            yield flood * 1_024
            sent += len(flood) * 1_024

    with pytest.raises(MalformedAnswerError, match="without an event"):
        await read_stream(chunks(), ChatAssembly(), DeltaTap(to_nobody))
    assert MOST_SILENT_BYTES * 0.9 < sent <= MOST_SILENT_BYTES


@pytest.mark.parametrize(
    ("wire", "delta"),
    [
        (OPENAI, event({"choices": [{"delta": {"content": "x"}}]})),
        (OPENAI, event({"choices": [{"delta": {"refusal": "x"}}]})),
        (OPENAI, event({"choices": [{"delta": {"reasoning_content": "x"}}]})),
        (RESPONSES, response_event("output_text.delta", output_index=0, delta="x")),
        (RESPONSES, response_event("refusal.delta", output_index=0, delta="x")),
        (RESPONSES, response_event("reasoning_text.delta", output_index=0, delta="x")),
    ],
)
async def test_the_text_of_a_stream_is_not_joined_for_each_delta(wire: Wire, delta: bytes) -> None:
    """Otherwise the time to read a stream would grow with the square of its deltas."""
    joins = 0
    join = TextFlow.text.fget
    assert join is not None

    def watch(frame: FrameType, event: str, arg: object) -> None:
        nonlocal joins
        joins += event == "call" and frame.f_code is join.__code__

    async def chunks() -> AsyncGenerator[bytes]:
        yield b"".join((*wire.begin(), *wire.fragments(ModelReply("Hello.", "Hm."))))
        yield delta * 1_000
        yield b"".join(wire.end(ModelReply()))

    assembly = _ASSEMBLIES[wire.name]()
    sys.setprofile(watch)
    try:
        await read_stream(chunks(), assembly, DeltaTap(to_nobody))
        of_stream = joins
        assembly.completion()
    finally:
        sys.setprofile(None)
    assert of_stream < 10
    assert joins > of_stream, "the answer is joined once, and that is seen"


@pytest.mark.parametrize("encoding", ["gzip, gzip", "identity, gzip", "br", "zstd", "gzip\r\ncontent-encoding: gzip"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_encoding_that_is_stacked_or_strange_is_refused_unread(encoding: str, *, stream: bool) -> None:
    headers = {"content-encoding": encoding}
    step = Stream(tuple(OPENAI.begin()), headers=headers) if stream else Answer(chat(), headers=headers)
    error = await failure_of(step, hits=1, on_delta=to_nobody if stream else None)
    assert isinstance(error, ProviderDown)
    assert "encoding" in error.detail


async def test_one_layer_of_gzip_or_deflate_is_read_whole_and_streamed() -> None:
    whole = json_bytes(chat())
    for encoding, packed in (("gzip", gzip.compress(whole)), ("deflate", zlib.compress(whole)), ("identity", whole)):
        answer, _ = await answer_to(Answer(packed, headers={"content-encoding": encoding}))
        assert answer.text == "Hello."
    packed = gzip.compress(b"".join(OPENAI.stream(ModelReply()).pieces))
    pieces = [packed[at : at + 1] for at in range(len(packed))]
    answer, _, _ = await streamed(Stream(pieces, headers={"content-encoding": "gzip"}))
    assert answer.text == "Hello."


async def test_what_follows_the_end_of_an_encoding_is_refused() -> None:
    packed = gzip.compress(json_bytes(chat()))
    error = await failure_of(Answer(packed + packed, headers={"content-encoding": "gzip"}), hits=1)
    assert isinstance(error, ProviderDown)


async def test_a_failure_is_reported_by_its_status_however_its_body_is() -> None:
    bomb = gzip.compress(b"x" * (MOST_ANSWER_BYTES + 1))
    for body, encoding in ((bomb, "gzip"), (bomb, "gzip, gzip"), (b"[" * 100_000, "identity")):
        error = await failure_of(Answer(body, 503, {"content-encoding": encoding}), hits=3)
        assert error.status == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_whose_body_never_ends_is_what_its_head_states(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    """It was a timeout, after all the time of the call, and lost the delay that the provider had asked for."""
    monkeypatch.setattr(remote, "_ERROR_WAIT_S", 0.1)
    on_delta = to_nobody if stream else None
    more = {"content-length": "500"}
    refused = await failure_of(Answer(b"{", 401, more), hits=1, on_delta=on_delta)
    assert (type(refused), refused.status) == (ProviderRefused, 401)
    limited = await failure_of(Answer(b"{", 429, {**more, "retry-after": "60"}), hits=1, on_delta=on_delta)
    assert (type(limited), limited.retry_after_s) == (ProviderRateLimited, 60.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_whose_body_breaks_off_is_what_its_head_states(*, stream: bool) -> None:
    """It was a provider that cannot be reached, called again without the delay that it had asked for."""
    on_delta = to_nobody if stream else None
    refused = await failure_of(Answer(chat(), 401, cut_bytes=20), hits=1, on_delta=on_delta)
    assert (type(refused), refused.status) == (ProviderRefused, 401)
    limited = await failure_of(Answer(chat(), 429, {"retry-after": "60"}, cut_bytes=20), hits=1, on_delta=on_delta)
    assert (type(limited), limited.retry_after_s) == (ProviderRateLimited, 60.0)


@pytest.mark.parametrize("mark", list(MOST_JSON_MARKS))
def test_json_has_so_many_values_and_no_more(mark: bytes) -> None:
    most = MOST_JSON_MARKS[mark]
    fitting = json_bytes((mark * most).decode())
    assert decode_json(fitting) == (mark * most).decode()
    with pytest.raises(MalformedAnswerError, match="more than"):
        decode_json(json_bytes((mark * (most + 1)).decode()))


@pytest.mark.parametrize("unreadable", [b"9" * 4_299, b'"\\ud800"', b'"\xff"'])
def test_json_for_the_slower_parser_is_so_long_and_no_longer(unreadable: bytes) -> None:
    """4 MB of integers with thousands of digits held the event loop for 100 ms of its CPU time."""
    fitting = b"[%b]" % b",".join([unreadable] * (MOST_SLOW_JSON_BYTES // (len(unreadable) + 1) // 8))
    decode_json(fitting)
    decode_json(fitting.ljust(MOST_SLOW_JSON_BYTES))
    with pytest.raises(MalformedAnswerError, match="leniently"):
        decode_json(fitting.ljust(MOST_SLOW_JSON_BYTES + 1))
    with pytest.raises(MalformedAnswerError, match="leniently"):
        decode_json(b"[%b]" % b",".join([b"9" * 4_299] * (MOST_ANSWER_BYTES // 4_300)))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("unreadable", [b"1", b'"\\ud800"'])  # the second is read by the slower parser
def test_json_is_nested_so_deep_and_no_deeper(opening: bytes, closing: bytes, unreadable: bytes) -> None:
    decode_json(opening * MOST_NESTING + unreadable + closing * MOST_NESTING)
    with pytest.raises(MalformedAnswerError, match="nested deeper"):
        decode_json(opening * (MOST_NESTING + 1) + unreadable + closing * (MOST_NESTING + 1))


@pytest.mark.parametrize("count", [MOST_TOOL_CALLS, MOST_TOOL_CALLS + 1])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_has_so_many_tool_calls_and_no_more(count: int, *, stream: bool) -> None:
    calls = [{"index": at, "id": f"c{at}", "function": {"name": "look", "arguments": "{}"}} for at in range(count)]
    step = (
        Stream((event({"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "stop"}]}), b"data: [DONE]\n\n"))
        if stream
        else Answer(chat({"content": None, "tool_calls": calls}))
    )
    on_delta = to_nobody if stream else None
    if count > MOST_TOOL_CALLS:
        error = await failure_of(step, hits=1, on_delta=on_delta)
        assert isinstance(error, ProviderDown)
    else:
        answer, _ = await answer_to(step, on_delta=on_delta)
        assert [call.id for call in answer.tool_calls] == [f"c{at}" for at in range(count)]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x" * 65_536},
        {"reasoning_content": "x" * 65_536},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "x" * 65_536}}]},
    ],
)
async def test_a_streamed_reply_has_so_many_characters_and_no_more(delta: dict[str, Any]) -> None:
    kept = 0

    async def chunks() -> AsyncGenerator[bytes]:
        nonlocal kept
        while True:
            yield event({"choices": [{"delta": delta}]})
            kept += 65_536

    with pytest.raises(MalformedAnswerError, match="characters"):
        await read_stream(chunks(), ChatAssembly(), DeltaTap(to_nobody))
    assert kept <= MOST_REPLY_CHARS


async def test_an_id_or_name_too_long_to_be_sent_back_is_replaced_and_an_endless_name_refused() -> None:
    call = {"id": "i" * 513, "function": {"name": "n" * 256, "arguments": "{}"}}
    answer, _ = await answer_to(Answer(chat({"content": None, "tool_calls": [call]})))
    assert len(answer.tool_calls[0].id) <= 512
    assert answer.tool_calls[0].name == "n" * 64
    call["function"] = {"name": "n" * 257, "arguments": "{}"}
    assert isinstance(await failure_of(Answer(chat({"content": None, "tool_calls": [call]})), hits=1), ProviderDown)
