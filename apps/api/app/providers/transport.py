"""HTTP to a provider: one connection pool for each alias, no redirects, no cookies, bounded bodies, mapped errors.

httpx's request and response objects travel over aiohttp's transport, called directly: less than half the CPU of
httpx's client for each call. Nothing follows a redirect, so a key never goes to another origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from app.domain.errors import ProviderDown
from app.providers.retry import AttemptError
from app.providers.wire import MalformedAnswerError

MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Of an answer that is read whole, as transferred and decompressed. It is parsed at once, so it must be small."""
MOST_ERROR_BYTES: Final = 256 * 1024
"""Likewise, of an error's body."""
_SLICE_BYTES: Final = 64 * 1024
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RECEIVE_BYTES: Final = 16 * 1024
"""Of a socket's receive buffer, whose content is parsed as HTTP at once."""
_CONNECT_TIMEOUT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 1_000
_KEEPALIVE_S: Final = 60.0
_FAULTS: Final = (httpx.HTTPError, aiohttp.ClientError, OSError)


class HttpReply:
    """An answer whose head has arrived. It must be closed; closing it before its end closes the connection."""

    def __init__(self, response: httpx.Response, label: str) -> None:
        self._response = response
        self._label = label
        self.status = response.status_code
        self.is_success = response.is_success

    @property
    def content_type(self) -> str:
        return self._response.headers.get("content-type", "").lower()

    @property
    def retry_after(self) -> str | None:
        return self._response.headers.get("retry-after")

    async def chunks(self, most_bytes: int) -> AsyncGenerator[bytes]:
        """The body as it comes, decompressed, in slices of 64 KiB at most; other tasks run between them.

        `most_bytes` applies before and after decompression. Raises `AttemptError` when the connection
        breaks, else `MalformedAnswerError`.
        """
        decoded = _decoder(self._response.headers.get("content-encoding", ""))
        travelled = given = 0
        try:
            async for raw in self._response.aiter_raw():
                travelled += len(raw)
                for chunk in decoded(raw):
                    given += len(chunk)
                    if max(travelled, given) > most_bytes:
                        raise MalformedAnswerError(f"it is longer than {most_bytes} bytes")
                    yield chunk
                    await asyncio.sleep(0)
        except httpx.StreamError as error:
            raise MalformedAnswerError("its encoding is broken") from error
        except _FAULTS as error:
            raise _unreachable(self._label, error) from error

    async def read(self) -> bytes:
        """The whole body. Raises as `chunks` does."""
        most_bytes = MOST_ANSWER_BYTES if self.is_success else MOST_ERROR_BYTES
        return b"".join([chunk async for chunk in self.chunks(most_bytes)])

    async def aclose(self) -> None:
        with contextlib.suppress(*_FAULTS):  # everything needed was read
            await self._response.aclose()


class HttpTransport:
    """Posts to one provider. Opens its connections on the first call and keeps them alive. `label` is the alias."""

    def __init__(self, label: str, *, encrypted: bool) -> None:
        self._label = label
        # Certificates are checked wherever there are any; a plain http address needs none loaded.
        self._transport = AiohttpTransport(verify=encrypted)
        self._transport.client = self._open_session

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=_MOST_CONNECTIONS,
            keepalive_timeout=_KEEPALIVE_S,
            ssl=self._transport.ssl_context,
            socket_factory=_socket,
        )
        # No cookies: those of one call's answer must not be sent with another tenant's call.
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def post(self, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> HttpReply:
        """Sends, and returns once the answer's head has arrived. Raises `AttemptError` if the connection fails."""
        request = httpx.Request(
            "POST", url, headers=headers, content=body, extensions={"timeout": {"connect": _CONNECT_TIMEOUT_S}}
        )
        try:
            return HttpReply(await self._transport.handle_async_request(request), self._label)
        except _FAULTS as error:
            raise _unreachable(self._label, error) from error

    async def aclose(self) -> None:
        await self._transport.aclose()


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for a result of `getaddrinfo`."""
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
    return AttemptError(ProviderDown(f"The provider of {label!r} cannot be reached ({type(error).__name__})."))
