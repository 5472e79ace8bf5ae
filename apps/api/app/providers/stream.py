"""A streamed answer: server-sent events (WHATWG HTML, section 9.2) from chunks that may end anywhere, and its text."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from time import thread_time
from typing import Any, ClassVar, Final

from app.domain.content import fields_of, storable
from app.domain.frozen import frozen
from app.domain.types import Completion, Delta, FinishReason, JsonObject, ToolCall, Usage
from app.providers.base import DeltaSink
from app.providers.error_object import ErrorObject
from app.providers.transport import AttemptError
from app.providers.wire import MOST_REPLY_CHARS, MalformedAnswerError, finish_word

MOST_EVENT_BYTES: Final = 1024 * 1024
MOST_EVENTS: Final = 262_144
"""Most events of a stream: twice as many as the longest answers have with one token per event."""
MOST_STREAM_BYTES: Final = 64 * 1024 * 1024
"""Longest whole stream, with the framing of its events; a longer one is refused while it is read."""
MOST_SILENT_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of a stream without an event (comments and empty lines): enough for a heartbeat per second for a day."""
_SLICE_BYTES: Final = 1024
"""Bytes of a stream that are read at once: 0.2 ms for the smallest events."""
_WORK_S: Final = 0.001
"""CPU time of reading after which it pauses for the same time, so that other tasks and the deadline can run. Tasks
consist of many short steps, so that one of their steps for each slice would be too slow for them."""
_TRAILER_WAIT_S: Final = 5.0
_CLOSING_WAIT_S: Final = 0.1
_LAST_MOMENT_S: Final = 0.05
"""Time before the deadline that is enough to end a complete answer."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHARS_PER_TOKEN: Final = 4


@frozen
class Event:
    """One event. `name` is empty where the server gave none; `data` are its data lines joined by LF, undecoded."""

    name: str
    data: bytes


class EventReader:
    """Takes chunks and yields events. An event may have at most `most_event_bytes`; a longer one is malformed.

    Lines are not decoded here, because a chunk may end inside a character, inside CRLF, or inside a field's name.
    """

    def __init__(self, most_event_bytes: int) -> None:
        self._most_event_bytes = most_event_bytes
        self._name = ""
        self._data: list[bytes] = []
        self._unfinished: list[bytes] = []
        self._size = self._size_before_line = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes. Raises `MalformedAnswerError` for one that is too long."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if chunk.endswith(b"\r"):
            self._after_cr = True
        # bytes.splitlines splits at CR, LF and CRLF and, unlike str.splitlines, at nothing else.
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._most_event_bytes:
                raise MalformedAnswerError(f"an event of it is longer than {self._most_event_bytes} bytes")
            text = piece.rstrip(b"\r\n")
            self._unfinished.append(text)
            if len(text) != len(piece) and (event := self._end_line()):
                yield event

    def end(self) -> Event | None:
        """The last event where the server closed without the empty line that should follow it."""
        return self._end_line() or self._end_line()

    def _end_line(self) -> Event | None:
        """Takes the line that has arrived. Returns the event that it ends if it is empty."""
        line = b"".join(self._unfinished)
        self._unfinished.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            event = Event(self._name, b"\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            self._size = self._size_before_line = 0
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
            # A comment: for hours there may be nothing but heartbeats, and they are no part of any event.
            self._size = self._size_before_line
        self._size_before_line = self._size
        return None


class StreamedError(Exception):
    """The stream carries an error, whatever its HTTP status is."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.safe_code)
        self.error = error


class BrokenStreamError(Exception):
    """The stream stopped before the model's finish reason."""


class EmptyStreamError(Exception):
    """The stream ended properly but had no event."""


class DeltaTap:
    """Passes deltas on, and keeps their text in case the stream breaks."""

    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self._texts: list[str] = []
        self.has_begun = False

    def __call__(self, delta: Delta) -> None:
        if delta.text or delta.reasoning:
            self.has_begun = True
            self._texts.append(delta.text)
            self._sink(delta)

    @property
    def partial(self) -> str | None:
        """The text so far, or None before the first delta."""
        return "".join(self._texts) if self.has_begun else None


