"""What a stranger's page may make its reader's browser do to a service that asks for no key: nothing, on any route."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from app.api.edge import Hosts
from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for
from tests.api.test_auth import client_of, make_key
from tests.security.routes import ANTHROPIC_PATHS, OPENAI_PATHS, openai_places, operations

REBOUND = {"Host": "attacker.example:8000"}
"""A page whose own name was made to lead here: to the browser it is of the same origin."""
CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
OF_ANOTHER_PORT = {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}
OLDER_BROWSER = {"Origin": "https://attacker.example"}
SANDBOXED = {"Origin": "null"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OPEN = ("/", "/ui", "/ui/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/nowhere")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        pytest.param(REBOUND, 421, "host_not_allowed", id="rebound"),
        pytest.param(REBOUND | {"Sec-Fetch-Site": "same-origin"}, 421, "host_not_allowed", id="rebound, says so"),
        pytest.param(CROSS_SITE, 403, "origin_not_allowed", id="cross-site"),
        pytest.param(OF_ANOTHER_PORT, 403, "origin_not_allowed", id="another port"),
        pytest.param(OLDER_BROWSER, 403, "origin_not_allowed", id="older browser"),
        pytest.param(SANDBOXED, 403, "origin_not_allowed", id="sandboxed"),
    ],
)
def test_a_page_of_a_stranger_changes_and_reads_nothing(
    client: httpx.Client, headers: Mapping[str, str], status: int, code: str
) -> None:
    session_id = new_session(client)
    turn = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hello"}).json()["turn"]
    places = {"session_id": session_id, "turn_id": turn["id"], "summary_id": turn["id"], "name": "p"}
    places |= openai_places(session_id)
    before = client.get(f"/v1/sessions/{session_id}/export").json()
    for operation in operations(client):
        answer = operation.send(client, places, headers=headers)
        if operation.path.startswith(OPENAI_PATHS + ANTHROPIC_PATHS):
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), operation.name
        else:
            assert_problem(answer, status, code)
    for path in (*OPEN, "/v1/sessions"):
        assert_problem(client.get(path, headers=headers), status, code)
        for method in ("HEAD", "OPTIONS"):
            assert client.request(method, path, headers=headers).status_code == status
    after = client.get(f"/v1/sessions/{session_id}/export").json()
    assert after | {"exported_at": None} == before | {"exported_at": None}
    assert [item["id"] for item in client.get("/v1/sessions").json()["items"]] == [session_id]


@pytest.mark.parametrize("path", ["/ui/", "/docs", "/"])
def test_a_link_leads_to_a_page_from_anywhere_and_to_no_data(client: httpx.Client, path: str) -> None:
    assert client.get(path, headers=LINK).status_code in {200, 503}
    assert_problem(client.get("/v1/sessions", headers=LINK), 403, "origin_not_allowed")
    assert_problem(client.get(path, headers=LINK | {"Sec-Fetch-Dest": "iframe"}), 403, "origin_not_allowed")
    assert_problem(client.post(path, headers=LINK), 403, "origin_not_allowed")


def test_requests_from_own_pages_and_from_clients_that_are_no_browser_are_allowed(client: httpx.Client) -> None:
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    for headers in (
        {"Sec-Fetch-Site": "same-origin", "Origin": own},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Origin": own},
        {"Host": f"localhost:{client.base_url.port}"},
        {"Host": "LOCALHOST"},
        {"Host": "[::1]:8000"},
        {"Host": "192.168.1.5:8000"},
        {},
    ):
        assert client.post("/v1/sessions", json={}, headers=headers).status_code == 201


@pytest.mark.parametrize(
    "host", ["127.0.0.1.attacker.example", "localhost.attacker.example", "localhost:8000@attacker", "", "a b", "\xff"]
)
def test_a_name_that_only_looks_like_ours_is_none(client: httpx.Client, host: str) -> None:
    answer = client.get("/healthz", headers=[(b"host", host.encode("latin-1"))])
    assert_problem(answer, 421, "host_not_allowed")


def test_more_names_are_a_setting(database_url: str) -> None:
    with (
        serving(settings_for(database_url, allowed_hosts="chat.example.org, Other.example")) as address,
        client_of(address, None) as client,
    ):
        for host in ("chat.example.org", "CHAT.example.org:443", "other.example"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200
        # A proxy that puts its own name into `Host`, before a browser that does not say where a page is from.
        assert client.post("/v1/sessions", json={}, headers={"Origin": "http://chat.example.org"}).status_code == 201
        for host in ("example.org", "xchat.example.org", "chatxexample.org"):
            assert_problem(client.get("/healthz", headers={"Host": host}), 421, "host_not_allowed")


def test_a_service_that_others_reach_asks_for_a_key_and_not_for_a_name_until_one_is_set(database_url: str) -> None:
    make_key(database_url, "anna")
    for settings, status in (
        ({"host": "0.0.0.0"}, 401),
        ({"host": "0.0.0.0", "allowed_hosts": "chat.example.org"}, 421),
        ({"host": "0.0.0.0", "allowed_hosts": "*"}, 401),
        ({"host": "127.0.0.1", "allowed_hosts": "*"}, 401),
        ({"host": "127.0.0.1"}, 421),
        ({"host": "a-name-that-may-be-loopback"}, 421),
    ):
        with serving(settings_for(database_url, **settings)) as address, client_of(address, None) as client:
            assert client.get("/v1/sessions", headers={"Host": "any.example"}).status_code == status, settings


def test_the_names_that_are_remembered_are_bounded() -> None:
    hosts = Hosts("0.0.0.0", "*")
    for number in range(10_000):
        assert hosts.refusal_of({"type": "http"}, {b"host": b"h%d" % number}) is None
    assert hosts.is_ours.cache_info().currsize <= 100


def test_pages_of_named_origins_may_call_and_read_and_no_others(database_url: str) -> None:
    origin = "https://chat.example.org"
    settings = settings_for(database_url, cors_origins=f"{origin}, http://localhost:5173")
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-session-id"}
    with serving(settings) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        allowed = client.options("/v1/chat/completions", headers={"Origin": origin, **asked})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == origin
        assert "x-session-id" in allowed.headers["access-control-allow-headers"]
        made = client.post("/v1/sessions", json={}, headers=CROSS_SITE | {"Origin": origin})
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, origin)
        for stranger in (OLDER_BROWSER, CROSS_SITE, SANDBOXED, {"Origin": f"{origin}.attacker.example"}):
            answer = client.post("/v1/sessions", json={}, headers=stranger)
            assert_problem(answer, 403, "origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers
        assert client.options("/v1/sessions", headers=OLDER_BROWSER | asked).status_code == 400


@pytest.mark.parametrize("origins", ["*", "https://chat.example.org/page", "chat.example.org", "https://*.example.org"])
def test_what_is_no_origin_is_refused_at_start(database_url: str, origins: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        settings_for(database_url, cors_origins=origins)
