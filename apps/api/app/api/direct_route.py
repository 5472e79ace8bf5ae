"""Routes that FastAPI describes in the OpenAPI document, but whose arguments this module binds.

FastAPI reads a handler's signature for the OpenAPI document as usual. At run time the arguments come directly from the
request: tenant, path, query, headers, and a strictly parsed body. The answers are the same and need a third of the CPU
(docs/performance.md), which matters because a request takes about a millisecond.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import parse_qsl
from uuid import UUID

import orjson
from fastapi import Depends
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from app.api import problems
from app.api.edge import Exchange
from app.api.openapi import usual_refusals
from app.api.schemas.bodies import parse_object, places
from app.core.fairness import tenant_at_work
from app.domain.errors import (
    DatabaseUnavailable,
    InvalidFields,
    InvalidRequest,
    NotFound,
    PlimsollError,
    ShuttingDown,
    Unauthenticated,
)
from app.domain.frozen import frozen
from app.domain.types import SessionId, SessionRef, TenantId
from app.services.keys import Authenticator
from app.services.process_state import Allowance, Drain
from app.services.runtime import Runtime
from app.services.views.activity import Activity

# `\s*+` gives nothing back: else the time for a long header would grow with the square of its length.
_JSON_TYPE = re.compile(rb'(?i)application/(?:[\w.+-]+\+)?json\s*+(?:;\s*+charset="?utf-?8"?\s*+)?;?\s*+')
_NOUN_OF_ID = {"session_id": "session", "turn_id": "turn", "summary_id": "summary"}
_LARGE_BODY_BYTES = 64 * 1024
_LONG_ANSWER_BYTES = 64 * 1024
"""Largest answer that a connection takes at once; more waits in memory until the client reads it."""
T = TypeVar("T")
_MISSING = object()
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@frozen
class AppState:
    """What handlers use through `Call`. The composition root stores it in the application's state.

    `answers` limits the bytes of all long answers, and long pieces of streams, that clients have not read yet;
    `exports` those of documents, which are in files.
    """

    rt: Runtime
    authenticator: Authenticator
    activity: Activity
    answers: Allowance
    exports: Allowance
    drain: Drain = field(default_factory=Drain)
    heartbeat_s: float = 15.0
    cancel_on_disconnect: bool = False


class Call(Request):
    """One authenticated request; `tenant_id` is its tenant."""

    tenant_id: TenantId

    @property
    def service(self) -> AppState:
        return cast(AppState, self.scope["app"].state.service)

    @property
    def rt(self) -> Runtime:
        return self.service.rt

    def session_ref(self, session_id: SessionId) -> SessionRef:
        return SessionRef(self.tenant_id, session_id)

    @property
    def exchange(self) -> Exchange:
        """What the edge has read of the request."""
        return cast(Exchange, self.scope["plimsoll"])

    @property
    def is_retry(self) -> bool:
        """Whether the client marks the request as a retry, as OpenAI's and Anthropic's clients do."""
        return self.exchange.headers.get(b"x-stainless-retry-count") not in (None, b"0")

    @property
    def raw_body(self) -> Any:
        """The body's JSON as received. Handlers run only after it has been validated."""
        return self.exchange.json

    async def aside(self, read: Callable[[], T]) -> T:
        """Return `read()`. If the body is large, it runs on a thread so that reading does not block other requests."""
        return await asyncio.to_thread(read) if len(self.exchange.body) > _LARGE_BODY_BYTES else read()

    def note(self, **fields: str) -> None:
        """Adds ids to the request's log lines."""
        self.exchange.fields.update(fields)


def _session_in_path(call: Call, session_id: SessionId) -> SessionRef:
    return call.session_ref(session_id)


SessionInPath = Annotated[SessionRef, Depends(_session_in_path)]
"""The session that the path names, as the tenant's: it may not exist."""


