"""Which turns a summary includes, and how many tokens it may have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from app.domain.content import content_text, labels_of, named, of_one_speaker
from app.domain.frozen import frozen
from app.domain.types import Message, Summary, Turn
from app.engine.messages.turns import sendable_messages

SummaryReason: TypeAlias = Literal[
    "threshold", "turn_count", "usage", "message_count", "window", "allocation", "requested", "provider_overflow"
]
"""Why a summary is made, in the order above: the trigger ratio or the prune threshold, the number of completed turns,
the used share of the window, the number of messages in it, the window including the output, the share that the other
regions leave for the history, a client's request, or a provider that rejected the prompt."""


@frozen(slots=False)
class Fold:
    """A summary that is to be made: `turns` are folded in; `protected` are shown to the summarizer as context that its
    items may cite; `previous` is the active summary, which the new one includes. `folded_tokens` are the wire tokens of
    the messages and the block that it replaces, `cap_tokens` is the largest size of the new block."""

    reason: SummaryReason
    turns: Sequence[Turn]
    protected: Sequence[Turn]
    previous: Summary | None
    previous_tokens: int
    folded_tokens: int
    cap_tokens: int
    cites_context: bool = True

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages that the new summary replaces besides those of the previous one."""
        return tuple(message for turn in self.turns for message in turn.messages)

    @cached_property
    def sources(self) -> tuple[Message, ...]:
        """Those that a summary may be made from: the sendable ones, so none of a rejected turn."""
        return sendable_messages(self.turns)

    @cached_property
    def source_texts(self) -> tuple[tuple[Message, str], ...]:
        return self._texts(self.sources)

    @cached_property
    def context(self) -> tuple[Message, ...]:
        """The messages of the protected turns that a summarizer is shown and may cite: the sendable ones."""
        return sendable_messages(self.protected)

    @cached_property
    def context_texts(self) -> tuple[tuple[Message, str], ...]:
        return self._texts(self.context)

    def _texts(self, messages: Sequence[Message]) -> tuple[tuple[Message, str], ...]:
        labels = labels_of(message.name for message in (*self.sources, *self.context))
        return tuple([(message, source_text(message, labels)) for message in messages])

    @cached_property
    def unseen(self) -> Turn | None:
        """The newest protected turn with a sendable message, else None. No prompt so far has contained its reply."""
        return next((turn for turn in reversed(self.protected) if sendable_messages((turn,))), None)


def source_text(message: Message, labels: Collection[str] = ()) -> str:
    """The text of a message for a summarizer: its content, with the speaker (`with_speakers`), and its tool calls."""
    text = content_text(message.content)
    if message.name:
        text = named(message.name, content_text(of_one_speaker(text, labels)))
    calls = [f"[called {call.name} with {call.arguments}]" for call in message.tool_calls]
    return "\n".join([part for part in (text, *calls) if part])
