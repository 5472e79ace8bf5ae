"""A request as a value, and what its answer is read as; both clients send it, neither knows what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from plimsoll_sdk.errors import Problem, UnexpectedAnswer, problem_of

T = TypeVar("T")
P = ParamSpec("P")


class _NotGiven:
    """What was not said, where None means something."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NotGiven = _NotGiven
NOT_GIVEN: Final = _NotGiven()


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. `headers` are by lower-case name; `stream` is the open answer of a call that streams."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    stream: Any = None

    @property
    def has_events(self) -> bool:
        """Whether it is a stream of events, and so what a call that streams asked for."""
        return self.status < 300 and self.headers.get("content-type", "").startswith("text/event-stream")


@dataclass(frozen=True)
class Request(Generic[T]):
    """What an operation fills in: the places of its address, query, body and headers, and how its answer is read."""

    read: Callable[[Reply], T]
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    streamed: bool = False


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, ready to be sent any number of times.

    `repeatable` says that sending it again is no second one: it reads, sets or removes, or has an idempotency key.
    """

    method: str
    path: str
    repeatable: bool
    request: Request[T]

    def at(self, cursor: str) -> Call[T]:
        """The same call for the page that begins at the cursor."""
        return replace(self, request=replace(self.request, query={**self.request.query, "cursor": cursor}))

    def streaming(self) -> Call[T]:
        """The same call for an answer that is streamed."""
        body = {**(self.request.body or {}), "stream": True}
        return replace(self, request=replace(self.request, body=body, streamed=True))

    @property
    def content(self) -> bytes | None:
        """The body as JSON, or None where there is none."""
        body = self.request.body
        return None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


OPERATIONS: Final[dict[tuple[str, str], list[Callable[..., Call[Any]]]]] = {}
"""Every operation by method and address template; a test holds them to the service's OpenAPI document."""


def operation(
    method: str, template: str, *, repeatable: bool = False
) -> Callable[[Callable[P, Request[T]]], Callable[P, Call[T]]]:
    """Makes a function that describes a request one that gives the call, and keeps it in `OPERATIONS`."""

    def make(describe: Callable[P, Request[T]]) -> Callable[P, Call[T]]:
        @wraps(describe)
        def call(*args: P.args, **kwargs: P.kwargs) -> Call[T]:
            request = describe(*args, **kwargs)
            places = {name: _place(name, value) for name, value in request.places.items()}
            again = repeatable or "Idempotency-Key" in request.headers
            return Call(method, template.format_map(places), again, request)

        OPERATIONS.setdefault((method, template), []).append(call)
        return call

    return make


def reads(kind: type[T]) -> Callable[[Reply], T]:
    """Reads an answer's JSON as this model. Raises `UnexpectedAnswer`."""

    def read(reply: Reply) -> T:
        try:
            return _adapter(kind).validate_json(reply.body)
        except ValidationError as error:
            places = ", ".join(sorted({".".join(map(str, fault["loc"])) or "body" for fault in error.errors()})[:5])
            raise UnexpectedAnswer(f"The answer is not the expected one, at {places}", reply.status) from None

    return read


def reads_nothing(_: Reply) -> None:
    """For answers without a body."""


def reads_text(reply: Reply) -> str:
    """For answers that are text."""
    return reply.body.decode("utf-8", "replace")


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def error_of(reply: Reply, retry_after_s: float | None) -> Problem | UnexpectedAnswer:
    """The error that an answer of 400 and more is."""
    try:
        value: Any = json.loads(reply.body)
    except (ValueError, RecursionError):
        value = None
    document = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if "code" not in document and isinstance(document.get("error"), dict):  # OpenAI's form alone
        document = {**document["error"], "detail": document["error"].get("message")}
    if "code" in document:
        return problem_of(reply.status, document, retry_after_s)
    if reply.status >= 400:
        return problem_of(reply.status, {"title": "Not answered by Plimsoll"}, retry_after_s)
    return UnexpectedAnswer("The answer is not the expected one", reply.status)


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given: neither None nor `NOT_GIVEN`."""
    return {name: value for name, value in fields.items() if value is not None and value is not NOT_GIVEN}


def query(**fields: object) -> dict[str, str]:
    """The parameters that were given, as text."""
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    return texts | {name: texts[name].lower() for name, value in fields.items() if isinstance(value, bool)}


def _place(name: str, value: str) -> str:
    """A value in an address. A pin's name and an alias may have slashes; nothing may step out of its place."""
    if not value:
        raise ValueError(f"{name} must not be empty")
    quoted = quote(value, safe="/" if name in {"name", "alias"} else "")
    return "/".join(part.replace(".", "%2E") if part in {".", ".."} else part for part in quoted.split("/"))
