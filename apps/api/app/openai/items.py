"""OpenAI's items <-> messages in the neutral form.

One message is several items: its reasoning, its text, and each of its calls.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Literal

import orjson

from app.domain.content import arguments_of, content_text, fields_of
from app.domain.errors import InvalidRequest
from app.domain.frozen import replace
from app.domain.incoming import Compaction, IncomingList, IncomingMessage, read_handle
from app.domain.responses import ResponseRef, item_id
from app.domain.types import Completion, Content, ContentPart, JsonObject, Message, Role, SessionId, ToolCall
from app.openai.chat_messages import reply_text
from app.openai.client_tools import SHELL, call_fields, function_name

_DONE: JsonObject = {"status": "completed"}
_NO_TOOLS: Mapping[str, Mapping[str, Any]] = {}


MOST_DIRECTIONS = 1_000
"""Most different system and developer messages of one list: each is searched for in the session's instructions."""


def kind_of(item: Mapping[str, Any]) -> Any:
    """The type of an item. Messages and references may have none; one that is not validated yet may have any."""
    kind = item.get("type")
    return ("message" if "role" in item else "item_reference") if kind is None else kind


def read_items(items: Sequence[Mapping[str, Any]], referenced: Mapping[str, Message] | None = None) -> IncomingList:
    """Splits a list whose form has been validated (`api/schemas/items.py`): each direction is in it once, and each
    message has the place of its first item.

    `referenced` has the stored messages of which `item_reference` items name an item; an item that is named again is
    left out. Raises `InvalidRequest`, with the item's index, for a reference to no stored item, for a compaction that
    this service did not make, and for more than `MOST_DIRECTIONS`.
    """
    directions: dict[str, None] = {}
    messages: list[IncomingMessage] = []
    before: list[IncomingMessage] = []
    compaction: Compaction | None = None
    named: set[str] = set()
    thoughts: list[IncomingMessage | Message] = []
    thoughts_of: dict[int, list[IncomingMessage | Message]] = {}
    for place, item in enumerate(items):
        match kind_of(item):
            case "message" if item["role"] in ("system", "developer"):
                directions[content_text(_content(item["content"]))] = None
                if len(directions) > MOST_DIRECTIONS:
                    raise InvalidRequest(
                        f"There are more than {MOST_DIRECTIONS} different system and developer messages.", (str(place),)
                    )
                continue
            case "reasoning":
                thoughts.append(_thought(place, item))
                continue
            case "item_reference":
                message = (referenced or {}).get(item["id"])
                if message is None or not (item["id"] in named or _add_named(messages, place, item["id"], message)):
                    raise InvalidRequest("There is no such item.", (str(place), "id"))
                named.add(item["id"])
                if item["id"].startswith("rs"):
                    thoughts.append(message)
                    continue
            case "compaction":
                compaction = read_handle(item["encrypted_content"], str(place), "encrypted_content")
                before, messages = messages or before, []
                named.clear()
                thoughts_of.clear()
            case kind:
                _add_item(messages, place, kind, item)
        if thoughts and messages and messages[-1].role == "assistant":
            thoughts_of.setdefault(len(messages) - 1, []).extend(thoughts)
        thoughts.clear()
    for at, of_message in thoughts_of.items():
        text = "\n\n".join(thought.reasoning for thought in of_message if thought.reasoning)
        blocks = tuple(block for thought in of_message for block in thought.reasoning_blocks)
        messages[at] = replace(messages[at], reasoning=text or None, reasoning_blocks=blocks)
    return IncomingList.of(directions, _whole_replies(messages), before, compaction)


_IN_ROUND: tuple[Role, ...] = ("assistant", "tool", "user")


def _whole_replies(messages: Sequence[IncomingMessage]) -> list[IncomingMessage]:
    """The list, in which all that the assistant says before the outputs of its calls is of one message, and the outputs
    directly follow it. Models speak between their calls, LiteLLM sends the text of a reply after its calls, and users
    speak while tools run: OpenAI finds the output of a call by its id alone."""
    rounds = accumulate([message.role == "assistant" for message in messages])
    placed = sorted(zip(rounds, messages, strict=True), key=lambda each: (each[0], _IN_ROUND.index(each[1].role)))
    replies: list[list[IncomingMessage]] = []
    for _, message in placed:
        if message.role == "assistant" and replies and replies[-1][0].tool_calls:
            replies[-1].append(message)
        else:
            replies.append([message])
    return [_joined_reply(reply) if len(reply) > 1 else reply[0] for reply in replies]


