"""What messages are worth for the room they take, for a prune that takes the least first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.domain.content import content_text
from app.domain.extractive import demands
from app.domain.types import Message, Role

_WORTH: Final[Mapping[Role, float]] = {"user": 2.0, "assistant": 1.0, "tool": 0.5}
"""Of a message, however long it is: most of what is asked about later was said in a short one."""


def worth_per_token(messages: Sequence[Message], wire_tokens: int) -> tuple[bool, float]:
    """A key that sorts the least worth first; `wire_tokens` is what the messages cost as they are sent now.

    The longer what an assistant or a tool said, the sooner it leaves. What a user demanded for good ("always answer
    in French") comes after everything else, whatever its length.
    """
    standing = any(message.role == "user" and demands(content_text(message.content)) for message in messages)
    return standing, sum(_WORTH[message.role] for message in messages) / max(1, wire_tokens)
