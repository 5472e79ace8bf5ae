"""Neutral content -> the Messages API's blocks. What it has no form for becomes a line of text."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from app.domain.types import JsonObject, PromptMessage
from app.providers.wire import MalformedAnswerError, decode_json, fields_of, list_of

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,(.*)", re.DOTALL | re.ASCII)
_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def content_blocks(content: Any) -> list[JsonObject]:
    """The blocks of a content: a string, null, or a list of parts. Blank texts are left out: the API refuses them."""
    parts: list[Any] = [content] if isinstance(content, str) else list_of(content)
    blocks = [text_block(part) if isinstance(part, str) else _part_block(fields_of(part)) for part in parts]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def tool_use_blocks(message: PromptMessage) -> list[JsonObject]:
    """An assistant message's calls."""
    found: list[JsonObject] = []
    for call in list_of(message.get("tool_calls")):
        function = fields_of(fields_of(call).get("function"))
        found.append(
            {
                "type": "tool_use",
                "id": call_id(str(fields_of(call).get("id"))),
                "name": function.get("name"),
                "input": _arguments(function.get("arguments")),
            }
        )
    return found


def tool_result_block(message: PromptMessage) -> JsonObject:
    """A tool message. An empty result has no content."""
    block: JsonObject = {"type": "tool_result", "tool_use_id": call_id(str(message.get("tool_call_id")))}
    content = message.get("content")
    if isinstance(content, str):
        return {**block, "content": content} if content else block
    blocks = content_blocks(content)
    return {**block, "content": blocks} if blocks else block


def call_id(identity: str) -> str:
    """An id as the API allows it; one that another provider made in another form is turned into the same each time."""
    if _CALL_ID.fullmatch(identity):
        return identity
    return f"call_{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _arguments(text: Any) -> JsonObject:
    """The input has to be an object; what a model wrote that is none is passed on under a name of its own."""
    try:
        value = decode_json(text.encode("utf-8", "replace")) if isinstance(text, str) else None
    except MalformedAnswerError:
        value = None
    return fields_of(value) if isinstance(value, dict) else {"malformed_arguments": text} if text else {}


def _part_block(part: dict[str, Any]) -> JsonObject:
    match part.get("type"):
        case "text":
            return text_block(str(part.get("text") or ""))
        case "refusal":
            return text_block(str(part.get("refusal") or ""))
        case "image_url":
            return _image_block(part.get("image_url"))
        case "file":
            return _file_block(fields_of(part.get("file")))
        case "input_audio":
            return text_block("[An audio recording stood here; this model takes none.]")
        case other:
            return text_block(f"[A part of the type {other} stood here; this model takes none.]")


def _image_block(image: Any) -> JsonObject:
    url = image if isinstance(image, str) else fields_of(image).get("url")
    if isinstance(url, str) and url.startswith(("https://", "http://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, data = _data(url)
    if kind in _IMAGE_TYPES and isinstance(data, str):
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return text_block("[An image stood here in a form that this model does not take.]")


def _file_block(file: dict[str, Any]) -> JsonObject:
    """PDF and plain text are documents to the API. An id of a file that was uploaded elsewhere means nothing to it."""
    name = file.get("filename")
    title = {"title": name} if isinstance(name, str) and name else {}
    kind, data = _data(file.get("file_data"))
    if kind == "application/pdf" and isinstance(data, str):
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}, **title}
    if kind == "text/plain" and data is not None:
        text = _decoded(data)
        if text.strip():
            return {"type": "document", "source": {"type": "text", "media_type": kind, "data": text}, **title}
    named = f" {name!r}" if title else ""
    return text_block(f"[The file{named} stood here in a form that this model does not take.]")


def _data(url: Any) -> tuple[str | None, str | bytes | None]:
    """Media type and content of a data URL: base64 as it stands, percent-encoded bytes decoded."""
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        return None, None
    kind = (found[1] or "text/plain").lower()
    return kind, found[4] if found[3] else unquote_to_bytes(found[4])


def _decoded(data: str | bytes) -> str:
    if isinstance(data, str):
        try:
            data = base64.b64decode(data)
        except ValueError:
            return ""
    return data.decode("utf-8", "replace")
