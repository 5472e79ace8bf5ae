"""Answers made to hurt whoever reads them, on both wires, whole and streamed, and what a call must come to."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from .server import Answer, Raw, Step, Stream
from .wires import (
    ANTHROPIC,
    CHAT_USAGE,
    MESSAGE_USAGE,
    OPENAI,
    RESPONSES,
    ModelReply,
    Wire,
    block_events,
    event,
    message_event,
    response_event,
)

_PACKET_BYTES: Final = 64 * 1024
_GIB: Final = 2**30
_NO_DATE: Final = "Fri, 02 Jan 2026 03:04:12 +99999999999999"
_INDEXES: Final[tuple[Any, ...]] = (-1, 10**30, [], {}, "x", True, None, 1.5)
_WIDE: Final = "x" * 900_000 + "\U0001f600"
"""Text of 0.9 MB in JSON and of 3.6 MB in memory."""
BROKEN: Final = "provider_error"


@dataclass(frozen=True, slots=True)
class Repeated:
    """`head`, then `piece` so many times in packets of 64 KiB, then `tail`; never held whole."""

    piece: bytes
    times: int
    head: tuple[bytes, ...] = ()
    tail: tuple[bytes, ...] = ()

    def __iter__(self) -> Iterator[bytes]:
        yield from self.head
        together = max(1, _PACKET_BYTES // len(self.piece))
        whole, rest = divmod(self.times, together)
        packet = self.piece * together
        for _ in range(whole):
            yield packet
        if rest:
            yield self.piece * rest
        yield from self.tail


@dataclass(frozen=True, slots=True)
class Hostile:
    """An answer by name. `code` is what the call ends with, None for an answer that is taken.

    Where the time decides whether a bound or the deadline is met first, `or_late` is true.
    """

    name: str
    wire: Wire
    stream: bool
    build: Callable[[], Step] = field(repr=False)
    code: str | None = BROKEN
    or_late: bool = False

    def step(self) -> Step:
        """What the server does, made anew."""
        step = self.build()
        if isinstance(step, Answer) and not isinstance(step.body, bytes):
            return replace(step, body=json.dumps(step.body).encode())
        return step

    @property
    def codes(self) -> set[str | None]:
        """What it may end with."""
        return {self.code, "provider_timeout"} if self.or_late else {self.code}


def nested_gzip(layers: int, size: int) -> bytes:
    """`size` bytes of spaces, whole MiB, under so many layers of gzip. Its inner layer's checksum is wrong."""
    packed = zlib.compressobj(9, wbits=-15)
    mebibyte = packed.compress(b" " * 2**20) + packed.flush(zlib.Z_FULL_FLUSH)
    body = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + mebibyte * (size // 2**20) + b"\x03\x00" + bytes(8)
    for _ in range(layers - 1):
        body = gzip.compress(body, 9)
    return body


def _zstd_zeros(blocks: int) -> bytes:
    """A zstd frame in which each block of four bytes stands for 128 KiB."""
    size = 128 * 1024
    block = ((size << 3) | (1 << 1)).to_bytes(3, "little") + b" "
    last = ((size << 3) | (1 << 1) | 1).to_bytes(3, "little") + b" "
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (blocks - 1) + last


def _encoded(body: bytes, encoding: str, status: int = 200) -> Answer:
    return Answer(body, status, {"content-encoding": encoding})


def _unzipped_stream(piece: bytes, times: int) -> Stream:
    packed = zlib.compressobj(9, wbits=31)
    body = b"".join((*(packed.compress(piece) for _ in range(times)), packed.flush()))
    return Stream((body,), headers={"content-encoding": "gzip"})


def _nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + "1" * (opening != "[") + closing * depth).encode()


# --- chat completions -----------------------------------------------------------------------------------------------


def _chat(message: dict[str, Any] | None = None, **fields: Any) -> Answer:
    answer = OPENAI.answer(ModelReply())
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    return Answer(answer | {"choices": [choice]} | fields)


def _chat_call(position: int = 0, **fields: Any) -> dict[str, Any]:
    function = {"name": fields.pop("name", "look"), "arguments": fields.pop("arguments", "{}")}
    return {"index": position, "id": f"call_{position}", "type": "function", "function": function} | fields