class DirectRoute(APIRoute):
    """Binds arguments without FastAPI's dependency solver. Handlers return a `Response` or a value for its JSON."""

    authenticated = True

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        # Generated clients get short names; FastAPI's own operation ids contain the path.
        options["operation_id"] = endpoint.__name__
        if path.startswith("/v1/") and max(options["responses"], default=0) < 400:
            options["responses"] |= usual_refusals(path, reads=options["methods"] in (["GET"], ["DELETE"]))
        super().__init__(path, endpoint, **options)
        self._handler = cast("Callable[..., Awaitable[object]]", endpoint)
        self._arguments = _Arguments(self.dependant)
        # Clients of OpenAI and Anthropic send additional parameters, such as Anthropic's `?beta=true`.
        is_vendors = problems.error_shape(path) in ("openai", "anthropic")
        self._checks_query = path.startswith("/v1/") and not is_vendors
        self._success = self.status_code or 200
        # The answer of any other route tells what it has done: only its request is refused, before it does anything.
        self._only_reads = self.methods == {"GET"} or path.endswith("/preview")
        self.app = self._serve

    def _read_body(self, exchange: Exchange, model: type[BaseModel], *, required: bool) -> tuple[Any, BaseModel]:
        """The body's JSON as received, and validated."""
        if not exchange.body and not required:
            return {}, model.model_validate({})
        _check_is_json(exchange)
        value = parse_object(exchange.body)
        try:
            return value, model.__pydantic_validator__.validate_python(value)
        except ValidationError as error:
            raise InvalidFields(places(error, value, "body")) from None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.authenticated:
            await self._exchange(scope, receive, send)
            return
        service: AppState = scope["app"].state.service
        exchange: Exchange = scope["plimsoll"]
        try:
            with service.drain.work(), service.rt.tracer.request(scope["method"], self.path, exchange.headers) as span:
                if span.trace_id is not None:
                    exchange.fields["trace_id"] = span.trace_id
                await self._exchange(scope, receive, send)
                if (status := exchange.status) is not None:
                    span.set(lambda: {"http.response.status_code": status})
                    if status >= 500:
                        span.fail(str(status))
        except ShuttingDown as error:
            await problems.answer_to(scope, error, {"Connection": "close"})(scope, receive, send)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        try:
            if self.authenticated:
                call.tenant_id = await authenticate(scope)
                if not self._only_reads:
                    call.service.answers.check_share(call.tenant_id)
            response = await self._handle(call)
            size_bytes = len(getattr(response, "body", b""))
            is_stream = isinstance(response, StreamingResponse)
            if self.authenticated and (is_stream or size_bytes > _LONG_ANSWER_BYTES):
                if self._only_reads and not is_stream:
                    call.service.answers.check(call.tenant_id, size_bytes)
                send = _counted(call, send)
        except PlimsollError as error:
            response = problems.answer_to(scope, error)
        await response(scope, receive, send)

    async def _handle(self, call: Call) -> Response:
        result = await self._handler(**await call.aside(partial(self._bind, call)))
        if isinstance(result, Response):
            return result
        return json_response(result, self._success)

    def _bind(self, call: Call) -> dict[str, Any]:
        scope, exchange = call.scope, call.exchange
        text: str = scope["query_string"].decode("latin-1")
        query = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        checks_query = self._checks_query and b"anthropic-version" not in exchange.headers
        if checks_query and (unknown := query.keys() - self._arguments.query_names):
            raise InvalidRequest("This route has no such parameter.", ("query", min(unknown)))
        arguments = self._arguments.read(call, query)
        if self.body_field is not None:
            info = self.body_field.field_info
            exchange.json, arguments[self.dependant.body_params[0].name] = self._read_body(
                exchange, cast("type[BaseModel]", info.annotation), required=info.is_required()
            )
        return arguments


class HeavyRoute(DirectRoute):
    """Parses its body and runs its handler in a slot of `HeavyWork`, which limits how many run at once."""

    async def _handle(self, call: Call) -> Response:
        async with call.rt.heavy.slot(call.tenant_id):
            return await super()._handle(call)


class UnreadRoute(HeavyRoute):
    """A heavy route whose handler parses the body (`call.exchange.body`); its parameter only describes the body."""

    def _read_body(self, exchange: Exchange, model: type[BaseModel], *, required: bool) -> tuple[Any, BaseModel]:
        if required:
            _check_is_json(exchange)
        return None, model.model_construct()


class OpenRoute(DirectRoute):
    """A route that needs no key: liveness, readiness, metrics."""

    authenticated = False


async def authenticate(scope: Scope) -> TenantId:
    """The tenant of a request. It is looked up once per request. Raises `Unauthenticated`, `DatabaseUnavailable`."""
    exchange: Exchange = scope["plimsoll"]
    if exchange.auth_error is not None:
        raise exchange.auth_error
    if exchange.tenant_id is None:
        service: AppState = scope["app"].state.service
        try:
            exchange.tenant_id = await service.authenticator.tenant_of(exchange.credential)
        except (Unauthenticated, DatabaseUnavailable) as error:
            exchange.auth_error = error  # the route raises it again after the body was discarded
            raise
        exchange.fields["tenant"] = exchange.tenant_id
        tenant_at_work.set(exchange.tenant_id)
    return exchange.tenant_id


