"""What both clients are given, checked: where the service is, the key, and how patient to be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import httpx

from plimsoll_sdk.call import Call
from plimsoll_sdk.retries import Came, Lost, OutOfTime, Patience

DEFAULT_URL: Final = "http://127.0.0.1:8000"
CONNECT_S: Final = 10.0
# A socket waits no longer than its platform can count; a deadline may be further away, or infinite.
_LONGEST_WAIT_S: Final = 1_000_000.0
# The service closes a connection that was idle for 65 s, a proxy perhaps earlier: one that may be closing is not used.
POOL_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30.0)
CLOSING_S: Final = 1.0
"""How long the end of a stream is waited for after its last event: a connection that was read to its end is used again,
but a proxy may keep it open."""
_LAST_PORT: Final = 65_535
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Options:
    """Where and how patiently the service is asked. The key is kept apart, so that nothing shows it."""

    url: str
    patience: Patience

    def __repr__(self) -> str:
        return f"url={self.url!r}, deadline_s={self.patience.deadline_s:g}, max_retries={self.patience.max_retries}"


def options_of(url: str | None, deadline_s: float, max_retries: int) -> Options:
    """Raises `ValueError` for what can never work."""
    url = (url or os.environ.get("PLIMSOLL_URL") or DEFAULT_URL).rstrip("/")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in {"http", "https"} or not parsed.host or (parsed.port or 0) > _LAST_PORT:
        raise ValueError("The url must begin with http:// or https:// and name a host.")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("The url has no place for a user, a query or a fragment; give the key as api_key.")
    if not deadline_s > 0 or max_retries < 0:  # not a number is neither
        raise ValueError("deadline_s must be more than 0, max_retries 0 or more.")
    return Options(url, Patience(deadline_s, max_retries))


def default_headers(api_key: str | None) -> dict[str, str]:
    """The headers of every request. Raises `ValueError`, without the key in it, for what can be none."""
    key = api_key if api_key is not None else os.environ.get("PLIMSOLL_API_KEY", "")
    headers = {"User-Agent": f"plimsoll-sdk/{_version()}"}
    if not key:
        return headers
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError("The API key has characters that no key has.")
    return {**headers, "Authorization": f"Bearer {key}"}


def request_of(client: httpx.Client | httpx.AsyncClient, url: str, call: Call[Any], timeout_s: float) -> httpx.Request:
    """The call as a request of which nothing waits longer than `timeout_s`."""
    timeout_s = min(timeout_s, _LONGEST_WAIT_S)
    content = call.content
    typed = {} if content is None else {"Content-Type": "application/json"}
    return client.build_request(
        call.method,
        url + call.path,
        params=call.request.query or None,
        content=content,
        headers={**typed, **call.request.headers},
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S)),
    )


def came_of(error: httpx.RequestError, out_of_time: bool) -> Came:
    """What a transport's error means. Raises `ValueError` for a request that can not be sent at all.

    Only the type of the error is named: its text may quote what was sent.
    """
    if isinstance(error, (httpx.LocalProtocolError, httpx.UnsupportedProtocol)):
        raise ValueError("The request cannot be sent: a header or the address is not valid.") from None  # noqa: TRY004 - of its value
    if out_of_time and isinstance(error, httpx.TimeoutException):
        return OutOfTime()
    whom = error.request.url.netloc.decode("ascii")
    return Lost(f"{type(error).__name__} at {whom}", begun=not isinstance(error, _NEVER_SENT))


def _version() -> str:
    try:
        return version("plimsoll-sdk")
    except PackageNotFoundError:
        return "0"
