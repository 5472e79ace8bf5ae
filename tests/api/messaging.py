"""The unmodified `anthropic` client at the service of `chatting.py`."""

from __future__ import annotations

from typing import Any, cast

import anthropic
import httpx
from anthropic.types import Message

from tests.api.chatting import Chat
from tests.api.conftest import NO_TLS
from tests.providers.server import Play
from tests.providers.wires import ModelReply, Wire

TOOLS: list[Any] = [
    {
        "name": "look_up",
        "description": "Looks an order up.",
        "input_schema": {"type": "object", "properties": {"id": {"type": "string"}}},
    }
]


def anthropic_at(at: Chat, key: str | None = "none", **options: Any) -> anthropic.Anthropic:
    """An application that changed its base_url, and nothing else."""
    options.setdefault("http_client", anthropic.DefaultHttpxClient(verify=NO_TLS))
    return anthropic.Anthropic(base_url=at.address, api_key=key, **options)


def create(client: anthropic.Anthropic, **asked: Any) -> tuple[httpx.Headers, Message]:
    """The headers of an answer of `main`, and the message, which the client's own type takes as it is."""
    raw = cast(Any, client.messages.with_raw_response).create(**{"model": "main", "max_tokens": 1000, **asked})
    return raw.headers, Message.model_validate(raw.http_response.json(), strict=True)


def post(at: Chat, body: dict[str, Any], **headers: str) -> Any:
    """The answer to a body that lacks only what every body has."""
    return at.http.post("/v1/messages", json={"model": "main", "max_tokens": 100, **body}, headers=headers)


def user(*content: Any) -> Any:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def result(call_id: str, content: Any = "found", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def said(wire: Wire, reply: ModelReply) -> Play:
    """A reply over a wire, whole or streamed as it is requested."""
    return lambda request: wire.stream(reply) if request.json.get("stream") else wire.whole(reply)
