"""A model that costs next to nothing: answers every chat completion as the bench's conversation has it.

    python -m bench.mock_provider PORT [LATENCY_MS [SUMMARY_LATENCY_MS [FOLDER_OF_RECORDINGS]]]

A request that asks for JSON by a schema is a summarizer's: it gets the same summary every time, after a latency of its
own, with the tokens of prompt and answer counted. Any other is answered by its last message: where the bench's tool is
offered with a call of it, and where a stream is requested with `PIECES` words, one after the other. A turn's
`usage.prompt_tokens` grows with the request's size, about as a tokenizer would count it, so that a caller which
compares estimate and usage sees no outlier. Speaks just enough HTTP/1.1 for keep-alive clients that send a
Content-Length.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import orjson
import uvloop

from app.tokenizers.vocabularies import load_vocabulary
from bench.conversation import SUMMARY_FACTS, SUMMARY_TEXT, TOOL, Conversation, read_recorded

BYTES_PER_TOKEN: Final = 5.4
PIECES: Final = 200
PIECE_GAP_S: Final = 0.001
SCHEMA_MARK: Final = b'"response_format"'
"""Unescaped quotes: no message of a conversation can hold it."""


def completion_response(conversation: Conversation, request: bytes, number: int) -> Sequence[bytes]:
    """An HTTP response in the parts that are sent `PIECE_GAP_S` apart; `number` makes the id and the text unique, so
    that nobody can cache it."""
    asked: Any = orjson.loads(request)
    content: Any = asked["messages"][-1]["content"]
    text = conversation.answer(content if isinstance(content, str) else str(content))
    prompt_tokens = int(len(request) / BYTES_PER_TOKEN)
    if TOOL in asked.get("tools", ()):
        function = {"name": TOOL["function"]["name"], "arguments": f'{{"page":{number}}}'}
        message = {"content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}
        return [_response(message, number, prompt_tokens, completion_tokens=20)]
    if asked.get("stream"):
        words = text.split()
        while len(words) < PIECES:
            words += (text := conversation.answer(text)).split()
        return list(_streamed([f"{word} " for word in words[: PIECES - 1]] + [f"({number})"], number, prompt_tokens))
    text = f"{text} ({number})"
    return [_response({"content": text}, number, prompt_tokens, load_vocabulary("o200k_base").count(text))]


def summary_response(request: bytes, number: int) -> bytes:
    """The summary that every conversation of the bench gets; its facts cite the first message that was shown."""
    lists: dict[str, list[str]] = {name: [] for name in ("open_questions", "decisions", "action_items")}
    facts = [{"text": fact, "message_ids": ["m1"]} for fact in SUMMARY_FACTS]
    text = orjson.dumps({"summary_text": SUMMARY_TEXT, "key_facts": facts, **lists}).decode()
    count = load_vocabulary("o200k_base").count
    asked = "\n".join(message["content"] for message in orjson.loads(request)["messages"])
    return _response({"content": text}, number, count(asked), count(text))


def _response(message: Mapping[str, Any], number: int, prompt_tokens: int, completion_tokens: int) -> bytes:
    finish_reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = _body("chat.completion", number, [choice], _usage(prompt_tokens, completion_tokens))
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _streamed(pieces: Sequence[str], number: int, prompt_tokens: int) -> Iterator[bytes]:
    """The head and the pieces, then in one part what ends them."""

    def event(choices: list[Any], usage: Any = None) -> bytes:
        return _chunk(b"data: %b\n\n" % _body("chat.completion.chunk", number, choices, usage))

    yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in pieces:
        yield event([{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
    ends = [event([{"index": 0, "delta": {}, "finish_reason": "stop"}]), event([], _usage(prompt_tokens, len(pieces)))]
    yield b"".join([*ends, _chunk(b"data: [DONE]\n\n"), _chunk(b"")])


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _body(kind: str, number: int, choices: list[Any], usage: Any) -> bytes:
    head = {"id": f"chatcmpl-{number:08d}", "object": kind, "created": 1_760_000_000, "model": "bench-model"}
    return orjson.dumps({**head, "choices": choices, "usage": usage})


def _usage(prompt_tokens: int, completion_tokens: int) -> Mapping[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


class MockProvider(asyncio.Protocol):
    """One keep-alive connection."""

    answered = 0

    def __init__(self, conversation: Conversation, latency_s: float, summary_latency_s: float = 0.0) -> None:
        self._conversation = conversation
        self._latency_s = latency_s
        self._summary_latency_s = summary_latency_s
        self._buffer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end]
            body_bytes = content_length(head)
            request_end = head_end + 4 + body_bytes
            if len(self._buffer) < request_end:
                return
            body, self._buffer = self._buffer[head_end + 4 : request_end], self._buffer[request_end:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST "):
            self._send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        MockProvider.answered += 1
        if SCHEMA_MARK in body:
            parts, latency_s = [summary_response(body, MockProvider.answered)], self._summary_latency_s
        else:
            parts = completion_response(self._conversation, body, MockProvider.answered)
            latency_s = self._latency_s
        for number, part in enumerate(parts):
            if delay_s := latency_s + number * PIECE_GAP_S:
                asyncio.get_running_loop().call_later(delay_s, self._send, part)
            else:
                self._send(part)

    def _send(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)


def content_length(head: bytes) -> int:
    """Bytes of the body that follows `head`; 0 when it names none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int, conversation: Conversation, latency_s: float, summary_latency_s: float) -> None:
    load_vocabulary("o200k_base")  # before the first turn, whose latency it would be part of
    server = await asyncio.get_running_loop().create_server(
        lambda: MockProvider(conversation, latency_s, summary_latency_s), "127.0.0.1", port
    )
    await server.serve_forever()


if __name__ == "__main__":
    latencies_s = [float(given) / 1000 for given in sys.argv[2:4]]
    conversation = read_recorded(Path(sys.argv[4])) if len(sys.argv) > 4 else Conversation()
    uvloop.run(serve(int(sys.argv[1]), conversation, *latencies_s, *[0.0] * (2 - len(latencies_s))))
