"""What a recorded conversation is, once its lines are sorted into turns.

A turn is one user message and everything up to the next one: zero or more rounds. A round is one assistant message with
the tool results that answer it, so a driver can post the round's tool outputs before it asks for the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Skipped: TypeAlias = Literal[
    "tool_calls", "tool_results", "interim_texts", "empty_messages", "system_messages", "media_parts"
]

OPENING_PROMPT = "(The assistant opens the conversation.)"
"""The user's message of a turn that the recording starts with an assistant message: a turn needs one, and this keeps
the opening in the history, under the right role and word for word, at the price of these few tokens."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of one tool call."""

    tool_call_id: str
    content: str


@dataclass(frozen=True, slots=True)
class Round:
    """One assistant message of a turn. `tool_calls` are in the OpenAI form, `outputs` are their results."""

    text: str | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    outputs: tuple[ToolOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One user message and the rounds that answered it; no rounds where the recording has no reply."""

    prompt: str
    rounds: tuple[Round, ...] = ()

    @property
    def reply(self) -> str | None:
        """The reply with its tool rounds flattened away: the last assistant text before the next user message."""
        return next((round_.text for round_ in reversed(self.rounds) if round_.text), None)

    def flattened(self) -> Counter[Skipped]:
        """What `reply` leaves out, by kind."""
        texts = sum(1 for round_ in self.rounds if round_.text)
        counts: Counter[Skipped] = Counter()
        counts["tool_calls"] = sum(len(round_.tool_calls) for round_ in self.rounds)
        counts["tool_results"] = sum(len(round_.outputs) for round_ in self.rounds)
        counts["interim_texts"] = max(0, texts - 1)
        return +counts


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recorded conversation: `instructions` from its leading system message, `skipped` is what no turn carries."""

    name: str
    turns: tuple[RecordedTurn, ...]
    instructions: str | None = None
    skipped: Mapping[Skipped, int] | None = None
