"""The outermost layer of every request: its id, its body (bounded while read), its log line, and unhandled errors.

One pure ASGI middleware. The body is read before anything else runs, so an answer that needs no body (401, 404, 405)
still leaves the connection ready for the next request. Only bodies of authenticated requests are kept, and a tenant may
use only its share of the memory that the process has for bodies. Other bodies are read and discarded.

A browser's request is accepted only if it is for one of the service's own names and comes from one of its own pages. A
web page can make a browser send requests to addresses that only its user can reach. It could read the answers if its
own name resolved to the service (DNS rebinding), so the `Host` is checked. Requests can have effects even if the answer
is not readable, so their origin is checked too (`Sec-Fetch-Site`, else `Origin`). Other clients send neither.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from io import BytesIO
from time import perf_counter
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.core.fairness import ANONYMOUS, FairGate, tenant_at_work
from app.core.logging import request_fields
from app.domain.errors import Busy, DatabaseUnavailable, PlimsollError, Unauthenticated
from app.domain.types import TenantId
from app.services.process_state import Allowance, HeldBytes

log = structlog.get_logger()

_SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_SLOWEST_BODY_BYTES_PER_S = 64 * 1024
SLICE_BYTES = 256 * 1024
PAUSE_S = 0.002
"""After each slice of a tenant's bodies. A slice keeps the event loop for up to a millisecond, so a client that sends
many megabytes at once would delay turns by all of it."""
_TENANTS_PAUSING = 4
"""Tenants whose slices pause at the same time; more take turns."""
_DRAINED_BYTES = 64 * 1024 * 1024
_DRAINING_S = 5.0
_QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})


@dataclass(slots=True)
class Exchange:
    """The state of one request that the edge and the handler share: `body` is read here alone, and `json` is what the
    route has parsed of it. Every log line of the request has `fields`. `auth_error` is why authentication failed,
    `problem_code` the code of the problem that the request got, or that ended its stream."""

    headers: Mapping[bytes, bytes]
    fields: dict[str, Any]
    body: bytes = b""
    json: Any = None
    status: int | None = None
    tenant_id: TenantId | None = None
    auth_error: PlimsollError | None = None
    problem_code: str | None = None

    @property
    def credential(self) -> bytes | None:
        """The `Authorization` header, or else one made of the key in `x-api-key`, which Anthropic's clients send."""
        authorization, key = self.headers.get(b"authorization"), self.headers.get(b"x-api-key")
        return authorization if authorization or not key else b"Bearer " + key


class _TooLarge(PlimsollError):
    code = "body_too_large"
    carries = ("max_body_bytes",)

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"The body exceeds the limit of {most_bytes} bytes.")
        self.max_body_bytes = most_bytes


class _ClientGone(Exception):
    pass