class ReplyRoom:
    """The size of an answer, which is bounded: text, reasoning and tool calls together."""

    def __init__(self) -> None:
        self.taken_chars = 0

    def take(self, piece: str) -> str:
        """The piece itself. Raises `MalformedAnswerError` when it exceeds the remaining size."""
        self.taken_chars += len(piece)
        if self.taken_chars > MOST_REPLY_CHARS:
            raise MalformedAnswerError(f"it has more than {MOST_REPLY_CHARS} characters")
        return piece


class TextFlow:
    """Makes text that arrives in pieces storable. Half of a surrogate pair is held until its other half arrives."""

    def __init__(self, room: ReplyRoom) -> None:
        self._room = room
        self._pieces: list[str] = []
        self._held = ""

    def add(self, piece: str) -> str:
        """What can be passed on now. Raises `MalformedAnswerError` when the answer has become too long."""
        piece = self._held + self._room.take(piece)
        self._held = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        return self._passed_on(piece[: len(piece) - len(self._held)])

    def rest(self) -> str:
        held, self._held = self._held, ""
        return self._passed_on(held)

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    @property
    def text(self) -> str:
        """All that has been passed on, joined anew at each call."""
        return "".join(self._pieces)

    def _passed_on(self, piece: str) -> str:
        piece = storable(piece)
        if piece:
            self._pieces.append(piece)
        return piece


