"""Token counts of messages, their parts, and tool definitions. The estimator is an argument: `str -> int` tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Protocol, TypeAlias, runtime_checkable

from app.domain.content import canonical_json
from app.domain.frozen import replace
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, JsonObject, Message, ToolCall, ToolDefinition
from app.engine.messages.media import FLAT_IMAGE_TOKENS, ImageTokens, file_text, is_media, media_tokens

Estimate: TypeAlias = Callable[[str], int]


@runtime_checkable
class EstimateOfParts(Protocol):
    """An estimate that can count a text by its parts. Each part except the first begins with a space."""

    def __call__(self, text: str, /) -> int: ...

    def of_parts(self, parts: Sequence[str]) -> int: ...


MESSAGE_FRAMING_TOKENS = 4
"""Role and delimiters of a message in the chat format (OpenAI's cookbook: three, and one for the role)."""
PROMPT_FRAMING_TOKENS = 3
"""Tokens that start the reply, once for each prompt (same source)."""
NAME_FRAMING_TOKENS = 1
"""Framing of a speaker's name, as a field (same source) and as `Anna:` before a text."""
TOOL_CALL_FRAMING_TOKENS = 3
TOOL_DEFINITION_FRAMING_TOKENS = 8
_SEALED_CHARS_PER_TOKEN = 16 / 3
"""For base64 of encrypted text: four characters hold three bytes, and a token of text has about four bytes."""


def tokens_of_parts(parts: Sequence[str], estimate: Estimate) -> int:
    """The tokens of a text that is given in parts, each of which except the first begins with a space."""
    return estimate.of_parts(parts) if isinstance(estimate, EstimateOfParts) else estimate("".join(parts))


def framing_tokens(messages: int) -> int:
    return MESSAGE_FRAMING_TOKENS * messages + PROMPT_FRAMING_TOKENS


def content_tokens(content: Content, estimate: Estimate) -> int:
    """Tokens of a message's content, with the flat figure for each image; 0 for None."""
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate(content)
    texts = ((part, file_text(part) if is_media(part) else str(part.get("text", ""))) for part in content)
    return sum(media_tokens(part) if text is None else estimate(text) for part, text in texts)


def with_images_by_rule(message: Message, image_tokens: ImageTokens) -> Message:
    """A message whose count has the flat figure for images, with its images counted by a model's rule. Stored counts
    have the flat figure, because models with the same encoding can have different rules."""
    more = images_over_flat(message.content, image_tokens)
    return replace(message, tokens=message.tokens + more) if more else message


def images_over_flat(content: Content, image_tokens: ImageTokens) -> int:
    """How many tokens more the images of a content take by a model's rule than by the flat figure; may be negative."""
    if content is None or isinstance(content, str):
        return 0
    return sum(image_tokens(part) - FLAT_IMAGE_TOKENS for part in content if part.get("type") == "image_url")


def message_tokens(
    content: Content,
    estimate: Estimate,
    *,
    tool_calls: Sequence[ToolCall] = (),
    tool_call_id: str | None = None,
    name: str | None = None,
) -> int:
    """Tokens of what a message has on the wire, without its framing and its reasoning."""
    tokens = content_tokens(content, estimate)
    tokens += estimate(name) + NAME_FRAMING_TOKENS if name else 0
    for call in tool_calls:
        tokens += estimate(call.id) + estimate(call.name) + estimate(call.arguments) + TOOL_CALL_FRAMING_TOKENS
    return tokens + (estimate(tool_call_id) if tool_call_id else 0)


def tokens_of(message: Message | IncomingMessage, estimate: Estimate) -> int:
    calls, call_id = message.tool_calls, message.tool_call_id
    return message_tokens(message.content, estimate, tool_calls=calls, tool_call_id=call_id, name=message.name)


def counts_of(message: Message | IncomingMessage, estimate: Estimate) -> tuple[int, int]:
    """The message's own tokens, and those of its reasoning."""
    of_reasoning = reasoning_tokens(message.reasoning, message.reasoning_blocks, estimate)
    return tokens_of(message, estimate), of_reasoning


def counted(message: Message, estimate: Estimate) -> Message:
    """The message with its own tokens and those of its reasoning counted by this estimate."""
    tokens, of_reasoning = counts_of(message, estimate)
    return replace(message, tokens=tokens, reasoning_tokens=of_reasoning)


def reasoning_tokens(reasoning: str | None, blocks: Iterable[JsonObject], estimate: Estimate) -> int:
    """Tokens of a message's reasoning when it is sent back: the larger count of its text and of the provider's blocks.
    A block may have a digest, and the whole reasoning encrypted in its signature (Claude 4), or nothing else (redacted
    blocks). The provider reads the whole again, so a block counts as its encrypted part if that is larger."""
    of_text = estimate(reasoning) if reasoning else 0
    return max(of_text, sum(_block_tokens(block, estimate) for block in blocks))


def _block_tokens(block: JsonObject, estimate: Estimate) -> int:
    sealed = str(block.get("signature") or block.get("data") or block.get("encrypted_content") or "")
    return max(estimate(str(block.get("thinking", ""))), ceil(len(sealed) / _SEALED_CHARS_PER_TOKEN))


def tools_tokens(tools: Sequence[ToolDefinition], estimate: Estimate) -> int:
    return sum(estimate(canonical_json(tool)) + TOOL_DEFINITION_FRAMING_TOKENS for tool in tools)