def _chat_chunk(delta: dict[str, Any], **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta}], **fields})


def _chat_many(piece: bytes, times: int) -> Stream:
    return Stream(Repeated(piece, times, tuple(OPENAI.begin()), tuple(OPENAI.end(ModelReply()))))


def _chat_events(*events: bytes) -> Stream:
    return Stream((*OPENAI.begin(), *events, *OPENAI.end(ModelReply())))


def _chat_calls_in(count: int, per_event: int) -> Stream:
    calls = [_chat_call(at) for at in range(count)]
    groups = [calls[at : at + per_event] for at in range(0, count, per_event)]
    return _chat_events(*(_chat_chunk({"tool_calls": group}) for group in groups))


def _with_usage(wire: Wire, figure: str) -> Answer:
    """A whole answer in which every figure of the usage is this JSON."""
    usage = CHAT_USAGE if wire is OPENAI else MESSAGE_USAGE
    answer = wire.answer(ModelReply()) | {"usage": dict.fromkeys((*usage, "output_tokens", "total_tokens"), "FIGURE")}
    return Answer(json.dumps(answer).replace('"FIGURE"', figure).encode())


def _chat_kinds() -> Iterator[tuple[str, bool, Callable[[], Step], str | None]]:
    text, thought = _chat_chunk({"content": "x"}), _chat_chunk({"reasoning_content": "x"})
    fragment = {"index": 0, "function": {"name": "n", "arguments": "x"}}
    numbered = {"function": {"arguments": "x"}}
    yield "190,000 calls", False, lambda: _chat({"tool_calls": [_chat_call(at) for at in range(190_000)]}), BROKEN
    yield "129 calls", False, lambda: _chat({"tool_calls": [_chat_call(at) for at in range(129)]}), BROKEN
    yield "a million parts", False, lambda: _chat({"content": ["x"] * 1_000_000}), BROKEN
    yield "deep arguments", False, _deep_arguments, BROKEN
    yield "a name of 1 MB", False, lambda: _chat({"tool_calls": [_chat_call(name="n" * 2**20)]}), BROKEN
    yield "an id of 1 MB", False, lambda: _chat({"tool_calls": [_chat_call(id="i" * 2**20)]}), None
    yield "a model and a reason of 1 MB", False, _long_words, None
    yield "NUL and lone surrogates", False, lambda: _chat({"content": "a\x00b\ud800c\udfff", "refusal": "\x00"}), None
    yield "an error list nested deep", False, lambda: Answer(_nested(900)), BROKEN
    yield "detail nested deep", False, lambda: Answer(b'{"detail": %b}' % _nested(900), 400), BROKEN
    yield "15,000 fragments", True, lambda: _chat_events(_chat_chunk({"tool_calls": [fragment] * 15_000})), BROKEN
    yield "fragments by name", True, lambda: _chat_many(_chat_chunk({"tool_calls": [fragment]}), 20_000), None
    yield "190,000 calls", True, lambda: _chat_calls_in(190_000, 100), BROKEN
    yield (
        "one call 20,000 times",
        True,
        lambda: _chat_many(_chat_chunk({"tool_calls": [_chat_call()]}), 20_000),
        None,
    )
    yield (
        "indexes that are none",
        True,
        lambda: _chat_events(*(_chat_chunk({"tool_calls": [numbered | {"index": index}]}) for index in _INDEXES)),
        BROKEN,
    )
    yield "500,000 deltas", True, partial(_chat_many, text, 500_000), BROKEN
    yield "500,000 thoughts", True, partial(_chat_many, thought, 500_000), BROKEN
    yield "text of 16 MiB", True, partial(_chat_many, _chat_chunk({"content": "word " * 10_000}), 330), BROKEN
    yield "a delta nested deep", True, lambda: _chat_events(b'data: {"choices": %b}\n\n' % _nested(900)), BROKEN
    yield "150,000 choices", True, lambda: _chat_events(b'data: {"choices": [%b0]}\n\n' % (b"0," * 150_000)), BROKEN
    yield "usage nested deep", True, lambda: _chat_events(b'data: {"usage": %b}\n\n' % _nested(5_000)), BROKEN
    yield "a choice whose index is a list", True, lambda: _chat_events(event({"choices": [{"index": []}]})), None
    yield "bytes that are no UTF-8", True, lambda: _chat_events(text.replace(b'"x"', b'"\xf0\x9f"')), None


