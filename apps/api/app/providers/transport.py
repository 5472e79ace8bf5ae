"""HTTP to a provider: one connection pool an alias, no redirects, no cookies, every fault in our words.

httpx's request and response objects travel over aiohttp's transport, called directly: less than half the CPU of
httpx's client for each call. Nothing follows a redirect, so a key never goes to another origin.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from app.domain.errors import ProviderDown
from app.providers.retry import AttemptError
from app.providers.wire import MalformedAnswerError

MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of a decompressed answer that is read whole; more is refused while it is read."""
_CONNECT_TIMEOUT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 1_000
_KEEPALIVE_S: Final = 60.0
_FAULTS: Final = (httpx.HTTPError, aiohttp.ClientError, OSError)


class Reply:
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

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes. Raises `AttemptError` when the connection breaks, else `MalformedAnswerError`."""
        try:
            async for chunk in self._response.aiter_bytes():
                yield chunk
        except (httpx.DecodingError, httpx.StreamError) as error:
            raise MalformedAnswerError("its encoding is broken") from error
        except _FAULTS as error:
            raise _unreachable(self._label, error) from error

    async def read(self) -> bytes:
        """The whole body. Raises as `chunks` does, and `MalformedAnswerError` when it is too long."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > MOST_ANSWER_BYTES:
                raise MalformedAnswerError(f"it is longer than {MOST_ANSWER_BYTES} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def aclose(self) -> None:
        with contextlib.suppress(*_FAULTS):  # what was wanted of it has been read
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
            limit=_MOST_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S, ssl=self._transport.ssl_context
        )
        # No cookies: what one call's answer sets must not travel with another tenant's call.
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def post(self, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> Reply:
        """Sends, and returns once the answer's head is there. Raises `AttemptError` when it cannot be had."""
        request = httpx.Request(
            "POST", url, headers=headers, content=body, extensions={"timeout": {"connect": _CONNECT_TIMEOUT_S}}
        )
        try:
            return Reply(await self._transport.handle_async_request(request), self._label)
        except _FAULTS as error:
            raise _unreachable(self._label, error) from error

    async def aclose(self) -> None:
        await self._transport.aclose()


def _unreachable(label: str, error: Exception) -> AttemptError:
    return AttemptError(ProviderDown(f"The provider of {label!r} cannot be reached ({type(error).__name__})."))
