"""A list of OpenAI's input items as messages in the neutral form.

A message with calls is one item for its words and one for each call; here it is one message again. Reasoning that comes
back is left out: what the session holds of it is sent where the model wants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain.content import content_text
from app.domain.errors import InvalidRequest
from app.domain.types import Content, ContentPart, Message, Role, ToolCall
from app.openai.chat_messages import IncomingMessage

_REFERENCE = "item_reference"


@dataclass(frozen=True, slots=True)
class ReadItems:
    """System and developer messages as texts, and all else in its order, each at the place of its first item."""

    directions: tuple[str, ...]
    messages: tuple[IncomingMessage, ...]


def read_items(items: Sequence[Mapping[str, Any]], referenced: Mapping[str, Message] | None = None) -> ReadItems:
    """Splits a list whose form has been validated (`api/schemas/items.py`).

    `referenced` has the stored messages that `item_reference` items name; a message is included once, whichever of its
    items are named. Raises `InvalidRequest` for a reference to nothing, by its index.
    """
    directions: list[str] = []
    messages: list[IncomingMessage] = []
    included: set[int] = set()
    for place, item in enumerate(items):
        match item.get("type") or ("message" if "role" in item else "item_reference"):
            case "message" if item["role"] in ("system", "developer"):
                directions.append(content_text(_content(item["content"])))
            case "message":
                role: Role = "assistant" if item["role"] == "assistant" else "user"
                content = _spoken(item["content"]) if role == "assistant" else _content(item["content"])
                messages.append(IncomingMessage(place, role, content))
            case "function_call":
                _add_call(messages, place, ToolCall(item["call_id"], item["name"], item["arguments"]))
            case "function_call_output":
                messages.append(IncomingMessage(place, "tool", _content(item["output"]), tool_call_id=item["call_id"]))
            case "item_reference":
                message = (referenced or {}).get(item["id"])
                if message is None:
                    raise InvalidRequest("There is no such item.", (str(place), "id"))
                if message.seq not in included:
                    included.add(message.seq)
                    messages.append(
                        IncomingMessage(place, message.role, message.content, message.tool_calls, message.tool_call_id)
                    )
            case _:
                continue
    return ReadItems(tuple(text for text in directions if text.strip()), tuple(messages))


def references_of(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids that the references among these items name."""
    return [item["id"] for item in items if (item.get("type") or ("" if "role" in item else _REFERENCE)) == _REFERENCE]


def _add_call(messages: list[IncomingMessage], place: int, call: ToolCall) -> None:
    """A call belongs to the words right before it, or to the calls there."""
    if messages and messages[-1].role == "assistant":
        last = messages[-1]
        messages[-1] = replace(last, content=last.content or None, tool_calls=(*last.tool_calls, call))
    else:
        messages.append(IncomingMessage(place, "assistant", None, (call,)))


def _spoken(content: str | Sequence[Mapping[str, Any]]) -> str:
    """An assistant's words as text, as the service stores its own."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def _content(content: str | Sequence[Mapping[str, Any]]) -> Content:
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _part(part: Mapping[str, Any]) -> ContentPart:
    match part["type"]:
        case "input_image":
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file":
            return {
                "type": "file",
                "file": {name: part[name] for name in ("filename", "file_data") if part.get(name) is not None},
            }
        case "input_audio":
            return {"type": "input_audio", "input_audio": dict(part["input_audio"])}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case _:
            return {"type": "text", "text": part["text"]}


def joined_directions(known: str | None, directions: Sequence[str]) -> str | None:
    """Instructions with these behind them, each once."""
    texts = [known] if known else []
    for text in directions:
        if f"\n\n{text}\n\n" not in "\n\n".join(["", *texts, ""]):
            texts.append(text)
    return "\n\n".join(texts) or None