def _deep_arguments() -> Answer:
    whole = json.dumps(_chat({"content": None, "tool_calls": [_chat_call(arguments="DEEP")]}).body)
    return Answer(whole.encode().replace(b'"DEEP"', _nested(900, '{"a":', "}")))


def _long_words() -> Answer:
    choice = {"message": {"content": "x"}, "finish_reason": "r" * 2**20}
    return _chat(model="m" * 2**20, choices=[choice])


# --- Messages API ---------------------------------------------------------------------------------------------------


def _message(blocks: list[dict[str, Any]], **fields: Any) -> Answer:
    return Answer(ANTHROPIC.answer(ModelReply()) | {"content": blocks} | fields)


def _use(position: int = 0, **fields: Any) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{position}", "name": "look", "input": {}}
    return call | fields


def _grown(kind: str, member: str, piece: str, times: int, block: dict[str, Any]) -> Stream:
    """A block that grows by so many equal deltas."""
    begin, delta, end = block_events(0, block, [{"type": kind, member: piece}])
    return Stream(Repeated(delta, times, (*ANTHROPIC.begin(), begin), (end, *ANTHROPIC.end(ModelReply()))))


def _message_events(*events: bytes) -> Stream:
    return Stream((*ANTHROPIC.begin(), *events, *ANTHROPIC.end(ModelReply())))


def _message_kinds() -> Iterator[tuple[str, bool, Callable[[], Step], str | None]]:
    text, thinking = {"type": "text", "text": ""}, {"type": "thinking", "thinking": "", "signature": ""}
    begins = partial(message_event, "content_block_start")
    yield "190,000 calls", False, lambda: _message([_use(at) for at in range(190_000)]), BROKEN
    yield "129 calls", False, lambda: _message([_use(at) for at in range(129)]), BROKEN
    yield "20,000 blocks", False, lambda: _message([{"type": "text", "text": "x"}] * 20_000), BROKEN
    yield "deep arguments", False, _deep_input, BROKEN
    yield "a name of 1 MB", False, lambda: _message([_use(name="n" * 2**20)]), BROKEN
    yield "a model of 1 MB", False, lambda: _message([{"type": "text", "text": "x"}], model="m" * 2**20), None
    yield "500,000 deltas", True, partial(_grown, "text_delta", "text", "x", 500_000, text), BROKEN
    yield "500,000 thoughts", True, partial(_grown, "thinking_delta", "thinking", "x", 500_000, thinking), BROKEN
    yield (
        "a signature in pieces",
        True,
        partial(_grown, "signature_delta", "signature", "x" * 40, 20_000, thinking),
        None,
    )
    yield "arguments in pieces", True, partial(_grown, "input_json_delta", "partial_json", "[", 20_000, _use()), None
    yield "text of 16 MiB", True, partial(_grown, "text_delta", "text", "word " * 10_000, 330, text), BROKEN
    yield (
        "190,000 calls",
        True,
        lambda: _message_events(b"".join(begins(index=at, content_block=_use(at)) for at in range(190_000))),
        BROKEN,
    )
    yield (
        "indexes that are none",
        True,
        lambda: _message_events(*(begins(index=index, content_block=text) for index in _INDEXES)),
        BROKEN,
    )
    yield (
        "usage of 100,000 names",
        True,
        lambda: _message_events(
            message_event("message_delta", delta={}, usage={f"tokens_{at}": at for at in range(30_000)})
        ),
        None,
    )
    yield "an event nested deep", True, lambda: _message_events(b'data: {"type": %b}\n\n' % _nested(900)), BROKEN
    yield "pings without end", True, lambda: Stream(Repeated(message_event("ping"), 4_000_000)), BROKEN


def _deep_input() -> Answer:
    whole = json.dumps(_message([_use(input="DEEP")]).body)
    return Answer(whole.encode().replace(b'"DEEP"', _nested(900, '{"a":', "}")))


# --- responses --------------------------------------------------------------------------------------------------------


def _response(items: list[dict[str, Any]], **fields: Any) -> Answer:
    return Answer(RESPONSES.answer(ModelReply()) | {"output": items} | fields)


