"""Server-sent events (WHATWG HTML, section 9.2) from bytes as they arrive, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.providers.wire import MalformedAnswerError

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `name` is empty where the server gave none; `data` are its data lines joined by LF, undecoded."""

    name: str
    data: bytes


class EventReader:
    """Feed it chunks, it yields events. One event may have `most_event_bytes`; a longer one is malformed.

    Lines are decoded by nobody here: a chunk may end inside a character, inside CRLF, or inside a field's name.
    """

    def __init__(self, most_event_bytes: int) -> None:
        self._most_event_bytes = most_event_bytes
        self._name = ""
        self._data: list[bytes] = []
        self._unfinished: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes. Raises `MalformedAnswerError` for one that is too long."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if chunk.endswith(b"\r"):
            self._after_cr = True
        # bytes.splitlines splits at CR, LF and CRLF and, other than str's, at nothing else.
        for piece in chunk.splitlines(keepends=True):
            self._grow(len(piece))
            text = piece.rstrip(b"\r\n")
            self._unfinished.append(text)
            if len(text) != len(piece):
                line = b"".join(self._unfinished)
                self._unfinished.clear()
                event = self._take(line)
                if event is not None:
                    yield event

    def end(self) -> Event | None:
        """The last event where the server closed without the empty line that should follow it."""
        line = b"".join(self._unfinished)
        self._unfinished.clear()
        return (self._take(line) if line else None) or self._take(b"")

    def _grow(self, by: int) -> None:
        self._size += by
        if self._size > self._most_event_bytes:
            raise MalformedAnswerError(f"an event of it is longer than {self._most_event_bytes} bytes")

    def _take(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            event = Event(self._name, b"\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"error":  # older llama.cpp servers name their errors so
            self._name = "error"
            self._data.append(value)
        elif not name:
            # A comment: a heartbeat may be all that comes for hours, and is no part of any event.
            self._size = max(0, self._size - len(line) - 2)
        return None
