"""Garbage on every route of the document, by body, query, header and address: a 4xx of the right shape at worst.

The connection goes on.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.conftest import new_session
from tests.api.test_garbage import NOT_JSON
from tests.security.routes import ANTHROPIC_PATHS, METHODS, OPENAI_PATHS, Operation, openai_places, operations

JSON = "application/json"
GARBAGE: dict[str, tuple[bytes, str | None]] = {
    **{name: (body, JSON) for name, body in NOT_JSON.items()},
    "no type": (b"{}", None),
    "another charset": (b"{}", "application/json; charset=utf-16"),
    "compressed": (gzip.compress(b'{"content": "a"}'), JSON),
    "an unknown field": (b'{"content": "a", "messages": [], "no-such-field": 1}', JSON),
}
QUERIES = (
    "%",
    "a=%ff",
    "&&&=",
    "limit=&cursor=&round=",
    "limit=x&cursor=x&round=x",
    "limit=-1&cursor=%00&round=-1",
    "limit=1e9&cursor=%ff%fe&round=0",
    "limit=1&limit=x&round=1&round=x",
    f"limit={'9' * 400}&round={'9' * 400}&cursor={'A' * 4000}",
    "limit=true&cursor=null&round=%F0%9F%92%A9",
)
HEADERS: tuple[Mapping[bytes, bytes], ...] = (
    {b"idempotency-key": b"\xff\xfe", b"x-session-id": b"\xff\xfe"},
    {b"idempotency-key": b"a" * 4000, b"x-session-id": b"a" * 4000},
    {b"idempotency-key": b"", b"x-session-id": b""},
    {b"idempotency-key": b'"', b"x-session-id": b"'; DROP TABLE sessions; --"},
    {b"accept": b"\xff", b"accept-encoding": b"nonsense", b"content-encoding": b"nonsense", b"range": b"bytes=9-1"},
    {b"x-request-id": b"\xff" * 300, b"authorization": b"Basic \xff", b"cookie": b"=;=;\xff", b"traceparent": b"00-x"},
)
PLACES = ("%00", "%ff", "%2e%2e%2f", "null", "-1", "é", "0" * 400, "%F0%9F%92%A9", "{}", "a%0d%0ab")


class Sender:
    """Sends garbage to one operation at a time, over one connection."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.found = operations(client, under="/")
        self.sid = self.responded()
        turn = client.post(f"/v1/sessions/{self.sid}/turns", json={"content": "Hello"})
        self.turn_id = turn.json()["turn"]["id"]
        self.port = _own_port(turn)
        self.sent = 0

    def places(self, operation: Operation) -> dict[str, str]:
        """Of things that exist: what is erased is made anew."""
        sid = new_session(self.client) if operation.method == "DELETE" else self.sid
        if operation.takes("name"):
            assert self.client.put(f"/v1/sessions/{sid}/pins/p", json={"content": "x"}).is_success
        if operation.path.startswith(OPENAI_PATHS) and operation.method == "DELETE":
            sid = self.responded()
        own = {"session_id": sid, "turn_id": self.turn_id, "summary_id": self.turn_id, "name": "p"}
        return own | openai_places(sid)

    def responded(self) -> str:
        """A session with a response."""
        answer = self.client.post("/v1/responses", json={"model": "offline", "input": "Hello"})
        assert answer.is_success
        return answer.headers["x-session-id"]

    def send(self, operation: Operation, what: object, path: str, **request: Any) -> httpx.Response:
        """No 5xx, the right shape, and the same connection."""
        answer = self.client.request(operation.method, path, **request)
        self.sent += 1
        assert answer.status_code < 500, (operation.name, what, answer.text)
        assert _own_port(answer) == self.port, (operation.name, what)
        _assert_shape(operation, answer)
        return answer


@pytest.fixture
def sender(client: httpx.Client) -> Sender:
    return Sender(client)


def test_no_garbage_for_a_body_on_any_route_is_a_5xx_and_the_connection_goes_on(sender: Sender) -> None:
    assert len(GARBAGE) == 34
    for operation in sender.found:
        for name, (body, content_type) in GARBAGE.items():
            answer = sender.send(
                operation,
                name,
                operation.path.format_map(sender.places(operation)),
                content=body,
                headers={} if content_type is None else {"content-type": content_type},
            )
            if operation.body is not None:
                assert answer.status_code in {415, 422, 400}, (operation.name, name, answer.text)
    assert sender.sent == 34 * len(sender.found)
    print(f"{len(GARBAGE)} kinds on {len(sender.found)} operations: no 5xx")  # noqa: T201 - `make fuzz` shows it
    assert {operation.method for operation in sender.found} == {method.upper() for method in METHODS}


def test_no_garbage_in_query_header_or_address_of_any_route_is_a_5xx(sender: Sender) -> None:
    for operation in sender.found:
        for query in QUERIES:
            path = operation.path.format_map(sender.places(operation))
            sender.send(operation, query, f"{path}?{query}", json=operation.body)
        for headers in HEADERS:
            path = operation.path.format_map(sender.places(operation))
            sender.send(operation, headers, path, json=operation.body, headers=list(headers.items()))
        for name in sender.places(operation):
            for garbage in PLACES if operation.takes(name) else ():
                path = operation.path.format_map(sender.places(operation) | {name: garbage})
                answer = sender.send(operation, garbage, path, json=operation.body)
                assert name == "name" or answer.status_code >= 400, (operation.name, garbage)
    assert sender.sent >= (len(QUERIES) + len(HEADERS)) * len(sender.found)


_OF_ANOTHER = {
    "/v1/sessions/import": {"GET", "DELETE", "PATCH"},
    "/v1/responses/compact": {"GET", "DELETE"},
    "/v1/responses/input_tokens": {"GET", "DELETE"},
}
"""To these methods the path is the address of a session, or of a response."""


def test_a_method_that_a_route_does_not_have_is_a_405_that_says_which_it_has(sender: Sender) -> None:
    taken: dict[str, set[str]] = {}
    for operation in sender.found:
        taken.setdefault(operation.path, set()).add(operation.method)
    places = {"session_id": str(uuid4()), "turn_id": str(uuid4()), "summary_id": str(uuid4()), "name": "p"}
    places |= openai_places(places["session_id"])
    for path, methods in taken.items():
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"} - methods:
            operation = Operation(method, path, None, (), (), {})
            answer = sender.send(operation, "method", path.format_map(places), content=b"{nonsense")
            if method in _OF_ANOTHER.get(path, ()):
                assert answer.status_code in {404, 422}
                continue
            assert answer.status_code == 405, (operation.name, answer.text)
            assert methods <= set(answer.headers["allow"].split(", "))


def _assert_shape(operation: Operation, answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    problem: dict[str, Any] = answer.json()
    if operation.path.startswith(OPENAI_PATHS):
        assert answer.headers["content-type"] == "application/json"
        assert set(problem["error"]) >= {"message", "type", "param", "code"}
        return
    if operation.path.startswith(ANTHROPIC_PATHS):
        assert answer.headers["content-type"] == "application/json"
        assert (problem["type"], set(problem["error"]) >= {"type", "message", "code"}) == ("error", True)
        assert problem["request_id"]
        return
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["status"], bool(problem["code"])) == (answer.status_code, True)
    assert len(answer.content) < 4000


def _own_port(answer: httpx.Response) -> int:
    """Of the connection: a new one has another."""
    return answer.extensions["network_stream"].get_extra_info("client_addr")[1]
