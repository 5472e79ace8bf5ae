"""A model that costs next to nothing: answers every chat completion with the same sixty tokens.

    python -m bench.mock_provider PORT [LATENCY_MS]

Speaks just enough HTTP/1.1 for keep-alive clients that send a Content-Length. `usage.prompt_tokens` grows with the
request's size, about as a tokenizer would count it, so that a caller which compares estimate and usage sees no outlier.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import orjson
import uvloop

REPLY: Final = (
    "Keep the pool small, because every connection holds memory on the server and a queue in front of the database "
    "is cheaper than contention inside it. Start with two connections per core, measure the waiting time under the "
    "expected load, and only then decide whether a proxy in front of Postgres is worth its own failure modes."
)
BYTES_PER_TOKEN: Final = 5.4


def completion_response(request_bytes: int, number: int) -> bytes:
    """A whole HTTP response; `number` makes the id and the text unique, so that nobody can cache it."""
    prompt_tokens = int(request_bytes / BYTES_PER_TOKEN)
    body = orjson.dumps(
        {
            "id": f"chatcmpl-{number:08d}",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "bench-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": f"{REPLY} ({number})"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 64, "total_tokens": prompt_tokens + 64},
        }
    )
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class MockProvider(asyncio.Protocol):
    """One keep-alive connection."""

    answered = 0

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
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
            self._buffer = self._buffer[request_end:]
            self._answer(head, body_bytes)

    def _answer(self, head: bytes, body_bytes: int) -> None:
        if not head.startswith(b"POST "):
            self._send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        MockProvider.answered += 1
        response = completion_response(body_bytes, MockProvider.answered)
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, self._send, response)
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


async def serve(port: int, latency_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: MockProvider(latency_s), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0))
