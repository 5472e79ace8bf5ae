"""A prompt: its parts in the order they are sent, each with its region, its tokens and its origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from app.domain.content import (
    JsonMessages,
    canonical_bytes,
    canonical_json,
    sha256_hex,
    tool_call_json,
    tool_calls_from_json,
)
from app.domain.frozen import frozen, replace
from app.domain.types import (
    REGIONS,
    Content,
    JsonObject,
    Message,
    MessageId,
    Pin,
    PromptMessage,
    ReasoningForm,
    Region,
    Role,
    ToolDefinition,
    TurnId,
)
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate, framing_tokens
from app.engine.messages.turns import NO_REASONING

OPENING: Final = b'{"messages":['
"""Beginning of the canonical JSON of every prompt."""
CLOSING: Final = b'],"tools":%b}'
"""End of the canonical JSON of every prompt, after its messages."""


@frozen(slots=False)
class Block:
    """Text that is sent but is not a stored message: with `is_json` the canonical JSON of a list of parts, with
    `is_message` that of a whole message. `sha256` (hex) is its key in `prompt_blocks`. It is not stored if it can be
    made again of a stored message: `made_by` then is the letter of the reference that says how."""

    role: str
    text: str
    is_json: bool = False
    is_message: bool = False
    made_by: str | None = None

    @cached_property
    def sha256(self) -> str:
        return sha256_hex(self.text)

    @property
    def content(self) -> Content:
        return json.loads(self.text) if self.is_json else self.text


@frozen
class PromptItem:
    """One message of a prompt: a stored `message`, or a `block` with a `name`, or both, where the block replaces the
    content of the message. `tokens` is without framing. With `inputs_cleared` its calls have no arguments."""

    messages: ClassVar[Literal[1]] = 1
    region: Region
    tokens: int
    block: Block | None = None
    message: Message | None = None
    name: str = ""
    inputs_cleared: bool = False

    @property
    def label(self) -> str:
        """The name of the item in trim logs and answers."""
        return self.name if self.message is None else f"message:{self.message.id}"

    @property
    def wire_tokens(self) -> int:
        return self.tokens + MESSAGE_FRAMING_TOKENS

    @property
    def is_shortened(self) -> bool:
        """Whether it is a stored message with something left out."""
        return self.message is not None and (self.block is not None or self.inputs_cleared)

    def as_sent(self) -> PromptMessage:
        """The neutral form that provider adapters translate."""
        if self.message is not None:
            return neutral_message(self.message, content=self.block.content if self.block else None)
        if self.block is None:
            raise ValueError(f"{self.label} has neither a message nor a block")
        if self.block.is_message:
            return json.loads(self.block.text)
        return {"role": self.block.role, "content": self.block.text}


class Stretch(NamedTuple):
    """Messages with consecutive numbers whose reasoning is sent in one form. The first `users` of them are users'."""

    form: ReasoningForm | None
    first_seq: int
    last_seq: int
    users: int


class StoredPieces(Protocol):
    """What is sent of the pieces of a past, by position, and of runs of them from position `first` to before `end`."""

    def items(self, place: int) -> tuple[PromptItem, ...]: ...
    def label(self, place: int) -> str: ...
    def day(self, place: int) -> int | None: ...
    def turn_id(self, place: int) -> TurnId: ...
    def run(self, first: int, end: int) -> Run: ...
    def ids_of_run(self, first: int, end: int) -> Iterator[tuple[int, MessageId, TurnId]]: ...
    def text_keys_of_run(self, first: int, end: int) -> Iterator[int]: ...
    def stretches_of_run(self, first: int, end: int) -> Iterator[Stretch]: ...
    def json_of_run(self, first: int, end: int) -> bytes: ...
    def sha256_of_run(self, before: bytes, first: int, end: int, after: Iterable[bytes]) -> str: ...


@frozen
class Run:
    """Consecutive pieces of the past, sent as stored, with their number of messages and the sum of their tokens."""

    region: ClassVar[Region] = "history"
    past: StoredPieces
    first: int
    end: int
    tokens: int
    messages: int

    def json(self) -> bytes:
        return self.past.json_of_run(self.first, self.end)


