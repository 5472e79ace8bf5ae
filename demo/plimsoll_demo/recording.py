"""What a recorded conversation is, once its lines are sorted into turns.

A turn is one user message and everything up to the next one: zero or more rounds. A round is one assistant message; its
calls carry the results that answer them, so a driver can post a round's tool outputs before it asks for the next round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

LeftOut: TypeAlias = Literal[
    "tool_results_without_call", "empty_messages", "system_messages", "media_parts", "tool_definitions",
    "tool_calls", "tool_results", "rounds_not_reached",
]  # fmt: skip
"""What of a recording no turn carried. Tool calls and results are left out of live replays alone."""

Mended: TypeAlias = Literal[
    "messages_joined", "results_moved", "ids_given", "ids_sent_again", "functions_renamed",
    "results_noted_as_missing", "turns_cancelled", "replies_by_the_model",
]  # fmt: skip
"""What of a recording was put right, or is unusual and was sent as it stands (`ids_sent_again`)."""

OPENING_PROMPT = "(The assistant opens the conversation.)"
"""The user's message of a turn that the recording starts with an assistant message: a turn needs one, and this keeps
the opening in the history, under the right role and word for word, at the price of these few tokens."""

MISSING_RESULT = "(The recording holds no result of this call.)"
"""What answers a call without a result, so that the recorded assistant can go on."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call; `arguments` is JSON text as the model wrote it. `result` is None where the recording has none."""

    id: str
    name: str
    arguments: str
    result: str | None = None

    def as_sent(self) -> dict[str, Any]:
        """The call in the OpenAI form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Round:
    """One assistant message of a turn, with what it called."""

    text: str | None
    calls: tuple[RecordedCall, ...] = ()

    @property
    def unanswered(self) -> int:
        """Calls without a result."""
        return sum(call.result is None for call in self.calls)


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One user message and the rounds that answered it; no rounds where the recording has no reply."""

    prompt: str
    rounds: tuple[Round, ...] = ()

    @property
    def reply(self) -> str | None:
        """The text that ends the turn; None where it ends in a call or has no reply."""
        last = self.rounds[-1] if self.rounds else None
        return last.text if last is not None and not last.calls else None


@dataclass(frozen=True, slots=True)
class RecordedConversation:
    """A recorded conversation.

    `instructions` come from its leading system message. `tools` are its definitions in the OpenAI form, the same for
    every turn; empty where nothing was called. `left_out` and `mended` say what was done to the whole of it before
    it is driven.
    """

    name: str
    turns: tuple[RecordedTurn, ...]
    instructions: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    left_out: Mapping[LeftOut, int] | None = None
    mended: Mapping[Mended, int] | None = None
