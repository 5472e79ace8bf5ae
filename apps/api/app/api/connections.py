"""HTTP connections with limits on the size and time of a request head, and on the number of connections.

uvicorn has no such limits, and the application sees a request only after its head is complete. `app.api.edge` limits
bodies. docs/operations.md has the table of limits, and what a reverse proxy should add.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from typing import Any

import orjson
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api import problems

log = structlog.get_logger()

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
HEAD_S = 10.0
"""Longest time in seconds until a head is complete, from the connection's start or the first bytes after an answer."""
KEEP_ALIVE_S = 65
"""A little more than the 60 s for which proxies keep idle connections, so that they never send on one that we close."""
UNREAD_S = 60.0
"""Interval in seconds in which a client must read at least `_READ_BYTES` of an answer that waits for it."""
_READ_BYTES = 16 * 1024
_LINGER_S = 2.0
_WARN_EVERY_S = 60.0


def take_descriptors(most_connections: int) -> None:
    """Raises this process's limit of open files to twice the connections, as far as the system allows it. Many systems
    begin with 1,024, of which a worker with all its connections would have none left for providers and the database."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most_connections if hard == resource.RLIM_INFINITY else min(2 * most_connections, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """The open connections of a process: at most `most`, and at most `most_per_address` from one client address.

    At the limit, a new connection replaces the one that has waited longest for a request to begin or to arrive, so that
    incomplete requests cannot block others. Half of the process's file descriptors are reserved for other uses.
    """

    def __init__(self, most: int, most_per_address: int, unread_s: float = UNREAD_S) -> None:
        self.unread_s = unread_s
        self._most = most
        self._most_per_address = most_per_address
        self._count = 0
        self._of_address: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}  # in the order in which they began to wait
        self._warned_at = -_WARN_EVERY_S

    def admit(self, new: Connection) -> bool:
        """Counts a new connection. Returns False if the limit is reached and every connection has an active request."""
        if self._of_address[new.address] >= self._most_per_address:
            admitted = self._make_room(new, new.address)
        else:
            most = min(self._most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
            admitted = self._count < most or self._make_room(new, None)
        if admitted:
            self._count += 1
            self._of_address[new.address] += 1
            self._waiting[new] = None
        return admitted

    def _make_room(self, new: Connection, address: str | None) -> bool:
        longest = next((each for each in self._waiting if address in (None, each.address)), None)
        if new.loop.time() - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = new.loop.time()
            log.warning("connections_full", open=self._count, of_address=self._of_address[new.address])
        if longest is None:
            return False
        self.let_go(longest)
        longest.transport.abort()
        return True

    def begin_request(self, connection: Connection) -> None:
        """The request head is complete, so the connection is not replaced until the request ends."""
        self._waiting.pop(connection, None)

    def end_request(self, connection: Connection) -> None:
        """The connection waits for its next request."""
        if connection.counted:
            self._waiting[connection] = None

    def let_go(self, connection: Connection) -> None:
        """The connection has ended or is about to end: it is no longer counted."""
        if connection.counted:
            connection.counted = False
            self._waiting.pop(connection, None)
            self._count -= 1
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with limits. If a limit is exceeded, a problem is answered and the connection ends."""

    def __init__(self, connections: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.address = ""
        self.counted = False
        self._connections = connections
        self._refused = False
        self._answering = False
        self._head_begun = False
        self._moved_on = False  # whether the current slice began a request or had part of a body
        self._idle_bytes = 0  # bytes of the latest consecutive slices that did neither
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.counted = self._connections.admit(self)
        if self.counted:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)
        else:
            self._answer("too_many_connections", "The process has reached its limit of connections.")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.let_go(self)
        _cancel(self._head_timer)
        _cancel(self._unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses in slices, so that the parser's buffer for an incomplete head or trailer is limited too."""
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self._refused or self.transport.is_closing():
                return
            part = data[start : start + MAX_HEAD_BYTES]
            self._moved_on = False
            super().data_received(part)
            self._idle_bytes = 0 if self._moved_on else self._idle_bytes + len(part)
            if self._idle_bytes > MAX_HEAD_BYTES or (self.headers and len(self.headers) > MAX_HEADERS):
                self._refuse_head()
        if self._head_timer is None and not self._answering:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def on_message_begin(self) -> None:
        self._moved_on = self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        # A head that begins and ends in one slice is no larger than a slice.
        head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if (head_bytes > MAX_HEAD_BYTES and not self._moved_on) or len(self.headers) > MAX_HEADERS:
            self._refuse_head()
            raise ValueError("the head is too large")  # stops the parser
        self._head_begun = False
        self._answering = True
        _cancel(self._head_timer)
        self._head_timer = None
        self._connections.begin_request(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved_on = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        """The connection waits for the next request, unless one was sent ahead."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._answering = False
            self._connections.end_request(self)
            if self._head_begun:  # the next request's head
                self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's sentence
        self._refuse("invalid_http", "This is not HTTP/1.1 as RFC 9112 has it.")

    def pause_writing(self) -> None:
        """The client reads slowly: from now on it must read some of the answer in each interval."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        _cancel(self._unread_timer)
        super().resume_writing()

    def _watch_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self._connections.unread_s, self._check_reader, unread_bytes)

    def _check_reader(self, unread_bytes_before: int) -> None:
        if self.transport.get_write_buffer_size() > unread_bytes_before - _READ_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def _head_is_late(self) -> None:
        if self._head_begun and not self.transport.is_closing():
            self._refuse("request_timeout", f"The head of the request did not arrive within {HEAD_S:g} seconds.")
        else:
            self.transport.abort()

    def _refuse_head(self) -> None:
        self._refuse("headers_too_large", f"A head has at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers.")

    def _refuse(self, code: str, detail: str) -> None:
        """Answers, and keeps reading for `_LINGER_S`: to close at once could discard the answer."""
        if self._refused:
            return
        self._refused = True
        _cancel(self._head_timer)
        if self._answering:
            self.transport.close()  # another answer is being sent, and nothing may be written into it
            return
        self._answer(code, detail)
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _answer(self, code: str, detail: str) -> None:
        self.app_state["count_problem"](code)
        problem = problems.document(code, detail)
        body = orjson.dumps(problem)
        self.transport.write(
            b"%scontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[problem["status"]], problems.PROBLEM_JSON.encode(), len(body), body)
        )


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
