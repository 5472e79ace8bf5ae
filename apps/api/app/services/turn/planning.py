"""Runs counts and decisions on the event loop, or in a thread if their input is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from app.domain.content import chars_of, content_text
from app.domain.types import Content, Message, Role
from app.engine.messages.tokens import counted, message_tokens, tools_tokens
from app.engine.recall.index import packed_terms
from app.engine.window.plan import Assembled, Ready, assemble
from app.engine.window.prompt import pin_text
from app.engine.window.snapshot import Snapshot
from app.services.runtime import Runtime
from app.tokenizers.counters import Estimator, Tokenizers

_LONG_CHARS = 16_384
"""Longest text around the messages, in characters, that is counted on the event loop."""
_INLINE_CHARS = 131_072
"""Characters of a turn and the texts around it that are laid out, hashed and encoded on the event loop (a few ms)."""
INLINE_MESSAGES = 1_000
"""Messages of a turn that are pruned, or of a summary that are read, on the event loop (a few ms)."""
_INLINE_PAST_CHARS = 1_048_576
"""Characters of a past whose messages are built from JSON and hashed on the event loop (a few ms)."""

_PACKED_CHARS = 32_768
"""Characters of messages whose terms are packed on the event loop."""
_MESSAGE_CHARS = 64
"""Characters that take as long to pack as the fixed work for one message."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def count_long_texts(tokenizers: Tokenizers, estimate: Estimator, snapshot: Snapshot) -> None:
    """Counts the long texts around the messages off the event loop, so that the engine's own count is a cache hit."""
    if snapshot.chars_around <= _LONG_CHARS:
        return

    def count() -> None:
        texts = [text for _, text in snapshot.layers] + [snapshot.goal or ""]
        texts += [pin_text(pin) for pin in snapshot.pins if len(pin.content) > _LONG_CHARS]
        for text in texts:
            if len(text) > _LONG_CHARS:
                estimate(text)
        tools_tokens(snapshot.tools, estimate)

    await tokenizers.off_loop(count)


async def count_message(
    rt: Runtime, encoding: str, content: Content, *, tool_call_id: str | None = None, name: str | None = None
) -> tuple[int, str]:
    """The tokens of a message that calls no tools, and the encoding in which they are counted."""
    count = partial(message_tokens, content, tool_call_id=tool_call_id, name=name)
    return await rt.tokenizers.count_aside(encoding, chars_of(content), count)


async def recounted(rt: Runtime, encoding: str, message: Message) -> tuple[Message, str]:
    """The message with its reasoning counted in the encoding, and the encoding that was used."""
    chars = chars_of(message.content, message.tool_calls) + len(message.reasoning or "")
    chars += sum([len(str(block.get("thinking", ""))) for block in message.reasoning_blocks])
    return await rt.tokenizers.count_aside(encoding, chars, partial(counted, message))


async def pack_messages(messages: Sequence[tuple[Role, Content, bool, str | None]]) -> list[bytes]:
    """The packed terms of messages, given by role, content, whether they call tools, and who spoke. Many characters
    are packed on a thread, off the event loop."""

    def packed() -> list[bytes]:
        return [packed_terms(role, content, has_calls=calls, name=name) for role, content, calls, name in messages]

    chars = sum(len(content_text(content)) + _MESSAGE_CHARS for _, content, _, _ in messages)
    return await computed(packed, is_long=chars > _PACKED_CHARS)


async def planned(
    decision: Callable[Concatenate[Snapshot, _P], _T], snapshot: Snapshot, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """The result of a decision on the snapshot. It runs in a thread if the past is long, because most of it may be
    pruned, or if the prompt is long, because it is hashed."""
    is_long = snapshot.past.is_long or _is_large(snapshot)
    return await computed(partial(decision, snapshot, *args, **kwargs), is_long=is_long)


async def assembled(ready: Ready) -> Assembled:
    """The exact prompt of a plan. It is assembled in a thread if it is long."""
    return await computed(assemble, ready, is_long=_is_large(ready.window.snapshot))


async def computed(work: Callable[..., _T], *given: Any, is_long: bool) -> _T:
    """The result of the work, which runs in a thread if its input is long."""
    return await asyncio.to_thread(work, *given) if is_long else work(*given)


def _is_large(snapshot: Snapshot) -> bool:
    """Whether the prompt is so large that hashing and encoding it would block the event loop noticeably."""
    past = snapshot.past
    if len(snapshot.current.messages) > INLINE_MESSAGES:
        return True
    chars = snapshot.chars_around
    for message in snapshot.current.messages:  # of a long turn only the first are looked at
        chars += chars_of(message.content, message.tool_calls)
        if chars > _INLINE_CHARS:
            return True
    newest = sum([chars_of(message.content, message.tool_calls) for turn in past.newest for message in turn.messages])
    return newest + past.kept_bytes > _INLINE_PAST_CHARS