class Assembly(ABC):
    """Reads one answer to a request with these stop sequences: its events, or the whole of it.

    `is_over` is true once the end mark has arrived; `usage` is what has been reported so far. `reasons` translates the
    protocol's finish reasons.
    """

    reasons: ClassVar[Mapping[str, FinishReason]]

    def __init__(self, stop_sequences: Sequence[str]) -> None:
        self.is_over = False
        self.usage: Usage | None = None
        self._stop_sequences = frozenset(stop_sequences)
        self._stop_sequence: str | None = None
        self._has_begun = False
        self._finish: Any = None
        self._model: str | None = None
        self._is_refusal = False
        self._room = ReplyRoom()
        self._text = TextFlow(self._room)
        self._reasoning = TextFlow(self._room)

    @property
    def has_finish(self) -> bool:
        return self._finish is not None

    @property
    def used(self) -> Usage | None:
        """What an answer that ends here used, None if it had not begun. A stream that breaks reports nothing for calls
        of tools, which may be long: their tokens are estimated."""
        has_counted = self.usage is not None and self.usage.prompt_tokens > 0  # errors may have counts of 0
        if not has_counted and not self._room.taken_chars:
            return None
        of_calls = self._room.taken_chars - len(self._text.text) - len(self._reasoning.text)
        return self.usage or Usage(0, of_calls // _CHARS_PER_TOKEN)

    @abstractmethod
    def count(self, part: JsonObject) -> None:
        """Keeps the usage that the answer, or a part of it, reports."""

    @abstractmethod
    def read(self, event: Event) -> Delta:
        """Takes the next event; raises `StreamedError` or `MalformedAnswerError`."""

    @abstractmethod
    def completion(self) -> Completion:
        """The whole answer; raises `MalformedAnswerError`."""

    def _take_stop_sequence(self, *stated: Any) -> None:
        """Keeps the requested stop sequence that the answer says it ended with, if it says so."""
        for each in stated:
            if isinstance(each, str) and each in self._stop_sequences:
                self._stop_sequence = each

    def _completed(self, calls: tuple[ToolCall, ...], reasoning_blocks: tuple[JsonObject, ...]) -> Completion:
        """The answer with these calls. Some servers send "stop", or nothing, when the model called tools, and some that
        it did when it did not."""
        if not self._has_begun:
            raise MalformedAnswerError("the stream carries no answer")
        reason = self.reasons.get(finish_word(self._finish), "other")
        if calls and reason in {"stop", "other"}:
            reason = "tool_calls"
        elif reason == "tool_calls" and not calls:
            reason = "stop"
        return Completion(
            text=self._text.text or (None if calls else ""),
            finish_reason="refusal" if self._is_refusal and reason == "stop" else reason,
            usage=self.usage,
            tool_calls=calls,
            reasoning=self._reasoning.text or None,
            provider_model=self._model,
            reasoning_blocks=reasoning_blocks,
            stop_sequence=None if calls else self._stop_sequence,
        )

    @abstractmethod
    def read_whole(self, answer: JsonObject) -> None:
        """Takes an answer that was not streamed; raises `MalformedAnswerError`."""

    def whole(self, answer: Any) -> Completion:
        """Reads an answer that was not streamed; raises `MalformedAnswerError`."""
        self.read_whole(fields_of(answer))
        self.rest()
        return self.completion()

    def rest(self) -> Delta:
        """The text that was held back, for the end of the stream."""
        return Delta(self._text.rest(), self._reasoning.rest())


async def read_stream(
    chunks: AsyncGenerator[bytes], assembly: Assembly, tap: DeltaTap, deadline: float = math.inf
) -> None:
    """Reads to the end mark, or to the end of a stream that has its finish reason.

    After the finish reason, a server that neither continues nor closes is waited for only briefly, and not beyond the
    deadline (in the time of the event loop), which would lose a complete answer. Raises what the
    assembly raises, `AttemptError` when the connection breaks, `BrokenStreamError` when the stream ends too early, and
    `EmptyStreamError` when it ends without any event.
    """
    patience = asyncio.timeout(None)
    try:
        async with aclosing(chunks), patience:
            await _read_events(chunks, assembly, tap, patience, deadline - _LAST_MOMENT_S)
    except TimeoutError:
        if not patience.expired():
            raise
    except AttemptError:
        if not (assembly.has_finish or assembly.is_over):
            raise
    tap(assembly.rest())
    if not (assembly.has_finish or assembly.is_over):
        raise BrokenStreamError


async def _read_events(
    chunks: AsyncGenerator[bytes], assembly: Assembly, tap: DeltaTap, patience: asyncio.Timeout, latest: float
) -> None:
    """Reads all events. Raises as `read_stream`.

    Once the answer is complete, `patience` ends at `latest`, or before.
    """
    events = EventReader(MOST_EVENT_BYTES)
    now = asyncio.get_running_loop().time
    count = silent_bytes = 0
    async for piece in _sliced(chunks):
        silent_bytes += len(piece)
        if silent_bytes > MOST_SILENT_BYTES:
            raise MalformedAnswerError(f"it has more than {MOST_SILENT_BYTES} bytes without an event")
        for event in events.feed(piece):
            silent_bytes = 0
            count += 1
            if assembly.is_over:
                break
            if count > MOST_EVENTS:
                raise MalformedAnswerError(f"it has more than {MOST_EVENTS} events")
            tap(assembly.read(event))
            if assembly.is_over:  # only closing bytes are left; once they are read, the connection is reusable
                patience.reschedule(min(now() + _CLOSING_WAIT_S, latest))
            elif assembly.has_finish and patience.when() != latest:  # some servers write a reason into each chunk
                patience.reschedule(min(now() + _TRAILER_WAIT_S, latest))
    last = events.end()
    if last is not None and not assembly.is_over:
        with suppress(MalformedAnswerError):  # it may have been cut off
            tap(assembly.read(last))
    if not count and last is None:
        raise EmptyStreamError


async def _sliced(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Slices of a stream. A stream that arrives faster than it is read takes at most half of the event loop's time."""
    worked_s = 0.0
    async for chunk in chunks:
        for start in range(0, len(chunk), _SLICE_BYTES):
            began = thread_time()
            yield chunk[start : start + _SLICE_BYTES]
            worked_s += thread_time() - began
            if worked_s >= _WORK_S:
                await asyncio.sleep(worked_s)
                worked_s = 0.0