def _joined_reply(parts: Sequence[IncomingMessage]) -> IncomingMessage:
    return replace(
        parts[0],
        content="".join(content_text(part.content) for part in parts) or None,
        tool_calls=tuple(call for part in parts for call in part.tool_calls),
        reasoning="\n\n".join(part.reasoning for part in parts if part.reasoning) or None,
        reasoning_blocks=tuple(block for part in parts for block in part.reasoning_blocks),
    )


def _add_item(messages: list[IncomingMessage], place: int, kind: str, item: Mapping[str, Any]) -> None:
    match kind:
        case "message":
            role: Role = "assistant" if item["role"] == "assistant" else "user"
            content = reply_text(item["content"]) if role == "assistant" else _content(item["content"])
            messages.append(IncomingMessage(place, role, content))
        case "function_call":
            _add_call(messages, place, ToolCall(item["call_id"], function_name(item), item["arguments"]))
        case "custom_tool_call":
            _add_call(messages, place, ToolCall(item["call_id"], function_name(item), arguments_of(item["input"])))
        case "local_shell_call":
            action = {
                name: value for name, value in item["action"].items() if name != "type" and value not in (None, {})
            }
            _add_call(messages, place, ToolCall(item["call_id"], SHELL, orjson.dumps(action).decode()))
        case _:
            call_id = item.get("call_id") or item["id"]
            messages.append(IncomingMessage(place, "tool", _content(item["output"]), tool_call_id=call_id))


