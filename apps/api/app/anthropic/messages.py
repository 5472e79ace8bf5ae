"""Anthropic's lists of messages -> messages in the neutral form; and a model's reply in Anthropic's form.

Consecutive messages of one role are one message in Anthropic's API. A user message may have tool results and text: each
result becomes a message, and these come first. Texts of several user messages stay messages of their own, as in a chat
client's list: the first of them may have been sent before, and got no answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import orjson

from app.domain.audit import CLEARED
from app.domain.content import call_input, fields_of, system_reminder
from app.domain.incoming import Compaction, IncomingList, IncomingMessage, read_handle
from app.domain.types import Completion, Content, ContentPart, JsonObject, ToolCall, Usage

Block: TypeAlias = Mapping[str, Any]

_BILLING_LINE: Final = "x-anthropic-billing-header:"
"""Start of the first line of Claude Code's system text. The line is for Anthropic's server and changes each request."""
_SESSION_OF_USER: Final = re.compile(r"_session_([0-9a-f-]{36})$")
_MOST_ELEMENTS: Final = 64
"""Most elements of a text that `_is_note` checks."""
_ELEMENT: Final = re.compile(r"\s*<([A-Za-z][\w-]*)>")


def read_list(system: str | Sequence[Block] | None, messages: Sequence[Mapping[str, Any]]) -> IncomingList:
    """Splits a request whose form has been validated (`api/schemas/messages.py`).

    The place of a joined reply is that of the first of its messages. A system message in the list keeps its position
    and becomes marked text of the user, because instructions would never leave the window again. Messages before the
    last compaction with content are left out (`IncomingList.of`). Raises `InvalidRequest`, with the message's index,
    for a compaction that this service did not make.
    """
    read: list[IncomingMessage] = []
    before: list[IncomingMessage] = []
    compaction: Compaction | None = None
    for is_reply, group in groupby(enumerate(messages), key=lambda each: each[1]["role"] == "assistant"):
        placed = [(place, _blocks_of(message)) for place, message in group]
        if not is_reply:
            read += _of_user(placed)
            continue
        place = placed[0][0]
        blocks = [block for _, of_message in placed for block in of_message]
        rest = blocks
        if made := [at for at, block in enumerate(blocks) if _is_compaction(block)]:
            compaction = read_handle(blocks[made[-1]].get("encrypted_content"), str(place), "content")
            before, read = read or before, []
            rest = blocks[made[-1] + 1 :]
        # A compaction without content is of a model that made no summary. An empty reply is a message all the same.
        rest = [block for block in rest if block["type"] != "compaction"]
        if rest or not blocks:
            read.append(_reply(place, rest))
    return IncomingList.of(_directions(system), read, before, compaction)


def _is_compaction(block: Block) -> bool:
    return block["type"] == "compaction" and block.get("content") is not None


def is_complete(schema: Any) -> bool:
    """Whether each object of a JSON schema requires all of its properties and allows no others: OpenAI guarantees no
    other schema. Anthropic's may have optional ones."""
    if isinstance(schema, list):
        return all(map(is_complete, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    fields = cast("JsonObject", schema)
    if fields.get("type") == "object":
        allows_others = fields.get("additionalProperties") is not False
        if allows_others or not _names(fields.get("properties")) <= _names(fields.get("required")):
            return False
    return all(map(is_complete, fields.values()))


def _names(value: Any) -> set[str]:
    """The names in a list or an object; none in anything else, as a client may send."""
    listed = cast("list[Any]", value) if isinstance(value, list | dict) else ()
    return {name for name in listed if isinstance(name, str)}


def conversation_of(user_id: str | None) -> str | None:
    """The id of the client's conversation in `metadata.user_id`, or None. Claude Code sends it as JSON with
    `session_id`, older versions as `user_…_account_…_session_…`. One such conversation has several lists of messages:
    the main one, and those of its subagents."""
    if user_id is None:
        return None
    if found := _SESSION_OF_USER.search(user_id):
        return found[1]
    try:
        session_id = fields_of(orjson.loads(user_id)).get("session_id")
    except orjson.JSONDecodeError:
        return None
    return session_id if isinstance(session_id, str) and session_id else None


def _blocks_of(message: Mapping[str, Any]) -> list[Block]:
    blocks = _as_blocks(message["content"])
    if message["role"] != "system":
        return blocks
    return [_text_part(system_reminder(_joined_texts(blocks)))]


def _as_blocks(content: str | Sequence[Block]) -> list[Block]:
    return [_text_part(content)] if isinstance(content, str) else list(content)


def _directions(system: str | Sequence[Block] | None) -> list[str]:
    texts = [str(block["text"]) for block in _as_blocks(system or ())]
    return [text.partition("\n")[2] if text.startswith(_BILLING_LINE) else text for text in texts]


def _reply(place: int, blocks: Sequence[Block]) -> IncomingMessage:
    text = "".join(str(block["text"]) for block in blocks if block["type"] == "text")
    calls = tuple(
        ToolCall(block["id"], block["name"], orjson.dumps(block["input"]).decode())
        for block in blocks
        if block["type"] == "tool_use"
    )
    thoughts = [_thought(block) for block in blocks if block["type"].endswith("thinking")]
    reasoning = "".join(thought.get("thinking", "") for thought in thoughts) or None
    are_signed = all(thought.get("signature", thought.get("data")) not in ("", UNSIGNED) for thought in thoughts)
    signed = tuple(thoughts) if are_signed else ()
    content = text or (None if calls else "")
    return IncomingMessage(place, "assistant", content, calls, reasoning=reasoning, reasoning_blocks=signed)


def _thought(block: Block) -> JsonObject:
    """A thinking block as its provider made it. Clients leave out what was empty in it."""
    fields = ("data",) if block["type"] == "redacted_thinking" else ("thinking", "signature")
    return {"type": block["type"], **{name: block.get(name) or "" for name in fields}}


def _of_user(placed: Sequence[tuple[int, Sequence[Block]]]) -> list[IncomingMessage]:
    results = [(place, block) for place, blocks in placed for block in blocks if block["type"] == "tool_result"]
    users: list[IncomingMessage] = []
    notes: list[Block] = []
    for place, blocks in placed:
        words: list[Block] = []
        for block in blocks:
            if block["type"] != "tool_result":
                is_note = results and block["type"] == "text" and _is_note(block["text"])
                (notes if is_note else words).append(block)
        if words:
            users.append(IncomingMessage(place, "user", _content(words)))
    last = len(results) - 1
    outputs = [
        IncomingMessage(place, "tool", _output(result, notes if at == last else ()), tool_call_id=result["tool_use_id"])
        for at, (place, result) in enumerate(results)
    ]
    return [*outputs, *users] or [IncomingMessage(placed[0][0], "user", _content(()))]


def _is_note(text: str) -> bool:
    """Whether a text beside tool results is from the agent and not from the user: it is blank, or has only elements
    such as `<system-reminder>`. As a user message it would end the tool loop."""
    at = 0
    for _ in range(_MOST_ELEMENTS):
        opened = _ELEMENT.match(text, at)
        if opened is None:
            break
        end = f"</{opened[1]}>"
        closed = text.find(end, opened.end())
        if closed < 0:
            return False
        at = closed + len(end)
    return not text[at:].strip()


def _output(result: Block, notes: Sequence[Block]) -> Content:
    """The output of a tool. The neutral form has no field for failure, so a text says that the tool failed."""
    failed = [_text_part("The tool failed.")] if result.get("is_error") else []
    return _content(
        [*failed, *_as_blocks(result.get("content") or ()), *(note for note in notes if note["text"].strip())]
    )


def _content(blocks: Sequence[Block]) -> Content:
    """The neutral content of blocks. If all are texts they are joined, because not every provider accepts a list."""
    parts = [_part(block) for outer in blocks for block in _within(outer)]
    return _joined_texts(parts) if all(part["type"] == "text" for part in parts) else parts


def _joined_texts(blocks: Sequence[Block]) -> str:
    return "\n\n".join(text for block in blocks if (text := str(block["text"])).strip())


def _within(block: Block) -> list[Block]:
    """What a document consists of, after its title and what the client says about it; other blocks as they are. A file
    has its title as its name."""
    if block["type"] != "document":
        return [block]
    title, context = ([_text_part(block[name])] if block.get(name) else [] for name in ("title", "context"))
    match block["source"]["type"]:
        case "base64":
            return [*context, block]
        case "text":
            return [*title, *context, _text_part(block["source"]["data"])]
        case _:
            return [*title, *context, *_as_blocks(block["source"]["content"])]


def _part(block: Block) -> ContentPart:
    match block["type"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(block["source"])}}
        case "document":
            named = {"filename": block["title"]} if block.get("title") else {}
            return {"type": "file", "file": {"file_data": _url(block["source"]), **named}}
        case "search_result":
            return _text_part("\n".join((block["title"], block["source"], _joined_texts(block["content"]))))
        case "tool_reference":
            return _text_part(f"The tool {block['tool_name']} is available.")
        case _:
            return _text_part(str(block["text"]))


def _text_part(text: str) -> ContentPart:
    return {"type": "text", "text": text}


def _url(source: Block) -> str:
    return source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"


_STOP_REASONS: Final[Mapping[str, str]] = {"length": "max_tokens", "content_filter": "refusal", "refusal": "refusal"}


UNSIGNED: Final = "unsigned"
"""The signature of a thinking block that has none. Clients take an empty one for an answer that was cut off: they leave
the block out, or send its text as another message's, and the history is no longer recognized."""


def thinking_blocks(reasoning: str | None, blocks: Sequence[JsonObject]) -> list[JsonObject]:
    """Anthropic's blocks, or else the provider's reasoning in the same form."""
    thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
    if not thoughts and reasoning:
        thoughts = [{"type": "thinking", "thinking": reasoning}]
    return [
        {**block, "signature": block.get("signature") or UNSIGNED} if block["type"] == "thinking" else block
        for block in thoughts
    ]


def reply_blocks(text: str | None, calls: Sequence[ToolCall]) -> list[JsonObject]:
    """Text and calls as blocks. A reply with neither has one empty text block, because clients read the first block."""
    texts: list[JsonObject] = [{"type": "text", "text": text or ""}] if text or not calls else []
    return texts + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call_input(call.arguments)} for call in calls
    ]


