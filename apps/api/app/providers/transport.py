"""HTTP to a provider: one connection pool for each alias, shared by tenants, no redirects, no cookies, bounded bodies,
mapped errors; and the only retry loop.

It is aiohttp, which takes a third of the CPU time of httpx's client for each call. Redirects are not followed, so a key
never goes to another origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from app.core.fairness import FairGate, share_of, tenant_at_work
from app.domain.errors import ProviderDown, ProviderError, ProviderTimeout
from app.domain.frozen import frozen
from app.providers.certificates import trusted_certificates
from app.providers.wire import MalformedAnswerError

MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Largest answer that is read whole, as transferred and decompressed. It is parsed at once, so it must be small."""
MOST_ERROR_BYTES: Final = 256 * 1024
"""The same for the body of an error."""
_SLICE_BYTES: Final = 64 * 1024
_WHOLE_BYTES: Final = 256 * 1024
"""Largest request body that is handed to the connection as a whole; longer ones in slices of this size or twice it."""
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RECEIVE_BYTES: Final = 16 * 1024
"""Size of a socket's receive buffer, whose content is parsed as HTTP at once."""
_CONNECT_TIMEOUT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 1_000
_KEEPALIVE_S: Final = 60.0
_FAULTS: Final = (aiohttp.ClientError, OSError)


class HttpReply:
    """An answer whose head has arrived. It must be closed; closing it before its end closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse, label: str, release: Callable[[], None]) -> None:
        self._response = response
        self._label = label
        self._release = release
        self.status = response.status
        self.is_success = 200 <= response.status < 300

    @property
    def content_type(self) -> str:
        return self._response.headers.get("content-type", "").lower()

    @property
    def retry_after(self) -> Sequence[str | None]:
        """The delays that its head asks for, the most exact one first (OpenAI's and Azure's)."""
        return f"{self._response.headers.get('retry-after-ms')}ms", self._response.headers.get("retry-after")

    async def chunks(self, most_bytes: int) -> AsyncGenerator[bytes]:
        """The body as it arrives, decompressed, in slices of 64 KiB at most; other tasks run between them.

        `most_bytes` applies before and after decompression. Raises `AttemptError` when the connection
        breaks, else `MalformedAnswerError`.
        """
        decoded = _decoder(", ".join(self._response.headers.getall("content-encoding", ())))
        travelled = given = 0
        try:
            with _ends_with_connection(self._response):
                async for raw in self._response.content.iter_chunked(_RECEIVE_BYTES):
                    travelled += len(raw)
                    for chunk in decoded(raw):
                        given += len(chunk)
                        if max(travelled, given) > most_bytes:
                            raise MalformedAnswerError(f"it is longer than {most_bytes} bytes")
                        yield chunk
                        if len(chunk) >= _RECEIVE_BYTES:  # what follows a shorter one has to arrive first
                            await asyncio.sleep(0)
        except _FAULTS as error:
            raise _unreachable(self._label, error) from error

    async def read(self) -> bytes:
        """The whole body. Raises as `chunks` does."""
        most_bytes = MOST_ANSWER_BYTES if self.is_success else MOST_ERROR_BYTES
        return b"".join([chunk async for chunk in self.chunks(most_bytes)])

    async def aclose(self) -> None:
        try:
            with contextlib.suppress(*_FAULTS):  # everything needed was read
                self._response.release()
                await self._response.wait_for_close()
        finally:
            self._release()


class HttpTransport:
    """Posts to one provider. Opens its connections on the first call and keeps them alive. `label` is the alias.

    One tenant has at most `tenant_ratio` of `most_calls` running at once. Nothing else is waited for while a call runs.
    """

    def __init__(
        self, label: str, *, encrypted: bool, tenant_ratio: float = 1.0, most_calls: int = _MOST_CONNECTIONS
    ) -> None:
        self._label = label
        self._calls = FairGate(most_calls, share_of(most_calls, tenant_ratio))
        # Certificates are always checked with https; a plain http address needs none loaded.
        self._certificates = trusted_certificates() if encrypted else True
        self._session: aiohttp.ClientSession | None = None

    def _open_session(self) -> aiohttp.ClientSession:
        connector = _Connector(
            limit=0,  # the gate has it
            keepalive_timeout=_KEEPALIVE_S,
            ssl=self._certificates,
            socket_factory=_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            # No cookies: those of one call's answer must not be sent with another tenant's call.
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            auto_decompress=False,
        )

    async def post(self, url: str, headers: Mapping[str, str], body: Sequence[bytes]) -> HttpReply:
        """Sends a body, which is given in pieces, and returns once the answer's head has arrived.

        Waits for a free connection as long as the caller does. Raises `AttemptError` if the connection fails.
        """
        size_bytes = sum(map(len, body))
        sent: bytes | AsyncGenerator[bytes]
        if size_bytes <= _WHOLE_BYTES:
            sent = b"".join(body)
        else:
            sent, headers = _slices(body), {**headers, "content-length": str(size_bytes)}
        tenant = tenant_at_work.get()
        await self._calls.acquire(tenant, None)
        try:
            self._session = self._session or self._open_session()
            response = await self._session.post(url, headers=headers, data=sent, allow_redirects=False)
        except BaseException as error:
            self._calls.release(tenant)
            if isinstance(error, _FAULTS):
                raise _unreachable(self._label, error) from error
            raise
        return HttpReply(response, self._label, partial(self._calls.release, tenant))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Ends an idle connection over which something arrives, and one over which more than an answer arrived.

    aiohttp (3.14) would keep all of it and take it for the answer to the next request, which may be another tenant's,
    and each answer that follows for the one to the request after its own.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own parameter
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        while connection.protocol is not None and connection.protocol.should_close:  # it came with the last answer
            connection.close()
            connection = await super().connect(req, traces, timeout)
        if connection.transport is not None and connection.protocol is not None:
            connection.transport.set_protocol(connection.protocol)
            connection.add_callback(partial(_rest, connection.transport, connection.protocol))
        return connection


def _rest(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    if transport.get_write_buffer_size():  # closing would wait, perhaps for ever, until the server takes the rest
        transport.abort()
    if not transport.is_closing():  # else they would refer to each other until a garbage collection
        transport.set_protocol(_Idle(transport, protocol))


class _Idle(asyncio.Protocol):
    """The protocol of a connection between two calls."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - whatever it is
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)


