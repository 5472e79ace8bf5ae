"""How far the events of a turn have come, and how they go on in a second stream when the first one broke.

The same call with the same idempotency key is the same turn: once that has ended, the service streams it again with its
whole text in one delta. What earlier events had is left out of it.
"""

from __future__ import annotations

from plimsoll_sdk.errors import StreamBroken
from plimsoll_sdk.events import (
    ContextAssembled,
    EventReader,
    OutputDelta,
    TurnAwaitingTools,
    TurnCompleted,
    TurnCreated,
    TurnEvent,
    TurnFailed,
)
from plimsoll_sdk.models import TurnAnswer


class Progress:
    """How far the events of a turn have come. `text` is the answer so far; `ended` is its last event."""

    def __init__(self, most_resumptions: int) -> None:
        self._resumptions_left = most_resumptions
        self._reader = EventReader()
        self._again = ""
        self._resumed = False
        self._created: TurnCreated | None = None
        self._assembled = False
        self.text = ""
        self.ended: TurnCompleted | TurnAwaitingTools | TurnFailed | None = None

    def take(self, data: bytes) -> list[TurnEvent]:
        """The events in these bytes that did not come before."""
        return [new for event in self._reader.feed(data) for new in self._new(event)]

    def may_resume(self) -> bool:
        """Whether the same call may be sent again now that the stream broke; it begins from its start."""
        if self._resumptions_left <= 0:
            return False
        self._resumptions_left -= 1
        self._resumed, self._again, self._reader = True, "", EventReader()
        return True

    def broken(self, why: str) -> StreamBroken:
        """The error of a stream that ended too early."""
        ids = self._created.turn if self._created else None
        return StreamBroken(
            f"The stream ended before the turn did: {why}",
            session_id=ids.session_id if ids else None,
            turn_id=ids.id if ids else None,
            text=self.text,
        )

    def answer(self) -> TurnAnswer:
        """What posting without a stream would have answered. Raises the problem of a turn that failed."""
        if self.ended is None:
            raise self.broken("it was not read to its end")
        if isinstance(self.ended, TurnFailed):
            raise self.ended.error
        return TurnAnswer(turn=self.ended.turn, context=self.ended.context)

    def _new(self, event: TurnEvent) -> list[TurnEvent]:
        match event:
            case TurnCreated():
                seen, self._created = self._created is not None, event
                return [] if seen else [event]
            case ContextAssembled():
                seen, self._assembled = self._assembled, True
                return [] if seen else [event]
            case OutputDelta():
                return self._grown(event)
            case TurnCompleted() | TurnAwaitingTools() | TurnFailed():
                if self._resumed and isinstance(event, TurnCompleted) and self._again != self.text:
                    raise self.broken("the turn ended with another text")
                self.ended = event
                return [event]

    def _grown(self, event: OutputDelta) -> list[TurnEvent]:
        if not self._resumed:
            self.text += event.text
            return [event]
        self._again += event.text
        if not (self._again.startswith(self.text) or self.text.startswith(self._again)):
            raise self.broken("the turn ended with another text")
        more = self._again[len(self.text) :]
        self.text += more
        return [OutputDelta(more)] if more else []
