"""The values of a turn that others use: what a caller sends, what it gets, and what is told while the turn runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from app.db.responses import ResponseNote
from app.domain.types import (
    Completion,
    Content,
    JsonObject,
    RecordedReply,
    ToolDefinition,
    TurnRecord,
)

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How the model is called in every round of a turn. `recorded_reply` is of one round alone.

    `instructions` are a system layer of this turn; `provider_options` go into the model's request. `policy` lies over
    the session's own; what is done after the turn goes by the session's. With `whole_past` all of the past is sent as
    it is stored, or the turn is refused. `note` is kept with every claim.
    """

    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    recorded_reply: RecordedReply | None = None
    instructions: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Mapping[str, Any] | None = None
    whole_past: bool = False
    note: ResponseNote | None = None

    def stored(self) -> JsonObject | None:
        """What later rounds need, and another try under the same policy; None when there is nothing of either."""
        if not self.tools and not self.policy:
            return None
        return {
            "tools": list(self.tools),
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "instructions": self.instructions,
            "options": dict(self.provider_options),
            "policy": None if self.policy is None else dict(self.policy),
        }


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a client posts. `request_sha256` is the hash of the body without `stream` (contract.md, decision 14).

    With `seq` it is this turn of its session or none.
    """

    content: Content
    request_sha256: str
    options: TurnOptions = TurnOptions()
    model_alias: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class OutputsRequest:
    """What a client posts when tools have run: (tool call id, content) for each open call.

    `options` and `model_alias` stand for the turn's own from this round on; None keeps those.
    """

    outputs: tuple[tuple[str, Content], ...]
    recorded_reply: RecordedReply | None = None
    options: TurnOptions | None = None
    model_alias: str | None = None


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """A turn that has ended or waits for tools, and its `context`, in the contract's shape.

    `completion` is the model's answer that brought it there, and `reply_seq` the number of its message; None where a
    stored turn is answered again.
    """

    turn: TurnRecord
    context: JsonObject
    completion: Completion | None = None
    reply_seq: int | None = None


EventName: TypeAlias = Literal["turn.created", "context.assembled", "output.delta"]


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """Something that happened while a turn ran, for whoever streams it. The end is the outcome, and no event."""

    name: EventName
    data: JsonObject
    reply_seq: int | None = None
    """With `turn.created`: the number that is set aside for the reply's message. It is not told to everybody."""


Listener: TypeAlias = Callable[[TurnEvent], None]


def to_nobody(_: TurnEvent) -> None:
    """For a turn that is not streamed."""
