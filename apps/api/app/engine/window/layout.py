"""A prompt message by message: where each stands and what it costs, for people who ask what filled the window."""

from __future__ import annotations

from app.domain.types import JsonObject, Message
from app.engine.messages.media import ImageTokens
from app.engine.messages.tokens import Estimate, content_tokens, message_tokens, reasoning_tokens
from app.engine.window.prompt import Prompt, Region
from app.engine.window.prompt_refs import RebuiltPart


def layout_of(prompt: Prompt) -> list[JsonObject]:
    """One row for each message of a prompt that was just decided, in order."""
    return [
        _row(item.region, item.tokens, item.message, shortened=item.message is not None and item.block is not None)
        for item in prompt.items
    ]


def rebuilt_row(part: RebuiltPart, region: Region | None, estimate: Estimate, image_tokens: ImageTokens) -> JsonObject:
    """The row of a message that was rebuilt, counted again: counts of single messages are not stored with a prompt."""
    message = part.message
    if message is None:
        return _row(region, content_tokens(part.sent["content"], estimate), None)
    tokens = message_tokens(
        part.sent["content"],
        estimate,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        image_tokens=image_tokens,
    )
    tokens += _reasoning(message, estimate)
    return _row(region, tokens, message, shortened=part.shortened)


def _reasoning(message: Message, estimate: Estimate) -> int:
    if message.role != "assistant" or message.reasoning_sent is None:
        return 0
    if message.reasoning_sent == "blocks" and not message.reasoning_blocks:
        return 0
    if message.reasoning_sent == "text" and not message.reasoning:
        return 1
    return reasoning_tokens(message.reasoning, message.reasoning_blocks, estimate)


def _row(region: Region | None, tokens: int, message: Message | None, *, shortened: bool = False) -> JsonObject:
    return {
        "region": region,
        "tokens": tokens,
        "message_id": None if message is None else message.id,
        "turn_id": None if message is None else message.turn_id,
        "shortened": shortened,
    }
