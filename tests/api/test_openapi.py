"""The OpenAPI document, and every operation of it under generated requests.

`PLIMSOLL_SCHEMATHESIS_EXAMPLES` sets how many examples an operation gets (20 here, always the same; `make fuzz` takes
400 of them, others each time, and wants to have sent 10,000).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from typing import Any, cast

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import booleans
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks

from app.api.openapi import EXAMPLES as EXAMPLES_OF
from app.api.schemas.values import PATTERNS_IN_WORDS
from tests.api.conftest import assert_problem, new_session
from tests.security.routes import ANTHROPIC_PATHS, OPENAI_PATHS, openai_places

_FEW = 20
_MANY_CASES = 10_000
EXAMPLES = int(os.environ.get("PLIMSOLL_SCHEMATHESIS_EXAMPLES", _FEW))
CHECKS: list[Any] = [
    cast(Any, checks).not_a_server_error,
    cast(Any, openapi_checks).status_code_conformance,
    cast(Any, openapi_checks).content_type_conformance,
    cast(Any, openapi_checks).response_schema_conformance,
]
ROUTES = {
    "/v1/sessions": {"get", "post"},
    "/v1/sessions/{session_id}": {"get", "patch", "delete"},
    "/v1/sessions/import": {"post"},
    "/v1/sessions/{session_id}/fork": {"post"},
    "/v1/sessions/{session_id}/export": {"get"},
    "/v1/sessions/{session_id}/turns": {"get", "post"},
    "/v1/sessions/{session_id}/turns/{turn_id}": {"get"},
    "/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs": {"post"},
    "/v1/sessions/{session_id}/turns/{turn_id}/cancel": {"post"},
    "/v1/sessions/{session_id}/turns/{turn_id}/regenerate": {"post"},
    "/v1/sessions/{session_id}/turns/{turn_id}/audit": {"get"},
    "/v1/sessions/{session_id}/turns/{turn_id}/prompt": {"get"},
    "/v1/sessions/{session_id}/context": {"get"},
    "/v1/sessions/{session_id}/context/preview": {"post"},
    "/v1/sessions/{session_id}/search": {"get"},
    "/v1/sessions/{session_id}/look-back": {"get"},
    "/v1/sessions/{session_id}/summaries": {"get", "post"},
    "/v1/sessions/{session_id}/summaries/{summary_id}": {"patch"},
    "/v1/sessions/{session_id}/summaries/active/undo": {"post"},
    "/v1/sessions/{session_id}/summaries/{summary_id}/undo": {"post"},
    "/v1/sessions/{session_id}/pins": {"get"},
    "/v1/sessions/{session_id}/pins/{name}": {"get", "put", "delete"},
    "/v1/sessions/{session_id}/simulate": {"post"},
    "/v1/models": {"get"},
    "/v1/models/{alias}": {"get"},
    "/v1/policies": {"get"},
    "/v1/search": {"get"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/v1/responses": {"post"},
    "/v1/responses/compact": {"post"},
    "/v1/responses/input_tokens": {"post"},
    "/v1/responses/{response_id}": {"get", "delete"},
    "/v1/responses/{response_id}/cancel": {"post"},
    "/v1/responses/{response_id}/input_items": {"get"},
    "/v1/conversations": {"post"},
    "/v1/conversations/{conversation_id}": {"get", "post", "delete"},
    "/v1/conversations/{conversation_id}/items": {"get", "post"},
    "/v1/conversations/{conversation_id}/items/{item_id}": {"get", "delete"},
    "/v1/events": {"get"},
    "/v1/sessions/{session_id}/timeline": {"get"},
    "/v1/sessions/{session_id}/timeline/overview": {"get"},
    "/v1/sessions/{session_id}/messages": {"get"},
    "/": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}
PLAIN: dict[str, dict[str, Any]] = {
    "POST /v1/sessions/{session_id}/turns": {"content": "Hello"},
    "POST /v1/chat/completions": {"model": "offline", "messages": [{"role": "user", "content": "Hello"}]},
    "POST /v1/messages": {"model": "offline", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]},
    "POST /v1/completions": {"model": "offline", "prompt": "Hello"},
    "POST /v1/responses": {"model": "offline", "input": "Hello"},
}
"""A body that is taken, of each operation that may answer with a stream."""


def test_the_document_has_the_routes_of_this_version_and_their_problems(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {path: set(operations) for path, operations in document["paths"].items()} == ROUTES
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                assert {"401", "409", "429", "503"} <= set(operation["responses"])
                assert operation["security"] == [{}, {"key": []}]
            assert operation["description"]
            assert {"403", "421", "431"} <= set(operation["responses"])


def test_operations_have_short_ids_of_their_own_and_the_document_names_its_server(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    ids = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) and len(name) <= 25 for name in ids), ids
    assert [server["url"] for server in document["servers"]] == ["/"]


def test_the_example_of_every_operation_is_accepted(client: httpx.Client) -> None:
    session_id = new_session(client)
    turn_id = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hello"}).json()["turn"]["id"]
    known = {"session_id": session_id, "turn_id": turn_id, "summary_id": turn_id, "name": "p", **_responded(client)}
    sent = 0
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                answer = client.request(method, path.format(**known), json=body["example"])
                # The turn has no open calls, and there is no summary.
                assert answer.status_code in (200, 201, 404, 409), (path, answer.text)
                sent += 1
    assert sent == len(EXAMPLES_OF)


def test_no_field_of_a_request_that_has_a_default_looks_required(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    stream = schemas["TurnIn"]["properties"]["stream"]
    assert "default" not in stream
    assert "Default: `false`." in stream["description"]


def test_every_pattern_of_a_request_has_words_that_an_error_says_in_its_place(client: httpx.Client) -> None:
    patterns = set(re.findall(r'"pattern":("(?:[^"\\]|\\.)*")', client.get("/openapi.json").text))
    assert {json.loads(pattern) for pattern in patterns} <= PATTERNS_IN_WORDS.keys()
    session_id = new_session(client)
    answer = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hi"}, headers={"Idempotency-Key": "a b"})
    problem = assert_problem(answer, 422, "invalid_request")
    assert problem["detail"] == "header.Idempotency-Key: Must have 1 to 255 visible ASCII characters"
    answer = client.get(f"/v1/sessions/{session_id}/messages?ids=1")
    assert "separated by commas" in assert_problem(answer, 422, "invalid_request")["detail"]


def test_an_unknown_parameter_of_a_query_is_refused_but_by_the_vendors_routes(client: httpx.Client) -> None:
    for path in ("/v1/sessions", "/v1/models", "/v1/policies"):
        problem = assert_problem(client.get(path, params={"page": "2"}), 422, "invalid_request")
        assert problem["errors"][0]["where"] == "query.page"
    message = {"model": "offline", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    assert client.post("/v1/messages?beta=true", json=message).status_code == 200


def test_no_generated_request_is_answered_by_a_5xx_or_against_the_document(client: httpx.Client) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    session_id = new_session(client)
    turn_id = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hello"}).json()["turn"]["id"]
    client.put(f"/v1/sessions/{session_id}/pins/p", json={"content": "x"})
    known = {"session_id": session_id, "turn_id": turn_id, **_responded(client)}
    answers: Counter[tuple[str, int]] = Counter()
    streams: Counter[str] = Counter()
    with requests.Session() as session:
        session.trust_env = False
        for result in schema.get_all_operations():
            operation = result.ok()
            plain = _plain_cases(operation, known)
            for mode in GenerationMode:
                cases = operation.as_strategy(generation_mode=mode)
                _probe(client, session, cases, plain, known, answers, streams)
        assert _connections(session) == 1, "a connection was not reusable"
    assert EXAMPLES <= _FEW or answers.total() >= _MANY_CASES, answers.total()
    statuses = {status for _, status in answers}
    by_status = ", ".join(f"{sum(n for key, n in answers.items() if key[1] == s):,} of {s}" for s in sorted(statuses))
    print(f"{answers.total():,} cases over one connection: {by_status}")  # noqa: T201 - `make fuzz` shows it
    assert {200, 201, 204, 404, 422} <= statuses
    assert answers["POST /v1/sessions/{session_id}/turns", 201] > 0
    assert all(streams[label] > 0 for label in PLAIN), streams
    assert client.get("/healthz").status_code == 200


def _responded(client: httpx.Client) -> dict[str, str]:
    """The ids of a response and of what is around it."""
    answer = client.post("/v1/responses", json={"model": "offline", "input": "Hello"})
    return openai_places(answer.headers["x-session-id"])


def _plain_cases(operation: Any, known: dict[str, str]) -> list[Any]:
    """The plain body of an operation, and the same as a stream.

    Few of the bodies that a schema allows are taken: no schema says that text is not blank and has no NUL.
    """
    if operation.label not in PLAIN:
        return []
    places = {name: value for name, value in known.items() if f"{{{name}}}" in operation.path}
    bodies = (PLAIN[operation.label], PLAIN[operation.label] | {"stream": True})
    return [operation.Case(path_parameters=places, body=body, media_type="application/json") for body in bodies]


def _of_known_models(body: dict[str, Any]) -> dict[str, Any]:
    """No generated name is a model's or a tool's, and a body with one gets no further."""
    named = ("model_alias", "tool_choice", "recorded_reply")
    known = {name: value for name, value in body.items() if name not in named}
    return known | ({"model": "offline"} if "model" in known else {})


def _connections(session: requests.Session) -> int:
    """How many it has opened so far."""
    pools = cast(Any, session.get_adapter("http://")).poolmanager.pools
    hosts = pools.keys()  # it refuses to be iterated itself
    return sum(pools[host].num_connections for host in hosts)


def _probe(
    client: httpx.Client,
    session: requests.Session,
    cases: Any,
    plain: list[Any],
    known: dict[str, str],
    answers: Counter[tuple[str, int]],
    streams: Counter[str],
) -> None:
    """Calls one operation with generated requests; every other one is aimed at things that exist."""

    @settings(
        max_examples=EXAMPLES // 2,
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= _FEW,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=cases, aimed=booleans())
    def probe(case: Any, aimed: bool) -> None:
        if aimed:
            path: dict[str, Any] = case.path_parameters or {}
            aim = known if case.method != "DELETE" else {"session_id": new_session(client), **_responded(client)}
            case.path_parameters = {**path, **{name: aim[name] for name in aim.keys() & path.keys()}}
            body: object = case.body
            if isinstance(body, dict):
                case.body = _of_known_models(cast("dict[str, Any]", body))
        answer = case.call_and_validate(checks=CHECKS, session=session, timeout=60)
        if answer.status_code >= 400:
            wanted = "json" if case.operation.path.startswith(OPENAI_PATHS + ANTHROPIC_PATHS) else "problem+json"
            assert answer.headers["content-type"] == [f"application/{wanted}"]
        answers[f"{case.method} {case.operation.path}", answer.status_code] += 1
        streams[case.operation.label] += answer.headers.get("content-type", [""])[0].startswith("text/event-stream")

    for case in plain:
        probe = example(case=case, aimed=True)(probe)
    with suppress(Unsatisfiable):  # an operation that takes nothing has nothing to get wrong
        probe()
