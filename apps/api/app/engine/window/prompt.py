"""A prompt in the making: its items in the order they are sent, each with its region, its cost and its origin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.content import canonical_json, sha256_hex, tool_call_json
from app.domain.types import REGIONS, Content, JsonObject, Message, Pin, PromptMessage, Region, ToolDefinition
from app.engine.messages.reasoning import NO_REASONING
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, PROMPT_FRAMING_TOKENS, Estimate, tools_tokens


@dataclass(frozen=True, slots=True)
class Block:
    """Text that is sent and is no stored message. `sha256` (hex) is its address in `prompt_blocks`.

    With `is_json` the text is the canonical JSON of a content that is a list of parts.
    """

    role: str
    text: str
    is_json: bool = False

    @property
    def sha256(self) -> str:
        return sha256_hex(self.text)

    @property
    def content(self) -> Content:
        """What stands in the message that is sent."""
        return json.loads(self.text) if self.is_json else self.text


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One message of a prompt.

    Exactly one of `block` and `message` is set, except that a shortened message has both: its own row for role and
    pairing, and the block that stands in for its content. `tokens` is without framing. What is no stored message has
    a `name`.
    """

    region: Region
    tokens: int
    block: Block | None = None
    message: Message | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """The item as people and trim logs name it."""
        return self.name if self.message is None else f"message:{self.message.id}"

    @property
    def wire_tokens(self) -> int:
        """With the framing every message carries."""
        return self.tokens + MESSAGE_FRAMING_TOKENS

    def as_sent(self) -> PromptMessage:
        """The neutral form an adapter translates."""
        if self.message is not None:
            return neutral_message(self.message, content=self.block.content if self.block else None)
        if self.block is None:
            raise ValueError(f"{self.label} has neither a message nor a block")
        return {"role": self.block.role, "content": self.block.text}


@dataclass(frozen=True, slots=True)
class Prompt:
    """All that goes over the wire for one model call."""

    items: tuple[PromptItem, ...]
    tools: tuple[ToolDefinition, ...]
    tools_tokens: int

    @property
    def framing_tokens(self) -> int:
        return MESSAGE_FRAMING_TOKENS * len(self.items) + PROMPT_FRAMING_TOKENS

    @property
    def overhead_tokens(self) -> int:
        """What the overhead reserve is there for."""
        return self.framing_tokens + self.tools_tokens

    @property
    def wire_tokens(self) -> int:
        return sum(item.tokens for item in self.items) + self.overhead_tokens

    def regions(self) -> dict[str, int]:
        """Tokens by region; they sum to `wire_tokens`."""
        by_region: dict[str, int] = dict.fromkeys(REGIONS, 0)
        for item in self.items:
            by_region[item.region] += item.tokens
        by_region["tools"] = self.tools_tokens
        by_region["framing"] = self.framing_tokens
        return by_region

    def messages(self) -> list[PromptMessage]:
        """The messages in the order they are sent."""
        return [item.as_sent() for item in self.items]

    def blocks(self) -> tuple[Block, ...]:
        """What has to be in `prompt_blocks` for the prompt to be rebuilt, tool definitions included."""
        blocks = [item.block for item in self.items if item.block is not None]
        if self.tools:
            blocks.append(tools_block(self.tools))
        return tuple(blocks)


def build_prompt(items: Iterable[PromptItem], tools: Sequence[ToolDefinition], estimate: Estimate) -> Prompt:
    """Puts items and tools together and counts the tools."""
    return Prompt(tuple(items), tuple(tools), tools_tokens(tools, estimate))


def block_item(region: Region, name: str, role: str, text: str, estimate: Estimate) -> PromptItem:
    """An item of text that is no stored message."""
    return PromptItem(region, estimate(text), block=Block(role, text), name=name)


def pin_text(pin: Pin) -> str:
    """How a pin is shown to the model: in a fence named by the content's own hash, which no content can hold.

    So a pinned file cannot close its fence and go on as another pin, or as what the operator says.
    """
    origin = f" (from {_one_line(pin.source)})" if pin.source else ""
    fence = f"pin-{sha256_hex(pin.content)[:16]}"
    return f"Pinned for this conversation: {_one_line(pin.name)}{origin}\n<{fence}>\n{pin.content}\n</{fence}>"


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def goal_text(room_goal: str | None, mode: str | None) -> str | None:
    """The room goal and mode as one text, or None when neither is set."""
    lines = [f"Goal of this conversation: {room_goal}"] if room_goal else []
    if mode:
        lines.append(f"Mode: {mode}")
    return "\n".join(lines) or None


def neutral_message(message: Message, *, content: Content = None) -> PromptMessage:
    """A stored message in the neutral form; `content` replaces its own where it was shortened."""
    sent: PromptMessage = {"role": message.role, "content": message.content if content is None else content}
    if message.tool_calls:
        sent["tool_calls"] = [tool_call_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    if message.role == "assistant" and message.reasoning_sent == "text":
        sent["reasoning_content"] = message.reasoning or NO_REASONING
    elif message.reasoning_sent == "blocks" and message.reasoning_blocks:
        sent["reasoning_blocks"] = list(message.reasoning_blocks)
    return sent


def prompt_sha256(messages: Sequence[PromptMessage], tools: Sequence[ToolDefinition]) -> str:
    """The hash of an exact prompt, hex: of the neutral `{messages, tools}` before an adapter translates it."""
    return sha256_hex(canonical_json({"messages": list(messages), "tools": list(tools)}))


def tools_block(tools: Sequence[ToolDefinition]) -> Block:
    """The tool definitions as one block."""
    return Block("tools", canonical_json(list(tools)))


def public_item(item: PromptItem) -> JsonObject:
    """An item as a 422 names it."""
    return {"item": item.label, "region": item.region, "tokens": item.wire_tokens}