def references_of(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids that the references among these items name."""
    return [item["id"] for item in items if kind_of(item) == "item_reference"]


def joined_directions(known: str | None, directions: Sequence[str]) -> str | None:
    """The instructions `known`, followed by those directions that it does not contain yet. The time is proportional to
    the length of `known` times the number of directions."""
    within = f"\n\n{known}\n\n" if known else ""
    new = [text for text in dict.fromkeys(directions) if f"\n\n{text}\n\n" not in within]
    return "\n\n".join([known, *new] if known else new) or None


def message_items(session_id: SessionId, message: Message) -> list[JsonObject]:
    """The items of a message, in order. All have the status `completed`."""
    match message.role:
        case "assistant":
            text = message.content if isinstance(message.content, str) else None
            reply = Completion(text, "stop", None, message.tool_calls, message.reasoning)
            return reply_items(ResponseRef(session_id, message.seq), reply)
        case "tool":
            output = message.content if isinstance(message.content, str) else _item_parts(message.content)
            answer = {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
            return [{"id": item_id("fco", session_id, message.seq), **answer} | _DONE]
        case "user":
            item = {"type": "message", "role": "user", "content": _item_parts(message.content)}
            return [{"id": item_id("msg", session_id, message.seq), **item} | _DONE]


def reply_items(
    ref: ResponseRef,
    reply: Completion,
    tools: Mapping[str, Mapping[str, Any]] = _NO_TOOLS,
    status: Literal["completed", "incomplete"] = "completed",
    *,
    is_sealed: bool = False,
) -> list[JsonObject]:
    """The items of a reply: its reasoning, its text unless it only made calls, and its calls, by the tool of each
    (`tools_by_function`). The last one has the status. With `is_sealed` the reasoning is also sealed, with its
    blocks."""
    items: list[JsonObject] = []
    blocks = reply.reasoning_blocks if is_sealed else None
    if reply.reasoning or blocks:
        items.append(reasoning_item(ref, reply.reasoning or "", blocks))
    if reply.text or not reply.tool_calls:
        is_refusal = reply.finish_reason == "refusal"
        items.append(text_item(ref, reply.text or "", "completed", is_refusal=is_refusal))
    for place, call in enumerate(reply.tool_calls):
        call_id = item_id("fc", ref.session_id, ref.reply_seq, place)
        items.append({"id": call_id, **call_fields(tools.get(call.name), call)} | _DONE)
    items[-1]["status"] = status
    return items


def reasoning_item(ref: ResponseRef, text: str, blocks: Sequence[JsonObject] | None) -> JsonObject:
    """Reasoning as the model returned it. `summary` is empty: it is for models that return a digest. With `blocks` it
    also has both in `encrypted_content`, which clients of stateless requests return; it is encoded, not encrypted."""
    sealed = None if blocks is None else b64encode(orjson.dumps([text, blocks])).decode()
    return {
        "id": item_id("rs", ref.session_id, ref.reply_seq),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **({"encrypted_content": sealed} if sealed else {}),
    }


def _thought(place: int, item: Mapping[str, Any]) -> IncomingMessage:
    """The reasoning of an item, with the blocks that `reasoning_item` sealed. A seal of another service has none."""
    text, blocks = "", tuple[JsonObject, ...]()
    with suppress(ValueError, TypeError):
        raw = b64decode(item.get("encrypted_content") or "", validate=True)
        sealed, found = orjson.loads(raw)
        if isinstance(sealed, str) and b"\\u0000" not in raw and all(map(_is_block, found)):
            text, blocks = sealed, tuple(found)
    content = reply_text(item.get("content") or "")
    return IncomingMessage(place, "assistant", None, reasoning=content or text, reasoning_blocks=blocks)


def _is_block(value: Any) -> bool:
    fields = fields_of(value)
    return isinstance(fields.get("type"), str) and all(isinstance(each, str | int) for each in fields.values())


def text_item(
    ref: ResponseRef, text: str, status: Literal["in_progress", "completed", "incomplete"], *, is_refusal: bool
) -> JsonObject:
    text_part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": item_id("msg", ref.session_id, ref.reply_seq),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "refusal", "refusal": text} if is_refusal else text_part],
    }


def compaction_item(compaction: Compaction) -> JsonObject:
    """The item that replaces the messages before it."""
    made_of = compaction.summary_id or compaction.session_id
    return {"id": f"cmp_{made_of.hex}", "type": "compaction", "encrypted_content": compaction.handle}


def _add_named(messages: list[IncomingMessage], place: int, named: str, message: Message) -> bool:
    """Adds the item of a stored message that an id names, but no reasoning. Returns whether there is such an item."""
    match named.partition("_")[0], message.role:
        case "rs", "assistant":
            pass
        case "fc", "assistant" if (at := int(named[-4:], 16)) < len(message.tool_calls):
            _add_call(messages, place, message.tool_calls[at])
        case "msg", "assistant" if message.content or not message.tool_calls:
            alone = replace(message, tool_calls=(), reasoning=None, reasoning_blocks=())
            messages.append(IncomingMessage.of_stored(place, alone))
        case ("msg", "user") | ("fco", "tool"):
            messages.append(IncomingMessage.of_stored(place, message))
        case _:
            return False
    return True


def _add_call(messages: list[IncomingMessage], place: int, call: ToolCall) -> None:
    """Adds a call to the assistant message directly before it, or else to a new one."""
    if messages and messages[-1].role == "assistant":
        last = messages[-1]
        messages[-1] = replace(last, content=last.content or None, tool_calls=(*last.tool_calls, call))
    else:
        messages.append(IncomingMessage(place, "assistant", None, (call,)))


def _content(content: str | Sequence[Mapping[str, Any]]) -> Content:
    if isinstance(content, str):
        return content
    parts = [_content_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _content_part(part: Mapping[str, Any]) -> ContentPart:
    match part["type"]:
        case "input_image":
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file":
            file = {name: part[name] for name in ("filename", "file_data") if part.get(name) is not None}
            return {"type": "file", "file": file}
        case "input_audio":
            return {"type": "input_audio", "input_audio": dict(part["input_audio"])}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case _:
            return {"type": "text", "text": part["text"]}


def _item_parts(content: Content) -> list[JsonObject]:
    if content is None or isinstance(content, str):
        return [{"type": "input_text", "text": content or ""}]
    return [_item_part(part) for part in content]


def _item_part(part: ContentPart) -> JsonObject:
    match part.get("type"):
        case "image_url":
            image: Any = part["image_url"]
            detail = image.get("detail") or "auto"
            return {"type": "input_image", "image_url": image.get("url"), "detail": detail, "file_id": None}
        case "file":
            return {"type": "input_file", **part["file"]}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            return {"type": "input_text", "text": str(part.get("text", ""))}