Part: TypeAlias = PromptItem | Run


@frozen(slots=False)
class Prompt:
    """All that is sent for one model call. Its sums are read several times in a turn, so they are cached."""

    parts: tuple[Part, ...]
    tools: tuple[ToolDefinition, ...]
    tools_tokens: int

    @cached_property
    def message_count(self) -> int:
        return sum([part.messages for part in self.parts])

    @property
    def lasting_messages(self) -> int:
        """How many messages precede those recalled for this turn only. The next prompt begins with these messages."""
        return sum([part.messages for part in takewhile(lambda part: part.region != "recall", self.parts)])

    @property
    def framing_tokens(self) -> int:
        return framing_tokens(self.message_count)

    @cached_property
    def wire_tokens(self) -> int:
        return sum([part.tokens for part in self.parts]) + self.framing_tokens + self.tools_tokens

    def regions(self) -> dict[str, int]:
        """Tokens by region; they sum to `wire_tokens`."""
        by_region: dict[str, int] = dict.fromkeys(REGIONS, 0)
        for part in self.parts:
            by_region[part.region] += part.tokens
        by_region["tools"] = self.tools_tokens
        by_region["framing"] = self.framing_tokens
        return by_region

    def labelled(self) -> Iterator[tuple[str, Region, int]]:
        """The label, region and tokens of each message, in order."""
        for part in self.parts:
            if isinstance(part, PromptItem):
                yield part.label, part.region, part.tokens
            else:
                for tokens, message_id, _ in part.past.ids_of_run(part.first, part.end):
                    yield f"message:{message_id}", part.region, tokens

    def looked_back(self) -> JsonObject | None:
        """The number of its look-back messages and their wire tokens; None without any."""
        items = [part for part in self.parts if isinstance(part, PromptItem) and part.block and part.block.is_message]
        return {"messages": len(items), "tokens": sum(item.wire_tokens for item in items)} if items else None

    def seqs_as_stored(self) -> frozenset[int]:
        """The numbers of the messages that it contains as they are stored."""
        seqs: set[int] = set()
        for part in self.parts:
            if isinstance(part, Run):
                for stretch in part.past.stretches_of_run(part.first, part.end):
                    seqs.update(range(stretch.first_seq, stretch.last_seq + 1))
            elif part.message is not None and not part.is_shortened:
                seqs.add(part.message.seq)
        return frozenset(seqs)

    def as_sent(self) -> list[PromptMessage | None]:
        """Each part in the neutral form, None for a run."""
        return [None if isinstance(part, Run) else part.as_sent() for part in self.parts]

    def messages(self, sent: Sequence[PromptMessage | None] | None = None) -> JsonMessages:
        """The messages in the order they are sent; one of their `pieces` for each part. `sent` is `as_sent()`."""
        parts = zip(self.parts, self.as_sent() if sent is None else sent, strict=True)
        of_parts = [part.json() if isinstance(part, Run) else b"," + canonical_bytes(sent) for part, sent in parts]
        pieces = (of_parts[0][1:], *of_parts[1:]) if of_parts else ()
        return JsonMessages(pieces, self.message_count)

    def hashed(self, sent: Sequence[PromptMessage | None]) -> tuple[JsonMessages, str, int]:
        """The messages; the SHA-256 (hex) of the canonical JSON of `{messages, tools}`; the bytes of that JSON."""
        messages = self.messages(sent)
        closing = CLOSING % (self.tools_block.text.encode() if self.tools_block else b"[]")
        at, run = next(((at, part) for at, part in enumerate(self.parts) if isinstance(part, Run)), (0, None))
        if run is None:
            sha256 = hashlib.sha256(b"".join((OPENING, *messages.pieces, closing))).hexdigest()
        else:
            before, after = b"".join((OPENING, *messages.pieces[:at])), (*messages.pieces[at + 1 :], closing)
            sha256 = run.past.sha256_of_run(before, run.first, run.end, after)
        return messages, sha256, len(OPENING) + sum(map(len, messages.pieces)) + len(closing)

    def blocks(self) -> tuple[Block, ...]:
        """The blocks that must be in `prompt_blocks` to rebuild the prompt, tool definitions included."""
        of_parts = [part.block for part in self.parts if isinstance(part, PromptItem)]
        return tuple([block for block in (*of_parts, self.tools_block) if block is not None and not block.made_by])

    @cached_property
    def tools_block(self) -> Block | None:
        """The tool definitions as they are stored; None without tools."""
        return Block("tools", canonical_json(list(self.tools))) if self.tools else None


