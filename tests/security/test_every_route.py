"""Thirty-two kinds of garbage on every route of the document: a 4xx of the right shape, and the connection goes on."""

from __future__ import annotations

import gzip
from typing import Any

import httpx

from tests.api.conftest import new_session
from tests.api.test_garbage import NOT_JSON
from tests.security.routes import Operation, operations

JSON = "application/json"
GARBAGE: dict[str, tuple[bytes, str | None]] = {
    **{name: (body, JSON) for name, body in NOT_JSON.items()},
    "no type": (b"{}", None),
    "another charset": (b"{}", "application/json; charset=utf-16"),
    "compressed": (gzip.compress(b'{"content": "a"}'), JSON),
    "an unknown field": (b'{"content": "a", "messages": [], "no-such-field": 1}', JSON),
}


def test_no_garbage_on_any_route_is_a_5xx_and_the_connection_goes_on(client: httpx.Client) -> None:
    assert len(GARBAGE) == 32
    sid = new_session(client)
    turn = client.post(f"/v1/sessions/{sid}/turns", json={"content": "Hello"}).json()["turn"]["id"]
    places = {"session_id": sid, "turn_id": turn, "summary_id": turn, "name": "p"}
    port = _own_port(client.get("/healthz"))
    sent = 0
    for operation in operations(client):
        if operation.method == "DELETE":
            continue
        for name, (body, content_type) in GARBAGE.items():
            answer = client.request(
                operation.method,
                operation.path.format_map(places),
                content=body,
                headers={} if content_type is None else {"content-type": content_type},
            )
            sent += 1
            assert answer.status_code < 500, (operation.name, name, answer.text)
            assert _own_port(answer) == port, (operation.name, name)
            if operation.body is not None:
                assert answer.status_code in {415, 422, 400}, (operation.name, name, answer.text)
            _assert_shape(operation, answer)
    assert sent >= 32 * 25
    assert client.get("/healthz").status_code == 200


def _assert_shape(operation: Operation, answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    problem: dict[str, Any] = answer.json()
    if operation.path == "/v1/chat/completions":
        assert answer.headers["content-type"] == "application/json"
        assert set(problem["error"]) >= {"message", "type", "param", "code"}
        return
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["status"], bool(problem["code"])) == (answer.status_code, True)
    assert len(answer.content) < 4000


def _own_port(answer: httpx.Response) -> int:
    """Of the connection: a new one has another."""
    return answer.extensions["network_stream"].get_extra_info("client_addr")[1]