def compaction_block(compaction: Compaction, text: str) -> JsonObject:
    """The block that replaces the messages before it. `text` is the summary as models are shown it."""
    return {"type": "compaction", "content": text, "encrypted_content": compaction.handle}


def applied_edits(context: JsonObject) -> list[JsonObject]:
    """The edit that cleared tool results from a turn's prompt, with its counts; empty if it cleared nothing."""
    actions: list[JsonObject] = context.get("context_trim_log", {}).get("actions", [])
    cleared = [action for action in actions if action["reason"] == CLEARED]
    if not cleared:
        return []
    uses = sum(action.get("count", 1) for action in cleared if action["kind"] == "tool_result_shortened")
    tokens = sum(action["tokens_removed_est"] for action in cleared)
    return [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": uses, "cleared_input_tokens": tokens}]


def stop_reason(finish_reason: str | None, reply: Completion) -> str:
    """Why the model stopped: an answer that was cut off says so, also if it has calls. A stop sequence of which the
    provider did not say that it was met is `end_turn`."""
    otherwise = "tool_use" if reply.tool_calls else "stop_sequence" if reply.stop_sequence else "end_turn"
    return _STOP_REASONS.get(finish_reason or "", otherwise)


def usage_json(usage: Usage | None, estimated_tokens: int) -> JsonObject:
    """The provider's token counts, or the prompt's estimate if it reports none. `input_tokens` excludes the tokens
    that were read from or written to the provider's cache."""
    used = usage or Usage(estimated_tokens, 0)
    return {
        "input_tokens": max(0, used.prompt_tokens - used.cached_prompt_tokens - used.cache_write_prompt_tokens),
        "cache_creation_input_tokens": used.cache_write_prompt_tokens,
        "cache_read_input_tokens": used.cached_prompt_tokens,
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"thinking_tokens": used.reasoning_completion_tokens},
    }
