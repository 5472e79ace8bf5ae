"""Stored messages as OpenAI's items: what clients list, fetch, and get as a response's output.

One message is several items: its reasoning, its words, and each of its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from app.domain.openai_ids import item_id
from app.domain.types import Content, ContentPart, JsonObject, Message, ToolCall


def items_of(session_id: UUID, message: Message) -> list[JsonObject]:
    """The items of a message, in their order; each is completed."""
    match message.role:
        case "assistant":
            text = message.content if isinstance(message.content, str) else None
            return reply_items(session_id, message.seq, text, message.tool_calls, message.reasoning)
        case "tool":
            return [
                {
                    "id": item_id("fco", session_id, message.seq),
                    "type": "function_call_output",
                    "call_id": message.tool_call_id,
                    "output": message.content if isinstance(message.content, str) else _parts(message.content),
                    "status": "completed",
                }
            ]
        case "user":
            return [
                {
                    "id": item_id("msg", session_id, message.seq),
                    "type": "message",
                    "role": "user",
                    "status": "completed",
                    "content": _parts(message.content),
                }
            ]


def reply_items(
    session_id: UUID,
    seq: int,
    text: str | None,
    calls: Sequence[ToolCall],
    reasoning: str | None,
    *,
    status: Literal["completed", "incomplete"] = "completed",
) -> list[JsonObject]:
    """A model's answer: its reasoning where there is any, its text unless it only made calls, and its calls."""
    items: list[JsonObject] = []
    if reasoning:
        items.append(reasoning_item(session_id, seq, reasoning))
    if text or not calls:
        items.append(text_item(session_id, seq, text or "", status))
    items += [call_item(session_id, seq, place, call) for place, call in enumerate(calls)]
    return items


def reasoning_item(session_id: UUID, seq: int, text: str) -> JsonObject:
    """Reasoning as it was returned; `summary` is for models that return a digest."""
    return {
        "id": item_id("rs", session_id, seq),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def text_item(
    session_id: UUID, seq: int, text: str, status: Literal["in_progress", "completed", "incomplete"]
) -> JsonObject:
    """The assistant's text."""
    return {
        "id": item_id("msg", session_id, seq),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [output_text(text)],
    }


def output_text(text: str) -> JsonObject:
    """A part of the assistant's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(session_id: UUID, seq: int, place: int, call: ToolCall) -> JsonObject:
    """A call of a function."""
    return {
        "id": item_id("fc", session_id, seq, place),
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _parts(content: Content) -> list[JsonObject]:
    if content is None or isinstance(content, str):
        return [{"type": "input_text", "text": content or ""}]
    return [_part(part) for part in content]


def _part(part: ContentPart) -> JsonObject:
    match part.get("type"):
        case "image_url":
            image: Any = part["image_url"]
            return {
                "type": "input_image",
                "image_url": image.get("url"),
                "detail": image.get("detail") or "auto",
                "file_id": None,
            }
        case "file":
            return {"type": "input_file", **part["file"]}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            return {"type": "input_text", "text": str(part.get("text", ""))}