@contextlib.contextmanager
def _ends_with_connection(response: aiohttp.ClientResponse) -> Generator[None]:
    """Makes a reader of the body fail once the connection is closed before its end.

    aiohttp (3.14) closes the connection at a broken chunk, but does not tell the reader, which would wait for ever.
    """
    content = response.content
    protocol = response.connection.protocol if response.connection is not None else None
    if protocol is None:  # the body has arrived
        yield
        return

    def end_body(_closed: object = None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    closed = protocol.closed
    if closed is None:  # the connection is closed already
        end_body()
        yield
        return
    closed.remove_done_callback(_take_error)  # of an earlier call over this connection
    closed.add_done_callback(_take_error)
    closed.add_done_callback(end_body)
    try:
        yield
    finally:
        closed.remove_done_callback(end_body)


def _take_error(closed: asyncio.Future[None]) -> None:
    """Takes the error of a closed connection, which asyncio would log otherwise."""
    if not closed.cancelled():
        closed.exception()


async def _slices(body: Sequence[bytes]) -> AsyncGenerator[bytes]:
    """The slices of a long body: written at once, it would be copied as a whole on the event loop."""
    waiting: list[bytes] = []
    size_bytes = 0
    for piece in body:
        for at in range(0, len(piece), _WHOLE_BYTES):
            waiting.append(piece[at : at + _WHOLE_BYTES])
            size_bytes += len(waiting[-1])
            if size_bytes >= _WHOLE_BYTES:
                yield b"".join(waiting)
                waiting.clear()
                size_bytes = 0
    if waiting:
        yield b"".join(waiting)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    return made


def _decoder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """The decoder of a Content-Encoding. Compression is not requested: one layer of gzip or deflate is supported."""
    match encoding.strip().lower():
        case "" | "identity":
            return lambda raw: iter((raw,))
        case "gzip" | "x-gzip" | "deflate":
            return _unpacking()
        case _:
            raise MalformedAnswerError("its encoding was not requested")


def _unpacking() -> Callable[[bytes], Iterator[bytes]]:
    packed = zlib.decompressobj(_GZIP_OR_ZLIB)

    def unpacked(raw: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = packed.decompress(raw, _SLICE_BYTES)
            except zlib.error as error:
                raise MalformedAnswerError("its encoding is broken") from error
            yield piece  # maybe empty
            raw = packed.unconsumed_tail
            if packed.unused_data:
                raise MalformedAnswerError("it goes on after the end of its encoding")
            if not raw and len(piece) < _SLICE_BYTES:
                return

    return unpacked


def _unreachable(label: str, error: Exception) -> AttemptError:
    advice = " Check its base_url, and that it runs." if isinstance(error, aiohttp.ClientConnectorError) else ""
    return AttemptError(ProviderDown(f"The provider of {label!r} cannot be reached ({type(error).__name__}).{advice}"))


T = TypeVar("T")


class AttemptError(Exception):
    """One attempt failed, and another may succeed. `error` is raised if no attempt is left.

    `at_once` marks a refusal after which the adapter changed the request, so that no delay is needed.
    """

    def __init__(self, error: ProviderError, *, at_once: bool = False) -> None:
        super().__init__(error.detail)
        self.error = error
        self.at_once = at_once


@frozen
class RetryPolicy:
    """Full jitter, exponential: before attempt n+1 a wait of up to `min(cap_s, base_s * 2**(n-1))` seconds.

    A provider's Retry-After is waited for in full, but one above `longest_retry_after_s` ends the call at once.
    `jitter` draws from 0 to its argument, `sleep` waits; both are arguments so that tests can replace them.
    """

    max_attempts: int = 3
    base_s: float = 0.5
    cap_s: float = 8.0
    longest_retry_after_s: float = 20.0
    jitter: Callable[[float], float] = partial(random.uniform, 0.0)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def wait_s(self, failure: AttemptError, attempt: int) -> float | None:
        """Seconds to wait after failed attempt number `attempt` (from 1), or None when it was the last."""
        if attempt >= self.max_attempts:
            return None
        if failure.at_once:
            return 0.0
        backoff_s = self.jitter(min(self.cap_s, self.base_s * 2 ** (attempt - 1)))
        wanted_s = failure.error.retry_after_s or 0.0
        return None if wanted_s > self.longest_retry_after_s else max(wanted_s, backoff_s)


async def call_with_retries(
    attempt: Callable[[int], Awaitable[T]], *, timeout_s: float, policy: RetryPolicy, label: str
) -> T:
    """Runs `attempt(number)` until it answers, at most `policy.max_attempts` times, within `timeout_s` seconds in all.

    An attempt that raises `AttemptError` may be tried again, any other error ends the call. A delay that would exceed
    the deadline is not started. Raises the last `ProviderError` with `attempts` set, or `ProviderTimeout`.
    """
    number = 0
    deadline = asyncio.get_running_loop().time() + timeout_s
    scope = asyncio.timeout_at(deadline)
    try:
        async with scope:
            while True:
                number += 1
                try:
                    return await attempt(number)
                except AttemptError as failure:
                    wait_s = policy.wait_s(failure, number)
                    if wait_s is None or asyncio.get_running_loop().time() + wait_s >= deadline:
                        raise failure.error from None
                if wait_s > 0:
                    await policy.sleep(wait_s)
    except ProviderError as error:
        error.attempts = number
        error.__context__ = None  # the attempt's failure, which refers to it: their frames would stay in memory
        raise
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise ProviderTimeout(
            f"The model {label!r} did not answer within {timeout_s:g} s, the deadline of the whole call.",
            attempts=number,
        ) from error


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds from a Retry-After header (RFC 9110: seconds, or an HTTP date) or a delay in `s` or `ms`, never negative;
    None when unreadable."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value.removesuffix("ms").removesuffix("s")) / (1000 if value.endswith("ms") else 1)
    except ValueError:
        try:
            instant = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        seconds = (instant - now).total_seconds()
    # NaN compares false with everything and would otherwise end up as a wait.
    return max(0.0, seconds) if seconds == seconds else None  # noqa: PLR0124
