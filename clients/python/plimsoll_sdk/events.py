"""The events of a turn while it runs, typed, and how it is read from server-sent events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import ValidationError

from plimsoll_sdk.errors import Problem, UnexpectedAnswer, problem_of
from plimsoll_sdk.models import Context, Turn, TurnHead

_MOST_PENDING_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class TurnCreated:
    """The turn has its number and is stored."""

    name: ClassVar[Literal["turn.created"]] = "turn.created"
    turn: TurnHead


@dataclass(frozen=True)
class ContextAssembled:
    """The prompt stands; the model is asked."""

    name: ClassVar[Literal["context.assembled"]] = "context.assembled"
    context: Context


@dataclass(frozen=True)
class OutputDelta:
    """What the answer grew by."""

    name: ClassVar[Literal["output.delta"]] = "output.delta"
    text: str


@dataclass(frozen=True)
class TurnCompleted:
    """The end: the turn as reading it now gives it."""

    name: ClassVar[Literal["turn.completed"]] = "turn.completed"
    turn: Turn
    context: Context


@dataclass(frozen=True)
class TurnAwaitingTools:
    """The end of a round: `turn.tool_calls` want their outputs."""

    name: ClassVar[Literal["turn.awaiting_tools"]] = "turn.awaiting_tools"
    turn: Turn
    context: Context


@dataclass(frozen=True)
class TurnFailed:
    """The end of a turn that could not be completed; its message is kept."""

    name: ClassVar[Literal["turn.failed"]] = "turn.failed"
    turn: Turn | None
    error: Problem


TurnEvent: TypeAlias = TurnCreated | ContextAssembled | OutputDelta | TurnCompleted | TurnAwaitingTools | TurnFailed


class EventReader:
    """Takes a stream's bytes as they come and gives the events that are whole."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[TurnEvent]:
        """The events that these bytes complete. Raises `UnexpectedAnswer` for what is none of ours."""
        *blocks, self._pending = (self._pending + data).split(b"\n\n")
        if len(self._pending) > _MOST_PENDING_BYTES:
            raise UnexpectedAnswer("An event of the stream has no end", 200)
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> TurnEvent | None:
    """The event of a block of lines; None for comments, and for events of later versions."""
    name, data = "", b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip().decode("utf-8", "replace")
        elif field == b"data":
            data = value.strip()
    if not name:
        return None
    try:
        return _read(name, json.loads(data))
    except (ValueError, KeyError, TypeError, ValidationError):
        raise UnexpectedAnswer("An event of the stream is not the expected one", 200) from None


def _read(name: str, data: dict[str, Any]) -> TurnEvent | None:
    match name:
        case "turn.created":
            return TurnCreated(TurnHead.model_validate(data["turn"]))
        case "context.assembled":
            return ContextAssembled(Context.model_validate(data["context"]))
        case "output.delta":
            return OutputDelta(str(data["text"]))
        case "turn.completed" | "turn.awaiting_tools":
            kind = TurnCompleted if name == "turn.completed" else TurnAwaitingTools
            return kind(Turn.model_validate(data["turn"]), Context.model_validate(data["context"]))
        case "turn.failed":
            turn = None if data["turn"] is None else Turn.model_validate(data["turn"])
            return TurnFailed(turn, problem_of(int(data["error"]["status"]), data["error"]))
        case _:
            return None