@dataclass(slots=True)
class Edge:
    """Wraps the application. A body must arrive within `body_timeout_s`, plus the time that the received bytes take at
    `_SLOWEST_BODY_BYTES_PER_S`, so that a slow sender does not hold a connection.

    `hosts` checks browser requests. `larger_bodies` maps paths to their own body limit, in bytes. `authenticate`
    returns the tenant of a request. `bodies` limits the bytes of all bodies that the process keeps. `count_problem` is
    called with the code of each problem that a request or its stream ended with.
    """

    app: ASGIApp
    _: KW_ONLY
    new_id: Callable[[], object]
    max_body_bytes: int
    authenticate: Callable[[Scope], Awaitable[TenantId]]
    bodies: Allowance
    count_problem: Callable[[str], object]
    hosts: Hosts = field(default_factory=lambda: Hosts("", "*"))
    larger_bodies: Mapping[str, int] = field(default_factory=dict[str, int])
    body_timeout_s: float = 30.0
    _pausing: FairGate = field(default_factory=lambda: FairGate(_TENANTS_PAUSING, per_key=1), init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = perf_counter()
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        given = headers.get(b"x-request-id")
        request_id = given.decode() if given and _SANE_ID.fullmatch(given) else str(self.new_id())
        exchange = Exchange(headers, {"request_id": request_id})
        scope["plimsoll"] = exchange
        request_fields.set(exchange.fields)
        tenant_at_work.set(ANONYMOUS)
        id_header = (b"x-request-id", request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"].append(id_header)
            await send(message)

        try:
            await self._serve(scope, receive, send_with_id, exchange)
        except asyncio.CancelledError:  # the process stops, and the request has had its time to end
            if exchange.status is not None:
                raise  # as below
            detail = "The process stopped before the request ended. It may still be stored: look at the turn's status."
            await refusal(scope, "interrupted", detail, {"Connection": "close"})(scope, receive, send_with_id)
        except Exception:
            log.exception("request_failed")
            if exchange.status is not None:
                raise  # part of the answer was sent: only closing the connection can signal the error
            detail = f"Something broke on our side. The log has it under the request id {request_id}."
            await refusal(scope, "internal_error", detail)(scope, receive, send_with_id)
        finally:
            if exchange.problem_code is not None:
                self.count_problem(exchange.problem_code)
            _log_request(scope, exchange, started)
            exchange.body, exchange.json = b"", None  # the connection refers to the exchange until its next request

    async def _serve(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        refused = self.hosts.refusal_of(scope, exchange.headers)
        if refused is not None:
            await refusal(scope, *refused)(scope, receive, send)
            return
        if b"content-length" not in exchange.headers and b"transfer-encoding" not in exchange.headers:
            await self.app(scope, receive, send)
            return
        length = exchange.headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() and b"transfer-encoding" not in exchange.headers else None
        most_bytes = self.larger_bodies.get(scope["path"], self.max_body_bytes)
        if declared is not None and declared > most_bytes:
            await _refuse_unread(scope, receive, send, declared, _TooLarge(most_bytes))
            return
        tenant_id = None
        with suppress(Unauthenticated, DatabaseUnavailable):  # the route answers with it after the body was read
            tenant_id = await self.authenticate(scope)
        held = None if tenant_id is None else HeldBytes(self.bodies, tenant_id)
        try:
            async with asyncio.timeout(self.body_timeout_s) as deadline:
                exchange.body = await _read(receive, held, most_bytes, deadline, partial(self._pause, tenant_id))
        except (_TooLarge, Busy) as error:
            # The body's memory is freed before the rest is read; the traceback would keep its chunks alive.
            if held is not None:
                held.give_back()
            await _refuse_unread(scope, receive, send, declared, error.with_traceback(None))
        except TimeoutError:
            detail = f"A body may take {self.body_timeout_s:g} s, and 1 s for each {_SLOWEST_BODY_BYTES_PER_S} bytes."
            await refusal(scope, "request_timeout", detail, {"Connection": "close"})(scope, receive, send)
        except _ClientGone:
            return
        else:
            await self.app(scope, receive, send)
        finally:
            if held is not None:
                held.give_back()

    async def _pause(self, tenant_id: TenantId | None) -> None:
        """Waits after a slice of a body. The slices of one tenant wait for each other."""
        await self._pausing.acquire(tenant_id, None)
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            self._pausing.release(tenant_id)


async def _refuse_unread(
    scope: Scope, receive: Receive, send: Send, declared: int | None, error: PlimsollError
) -> None:
    """Answers at once, then reads and discards the body, up to limits on bytes and time.

    If a connection is closed with unread bytes, the kernel resets it and the client may lose the answer. A body of
    known, moderate length is read to its end, after which the connection serves the next request.
    """
    bounded = declared is not None and declared <= _DRAINED_BYTES and b"expect" not in scope["plimsoll"].headers
    answer = problems.answer_to(scope, error, None if bounded else {"Connection": "close"})
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    drained = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAINING_S):
            while drained <= _DRAINED_BYTES:
                message = await receive()
                if message["type"] != "http.request":
                    return
                drained += len(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def refusal(scope: Scope, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """A problem from outside any route, in the error shape of the path's clients. On an OpenAI path it has Anthropic's
    shape if the request has the header `anthropic-version`."""
    is_anthropics = any(name == b"anthropic-version" for name, _ in scope["headers"])
    shape = "anthropic" if is_anthropics and problems.error_shape(scope["path"]) == "openai" else None
    return problems.answer(scope, problems.document(code, detail), headers, shape=shape)


async def _read(
    receive: Receive,
    held: HeldBytes | None,
    most_bytes: int,
    deadline: asyncio.Timeout,
    pause: Callable[[], Awaitable[None]],
) -> bytes:
    """The body, of whose bytes the tenant holds as many. Without `held`, for a request that is not authenticated, it is
    read and discarded. Raises `_TooLarge`, `Busy`, `_ClientGone`."""
    first_deadline, size_bytes = deadline.when() or 0.0, 0
    body = BytesIO()  # getvalue() makes no copy; joining the chunks of 64 MB would block the event loop for 30 ms
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGone
        chunk: bytes = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > most_bytes:
            raise _TooLarge(most_bytes)
        if held is not None:
            held.take(len(chunk))
            body.write(chunk)
        if not message.get("more_body", False):
            return body.getvalue()
        deadline.reschedule(first_deadline + size_bytes / _SLOWEST_BODY_BYTES_PER_S)
        if size_bytes % SLICE_BYTES < len(chunk):
            await pause()


def _log_request(scope: Scope, exchange: Exchange, started: float) -> None:
    route = getattr(scope.get("route"), "path", "(none)")
    write = log.debug if route in _QUIET_ROUTES and exchange.status == 200 else log.info
    problem = {} if exchange.problem_code is None else {"code": exchange.problem_code}
    write(
        "request",
        method=scope["method"] if len(scope["method"]) <= 16 else "(long)",
        route=route,
        status=exchange.status,
        duration_ms=round((perf_counter() - started) * 1000, 2),
        **problem,
    )


# No other site controls `localhost`, and a literal address needs no name resolution.
_NAMES = (r"(?:[a-z0-9-]+\.)*localhost", r"\d{1,3}(?:\.\d{1,3}){3}", r"\[[0-9a-f:.]+\]")
_OWN_SITE = (b"same-origin", b"none")
_REMEMBERED_NAMES = 100
_PAGES = re.compile(r"/|/docs|/ui(?:/.*)?")


class Hosts:
    """The accepted host names: loopback names, literal addresses, `host`, and those of `allowed`.

    `allowed` is a comma-separated list; `*` accepts any name. If it is empty and `host` is a literal address other than
    loopback, any name is accepted: such a service does not start without API keys, which other sites' pages do not
    have. Pages of `origins` may call the service.
    """

    def __init__(self, host: str, allowed: str, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        named = {name.strip().lower() for name in allowed.split(",")} - {""}
        self._named = frozenset(name.encode() for name in named)
        any_name = "*" in named or (not named and _reached_by_others(host))
        names = "|".join((*_NAMES, *map(re.escape, sorted({host.lower(), *named} - {""}))))
        ours = re.compile(rb"(?is).*" if any_name else rf"(?i)(?:{names})(?::\d{{1,5}})?".encode())
        self.is_ours = lru_cache(_REMEMBERED_NAMES)(ours.fullmatch)

    def refusal_of(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
        """Return the problem's code and detail if another site's page may have sent the request, else None."""
        host = headers.get(b"host", b"localhost")  # browsers always send it
        if not self.is_ours(host):
            return "host_not_allowed", "If this name is yours, add it to PLIMSOLL_ALLOWED_HOSTS."
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if origin in self._origins:
            return None
        if site is None:
            authority = (origin or b"").lower().partition(b"://")[2]
            own = origin is None or authority == host.lower() or authority.partition(b":")[0] in self._named
        else:
            own = site in _OWN_SITE or _follows_link_to_page(scope, headers)
        if own:
            return None
        return "origin_not_allowed", "Browsers call this service from its own pages and those of PLIMSOLL_CORS_ORIGINS."


def _reached_by_others(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _follows_link_to_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a link led to a page. Pages contain no data and cannot be framed, so links from any site are allowed."""
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and _PAGES.fullmatch(scope["path"]) is not None
    )
