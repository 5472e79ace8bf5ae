"""What a message, a part of one, and a tool definition cost. The estimator is an argument: `str -> int` tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import orjson

from app.domain.types import Content, ContentPart, ToolCall, ToolDefinition

Estimate: TypeAlias = Callable[[str], int]

MESSAGE_FRAMING_TOKENS = 4
"""Role and delimiters of a message in the chat format (OpenAI's cookbook: three, and one for the role)."""
PROMPT_FRAMING_TOKENS = 3
"""What primes the reply, once a prompt (same source)."""
TOOL_CALL_FRAMING_TOKENS = 3
TOOL_DEFINITION_FRAMING_TOKENS = 8

MEDIA_TOKENS = {"image_url": 1105, "input_audio": 1000, "file": 2000}
"""Flat figures on the high side, by type and never by bytes; an image's is OpenAI's for a large one in high detail."""
UNKNOWN_PART_TOKENS = 1000


def part_tokens(part: ContentPart, estimate: Estimate) -> int:
    """Tokens of one content part."""
    kind = part.get("type")
    if kind == "text":
        return estimate(str(part.get("text", "")))
    return MEDIA_TOKENS.get(str(kind), UNKNOWN_PART_TOKENS)


def content_tokens(content: Content, estimate: Estimate) -> int:
    """Tokens of a message's content; None costs nothing."""
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate(content)
    return sum(part_tokens(part, estimate) for part in content)


def tool_calls_tokens(tool_calls: Iterable[ToolCall], estimate: Estimate) -> int:
    """Tokens of the calls an assistant made: id, type, name and arguments each."""
    return sum(
        estimate(call.id) + estimate(call.name) + estimate(call.arguments) + TOOL_CALL_FRAMING_TOKENS
        for call in tool_calls
    )


def message_tokens(
    content: Content,
    estimate: Estimate,
    *,
    tool_calls: Sequence[ToolCall] = (),
    tool_call_id: str | None = None,
    reasoning: str | None = None,
) -> int:
    """Tokens of all a message carries over the wire, without its framing."""
    return (
        content_tokens(content, estimate)
        + tool_calls_tokens(tool_calls, estimate)
        + (estimate(tool_call_id) if tool_call_id else 0)
        + (estimate(reasoning) if reasoning else 0)
    )


def tools_tokens(tools: Sequence[ToolDefinition], estimate: Estimate) -> int:
    """Tokens of the tool definitions of a prompt."""
    return sum(
        estimate(orjson.dumps(tool, option=orjson.OPT_SORT_KEYS).decode()) + TOOL_DEFINITION_FRAMING_TOKENS
        for tool in tools
    )


def content_text(content: Content) -> str:
    """The readable text of a content; a part that is no text stands as its type in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')}]" for part in content
    )