def _function_call(position: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{position}", "name": "look", "arguments": "{}"} | fields


def _of_deltas(kind: str, piece: str, times: int) -> Stream:
    delta = response_event(f"{kind}.delta", output_index=0, delta=piece)
    return Stream(Repeated(delta, times, tuple(RESPONSES.begin()), tuple(RESPONSES.end(ModelReply()))))


def _done(*items: dict[str, Any]) -> Stream:
    events = [response_event("output_item.done", output_index=at, item=item) for at, item in enumerate(items)]
    return Stream((*RESPONSES.begin(), b"".join(events), *RESPONSES.end(ModelReply())))


def _done_after_delta(times: int = 60, **item: Any) -> Stream:
    """The same item so many times, of which a delta has been there before."""
    delta = response_event("function_call_arguments.delta", output_index=0, delta="")
    done = response_event("output_item.done", output_index=0, item=_function_call() | item)
    return Stream(Repeated(done, times, (*RESPONSES.begin(), delta), tuple(RESPONSES.end(ModelReply()))))


def _digests_after_delta() -> Stream:
    summary = [{"type": "summary_text", "text": "x" * 500_000}]
    return _done_after_delta(type="reasoning", encrypted_content="x", summary=summary)


def _response_kinds() -> Iterator[tuple[str, bool, Callable[[], Step], str | None]]:
    part = {"type": "output_text", "text": "x"}
    yield "190,000 calls", False, lambda: _response([_function_call(at) for at in range(190_000)]), BROKEN
    yield "129 calls", False, lambda: _response([_function_call(at) for at in range(129)]), BROKEN
    yield "20,000 items", False, lambda: _response([{"type": "other"}] * 20_000), BROKEN
    yield "20,000 parts", False, lambda: _response([{"type": "message", "content": [part] * 20_000}]), BROKEN
    yield "a name of 1 MB", False, lambda: _response([_function_call(name="n" * 2**20)]), BROKEN
    yield "items that are none", False, lambda: _response([3, None, [], "x", {"type": []}]), None  # type: ignore[list-item]
    yield "a model of 1 MB", False, lambda: _response([], model="m" * 2**20), None
    yield "usage below zero", False, lambda: _response([], usage={"input_tokens": -5, "output_tokens": 10**400}), None
    yield "a status that is none", False, lambda: _response([], status=[1], incomplete_details=7), None
    yield "500,000 deltas", True, partial(_of_deltas, "output_text", "x", 500_000), BROKEN
    yield "500,000 thoughts", True, partial(_of_deltas, "reasoning_summary_text", "x", 500_000), BROKEN
    yield "text of 16 MiB", True, partial(_of_deltas, "output_text", "word " * 10_000, 330), BROKEN
    yield "arguments of 16 MiB", True, partial(_of_deltas, "function_call_arguments", "[" * 50_000, 330), BROKEN
    yield "190,000 calls", True, lambda: _done(*[_function_call(at) for at in range(190_000)]), BROKEN
    yield "arguments of 30 MB after a delta", True, partial(_done_after_delta, arguments="x" * 500_000), BROKEN
    yield "ids of 30 MB after a delta", True, partial(_done_after_delta, call_id="x" * 500_000), BROKEN
    yield "calls beside other members", True, partial(_done_after_delta, more=_WIDE), None
    yield "names that are no text", True, partial(_done_after_delta, name=[_WIDE]), BROKEN
    yield "digests of 30 MB after a delta", True, _digests_after_delta, BROKEN
    yield (
        "reasoning of 8 MiB",
        True,
        lambda: _done(*[{"type": "reasoning", "encrypted_content": "x" * 2**19}] * 16),
        BROKEN,
    )
    yield (
        "indexes that are none",
        True,
        lambda: Stream(
            (
                *RESPONSES.begin(),
                *(response_event("output_text.delta", output_index=index, delta="x") for index in _INDEXES),
                *RESPONSES.end(ModelReply()),
            )
        ),
        None,
    )
    yield "an event nested deep", True, lambda: Stream((b'data: {"type": %b}\n\n' % _nested(900),)), BROKEN


# --- either wire ----------------------------------------------------------------------------------------------------


def _any_kinds(wire: Wire) -> Iterator[tuple[str, bool, Callable[[], Step], str | None]]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    yield "gzip in gzip", False, lambda: _encoded(nested_gzip(2, 3 * _GIB), "gzip, gzip"), BROKEN
    yield "gzip of 1 GiB", False, lambda: _encoded(nested_gzip(1, _GIB), "gzip"), BROKEN
    yield "deflate of 64 MiB", False, lambda: _encoded(zlib.compress(b" " * 2**26, 9), "deflate"), BROKEN
    yield "zstd of 1 GiB", False, lambda: _encoded(_zstd_zeros(8_192), "zstd"), BROKEN
    yield "br", False, lambda: _encoded(b"\x0b\x02\x80{}\x03", "br"), BROKEN
    yield "an error in gzip of 1 GiB", False, lambda: _encoded(nested_gzip(1, _GIB), "gzip", 400), BROKEN
    yield "an error of 12 MiB", False, lambda: Answer(b'{"error": "%b"}' % (b"x" * 12 * 2**20), 400), BROKEN
    yield "5 million lists", False, lambda: Answer(b"[" + b"[]," * 5_000_000 + b"[]]"), BROKEN
    yield "text of 15 MiB", False, lambda: wire.whole(ModelReply("x" * 15 * 2**20)), BROKEN
    yield "usage below zero", False, partial(_with_usage, wire, "-5"), None
    yield "usage of 1e300", False, partial(_with_usage, wire, "1e300"), None
    yield "usage beyond bigint", False, partial(_with_usage, wire, "9" * 400), None
    yield "usage just in bigint", False, partial(_with_usage, wire, str(2**53)), None
    yield "usage in words", False, partial(_with_usage, wire, '"many"'), None
    yield "100,000 headers", False, lambda: Raw(head + b"x: y\r\n" * 100_000 + b"\r\n"), BROKEN
    yield "20,000 times 102", False, lambda: Raw(b"HTTP/1.1 102 Processing\r\n\r\n" * 20_000), BROKEN
    yield (
        "chunks of one byte",
        False,
        lambda: Raw(head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 50_000),
        BROKEN,
    )
    yield "a date beyond all dates", False, lambda: Answer({}, 503, {"retry-after": _NO_DATE}), BROKEN
    yield "comments without end", True, lambda: Stream(Repeated(b":\n", 40_000_000)), BROKEN
    yield "empty lines without end", True, lambda: Stream(Repeated(b"\n", 80_000_000)), BROKEN
    yield "a line without end", True, lambda: Stream(Repeated(b"x" * 1024, 80_000)), BROKEN
    yield "a million data lines", True, lambda: Stream(Repeated(b"data:\n", 1_000_000)), BROKEN
    yield "comments in gzip", True, lambda: _unzipped_stream(b": comment\n" * 100_000, 80), BROKEN
    yield (
        "empty blocks of gzip",
        True,
        lambda: Stream(
            Repeated(b"\x00\x00\x00\xff\xff", 16_000_000, (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",)),
            headers={"content-encoding": "gzip"},
        ),
        BROKEN,
    )
    yield "an event of 16 MiB", True, lambda: Stream((b"data: " + b"[]," * 5_000_000 + b"\n\n",)), BROKEN
    yield (
        "a stream in gzip in gzip",
        True,
        lambda: Stream((nested_gzip(2, _GIB),), headers={"content-encoding": "gzip, gzip"}),
        BROKEN,
    )


_LATE: Final = frozenset(
    {
        "500,000 deltas",
        "500,000 thoughts",
        "comments in gzip",
        "comments without end",
        "empty lines without end",
        "pings without end",
    }
)
"""What takes long to read up to its bound."""


def _all() -> Iterable[Hostile]:
    for wire, own in ((OPENAI, _chat_kinds), (ANTHROPIC, _message_kinds)):
        yield from _hostile(wire, (*_any_kinds(wire), *own()))
    yield from _hostile(RESPONSES, _response_kinds())


def _hostile(wire: Wire, kinds: Iterable[tuple[str, bool, Callable[[], Step], str | None]]) -> Iterable[Hostile]:
    for name, stream, build, code in kinds:
        title = f"{wire.name}, {'streamed' if stream else 'whole'}: {name}"
        yield Hostile(title, wire, stream, build, code, name in _LATE)


HOSTILE: Final = tuple(_all())
