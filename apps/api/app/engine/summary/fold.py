"""Which turns a summary takes in, and the room that it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from app.domain.content import content_text, named
from app.domain.types import Message, Summary, Turn
from app.engine.messages.turns import sendable_messages

SummaryReason: TypeAlias = Literal[
    "threshold", "turn_count", "usage", "message_count", "window", "allocation", "requested", "provider_overflow"
]
"""What asked for a summary: the trigger ratio or the prune threshold, the completed turns, the share of the window, the
messages in it, the window with the output beside it, what the other regions leave to the history, somebody, or the
provider that refused the prompt."""

MIN_SUMMARY_TOKENS = 96
"""The fence and a sentence or two: nothing smaller can stand for anything."""


@dataclass(frozen=True)
class Fold:
    """A summary that is to be made.

    `turns` are folded in, `protected` are shown to the summarizer as context that its items may cite, `previous` is the
    active summary, which the new one takes over. `folded_tokens` is what leaves the wire: the turns' messages and the
    previous block. `cap_tokens` is the largest block that may take their place.
    """

    reason: SummaryReason
    turns: tuple[Turn, ...]
    protected: tuple[Turn, ...]
    previous: Summary | None
    previous_tokens: int
    folded_tokens: int
    cap_tokens: int

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All messages the new summary will stand for beyond its predecessor's: its range."""
        return tuple(message for turn in self.turns for message in turn.messages)

    @cached_property
    def sources(self) -> tuple[Message, ...]:
        """What of them a summary may be made from: what could have been sent, so nothing that was rejected."""
        return sendable_messages(self.turns)

    @cached_property
    def source_texts(self) -> tuple[str, ...]:
        """What a summarizer reads of each of the sources."""
        return tuple([source_text(message) for message in self.sources])

    @cached_property
    def context(self) -> tuple[Message, ...]:
        """The messages of the protected turns that a summarizer is shown and may cite: those that are sent."""
        return sendable_messages(self.protected)

    @cached_property
    def unseen(self) -> Turn | None:
        """The newest turn that stays: no prompt that was sent had its reply. None where none stays."""
        return next((turn for turn in reversed(self.protected) if sendable_messages((turn,))), None)


def source_text(message: Message) -> str:
    """What a summarizer reads of a message: its words, with who said them, and the calls it made."""
    text = named(message.name, content_text(message.content))
    if not message.tool_calls:
        return text
    calls = [f"[called {call.name} with {call.arguments}]" for call in message.tool_calls]
    return "\n".join([part for part in (text, *calls) if part])