def block_item(region: Region, name: str, role: str, text: str, estimate: Estimate) -> PromptItem:
    """An item with text that is not a stored message."""
    return PromptItem(region, estimate(text), Block(role, text), None, name)


def pin_text(pin: Pin) -> str:
    """A pin as it is sent: in a fence named by the hash of its content, which the content cannot contain. So a pinned
    file cannot close its fence and continue as another pin or as text of the operator."""
    origin = f" (from {_one_line(pin.source)})" if pin.source else ""
    fence = f"pin-{sha256_hex(pin.content)[:16]}"
    return f"Pinned for this conversation: {_one_line(pin.name)}{origin}\n<{fence}>\n{pin.content}\n</{fence}>"


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def goal_text(room_goal: str | None, mode: str | None) -> str | None:
    """The session's goal and mode as one text, or None when neither is set."""
    lines = [f"Goal of this conversation: {room_goal}"] if room_goal else []
    if mode:
        lines.append(f"Mode: {mode}")
    return "\n".join(lines) or None


def without_inputs(message: Message) -> Message:
    return replace(message, tool_calls=tuple([replace(call, arguments="{}") for call in message.tool_calls]))


def neutral_message(message: Message, *, content: Content = None) -> PromptMessage:
    """A stored message in the neutral form; `content` replaces its own where it was shortened."""
    sent: PromptMessage = {"role": message.role, "content": message.content if content is None else content}
    if message.name:
        sent["name"] = message.name
    if message.tool_calls:
        sent["tool_calls"] = [tool_call_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    if message.role == "assistant" and message.reasoning_sent == "text":
        sent["reasoning_content"] = message.reasoning or NO_REASONING
    elif message.reasoning_sent == "blocks" and message.reasoning_blocks:
        sent["reasoning_blocks"] = list(message.reasoning_blocks)
    return sent


def message_of(
    sent: PromptMessage,
    message_id: MessageId,
    turn_id: TurnId,
    seq: int,
    tokens: int,
    *,
    reasoning_sent: ReasoningForm | None = None,
    said_at: datetime | None = None,
    is_look_back: bool = False,
) -> Message:
    """The inverse of `neutral_message`: the message of this form, without any reasoning that was not sent."""
    return Message(
        id=message_id,
        turn_id=turn_id,
        seq=seq,
        role=sent["role"],
        content=sent["content"],
        tokens=tokens,
        tool_calls=tool_calls_from_json(sent.get("tool_calls")),
        tool_call_id=sent.get("tool_call_id"),
        reasoning=sent.get("reasoning_content"),
        reasoning_blocks=tuple(sent.get("reasoning_blocks", ())),
        reasoning_sent=reasoning_sent,
        name=sent.get("name"),
        said_at=said_at,
        is_look_back=is_look_back,
    )


def whole_message_block(message: Message) -> Block:
    """A block with the whole of a message that is not stored in a row."""
    return Block(message.role, canonical_json(neutral_message(message)), is_message=True)


def message_json(message: Message) -> bytes:
    """The canonical JSON of a stored message that is sent unchanged, with a leading comma."""
    return b"," + canonical_bytes(neutral_message(message))


def text_format(role: Role) -> bytes:
    """The same for a message that has only text, as a format with `%b` for the JSON of the text."""
    return b',{"content":%%b,"role":"%b"}' % role.encode()
