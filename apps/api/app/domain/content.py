"""What a message's content is, as text and as bytes to hash."""

from __future__ import annotations

import hashlib

import orjson

from app.domain.types import Content, JsonObject, ToolCall


def bytea_json(value: bytes) -> str:
    """Bytes as the database takes them from JSON."""
    return f"\\x{value.hex()}"


def content_text(content: Content) -> str:
    """The readable text of a content; a part that is no text stands as its type in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in content
    )


def tool_call_json(call: ToolCall) -> JsonObject:
    """A tool call in the OpenAI form, in which it is sent, stored and answered."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def canonical_json(value: object) -> str:
    """Compact, key-sorted JSON: what hashes are taken of (contract.md, decision 10)."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def sha256_hex(text: str) -> str:
    """SHA-256 of the text's UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()
