"""A model that costs next to nothing: answers every chat completion as the bench's conversation has it.

    python -m bench.mock_provider PORT [LATENCY_MS [SUMMARY_LATENCY_MS [FOLDER_OF_RECORDINGS]]]

A request that asks for JSON by a schema is a summarizer's: it gets the same summary every time, after a latency of its
own, with the tokens of prompt and answer counted. Any other is answered by its last message. A turn's
`usage.prompt_tokens` grows with the request's size, about as a tokenizer would count it, so that a caller which
compares estimate and usage sees no outlier. Speaks just enough HTTP/1.1 for keep-alive clients that send a
Content-Length.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final, cast

import orjson
import uvloop

from app.tokenizers.vocabularies import load_vocabulary
from bench.conversation import SUMMARY_FACTS, SUMMARY_TEXT, Conversation, read_recorded

BYTES_PER_TOKEN: Final = 5.4
SCHEMA_MARK: Final = b'"response_format"'
"""Unescaped quotes: no message of a conversation can hold it."""


def completion_response(conversation: Conversation, request: bytes, number: int) -> bytes:
    """A whole HTTP response; `number` makes the id and the text unique, so that nobody can cache it."""
    content: Any = orjson.loads(request)["messages"][-1]["content"]
    text = f"{conversation.answer(content if isinstance(content, str) else str(content))} ({number})"
    completion_tokens = load_vocabulary("o200k_base").count(text)
    return _response(text, number, int(len(request) / BYTES_PER_TOKEN), completion_tokens)


def summary_response(request: bytes, number: int) -> bytes:
    """The summary that every conversation of the bench gets; its facts cite the first message that was shown."""
    lists: dict[str, list[str]] = {name: [] for name in ("open_questions", "decisions", "action_items")}
    facts = [{"text": fact, "message_ids": ["m1"]} for fact in SUMMARY_FACTS]
    text = orjson.dumps({"summary_text": SUMMARY_TEXT, "key_facts": facts, **lists}).decode()
    count = load_vocabulary("o200k_base").count
    asked = "\n".join(message["content"] for message in orjson.loads(request)["messages"])
    return _response(text, number, count(asked), count(text))


def _response(text: str, number: int, prompt_tokens: int, completion_tokens: int) -> bytes:
    body = orjson.dumps(
        {
            "id": f"chatcmpl-{number:08d}",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "bench-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }
    )
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


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
            response, latency_s = summary_response(body, MockProvider.answered), self._summary_latency_s
        else:
            response = completion_response(self._conversation, body, MockProvider.answered)
            latency_s = self._latency_s
        if latency_s:
            asyncio.get_running_loop().call_later(latency_s, self._send, response)
        else:
            self._send(response)

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
