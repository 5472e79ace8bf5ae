"""What is told while a turn runs, to whoever streams it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.domain.types import JsonObject

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