def _counted(call: Call, send: Send) -> Send:
    """Sends an answer, whose long pieces (a stream has many) count for its tenant until the client has read them."""
    answers, tenant_id = call.service.answers, call.tenant_id

    async def counted(message: Message) -> None:
        size_bytes = len(message.get("body", b""))
        if size_bytes <= _LONG_ANSWER_BYTES:
            await send(message)
            return
        answers.count(tenant_id, size_bytes)
        try:
            await send({**message, "more_body": True})
            await send({**message, "body": b""})  # waits until it is read
        finally:
            answers.give_back(tenant_id, size_bytes)

    return counted


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. The value may contain dataclasses, UUIDs, datetimes (written as `…Z`) and enums."""
    return Response(orjson.dumps(value, default=plain_json, option=_OPTIONS), status, headers, "application/json")


def plain_json(value: object) -> object:
    """Encodes what orjson does not: the UUIDs of the database driver, which are a subclass of `UUID`."""
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


class _NotJson(PlimsollError):
    code = "unsupported_media_type"


def _path_value(name: str, text: str, exchange: Exchange) -> UUID | str:
    noun = _NOUN_OF_ID.get(name)
    if noun is None:
        return text
    if not UUID_TEXT.fullmatch(text):
        raise NotFound(noun)
    exchange.fields[name] = text
    return UUID(text)


class _Arguments:
    """The arguments, except the body, of a handler, or of a function that makes one of its arguments (`Depends`)."""

    def __init__(self, dependant: Dependant) -> None:
        self._call_name = dependant.request_param_name
        self._made = [
            (str(each.name), cast("Callable[..., Any]", each.call), _Arguments(each)) for each in dependant.dependencies
        ]
        self._path_names = [field.name for field in dependant.path_params]
        self._parameters = [_Parameter("query", field) for field in dependant.query_params]
        self._parameters += [_Parameter("header", field) for field in dependant.header_params]
        self.query_names = {field.alias for field in dependant.query_params}
        self.query_names.update(*(made.query_names for _, _, made in self._made))

    def read(self, call: Call, query: Mapping[str, str]) -> dict[str, Any]:
        """Raises `NotFound` for a path, and `InvalidRequest` for another parameter, that has no allowed value."""
        exchange, path = call.exchange, call.scope["path_params"]
        arguments: dict[str, Any] = {} if self._call_name is None else {self._call_name: call}
        for name, make, made in self._made:
            arguments[name] = make(**made.read(call, query))
        for name in self._path_names:
            arguments[name] = _path_value(name, path[name], exchange)
        for each in self._parameters:
            arguments[each.argument] = each.value(query, exchange.headers)
        return arguments


class _Parameter:
    """A query parameter or a header that FastAPI has read from the handler's signature."""

    def __init__(self, source: Literal["query", "header"], field: Any) -> None:
        self.argument = field.name
        self._source = source
        self._name = field.alias
        self._header = field.alias.lower().encode()
        self._adapter: TypeAdapter[Any] = field._type_adapter  # FastAPI built it for this parameter
        self._missing = _MISSING if field.field_info.is_required() else field.get_default()

    def value(self, query: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Any:
        """Raises `InvalidRequest` if the request has none of the allowed values."""
        if self._source == "query":
            text = query.get(self._name)
        else:
            header = headers.get(self._header)
            text = None if header is None else _header_text(header)
        if text is None:
            if self._missing is _MISSING:
                raise InvalidRequest("The parameter is missing.", (self._source, self._name))
            return self._missing
        try:
            return self._adapter.validate_python(text)
        except ValidationError as error:
            raise InvalidFields(places(error, text, self._source, self._name)) from None


def _header_text(value: bytes) -> str:
    """The text of a header. HTTP states no encoding: many clients send UTF-8, and browsers and Node Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _check_is_json(exchange: Exchange) -> None:
    if not exchange.body:
        raise InvalidRequest("The body is empty; send a JSON object.", ("body",))
    if not _JSON_TYPE.fullmatch(exchange.headers.get(b"content-type", b"")):
        raise _NotJson("Send JSON with the header Content-Type: application/json.")
    if exchange.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _NotJson("Compressed bodies are not read; send the body without a Content-Encoding.")
