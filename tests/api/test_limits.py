"""What a client sees of limits: its session's own, and the 429 of whichever is reached."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import httpx
import pytest

from app.domain.types import TenantId
from app.services.limits import set_limits
from tests.api.conftest import assert_problem, new_session
from tests.pooling import own_database


def limit_tenant(database_url: str, **values: int) -> None:
    """Limits of the tenant that requests without a key belong to."""

    async def work() -> None:
        database = own_database(database_url)
        try:
            await set_limits(database, TenantId("default"), {name: Decimal(value) for name, value in values.items()})
        finally:
            await database.aclose()

    asyncio.run(work())


def test_a_turn_over_its_sessions_limit_is_a_429_that_says_which_limit_and_when_it_resets(client: httpx.Client) -> None:
    session_id = new_session(client, limits={"turns_per_day": 1})
    assert client.get(f"/v1/sessions/{session_id}").json()["limits"] == {"turns_per_day": 1}
    turns = f"/v1/sessions/{session_id}/turns"
    assert client.post(turns, json={"content": "Hi"}).status_code == 201
    refused = client.post(turns, json={"content": "Again"})
    limit = assert_problem(refused, 429, "limit_exceeded")["limit"]
    assert limit | {"resets_at": ""} == {
        "scope": "session",
        "name": "turns_per_day",
        "value": 1,
        "used": 1,
        "reserved": 0,
        "asked": 1,
        "resets_at": "",
    }
    assert limit["resets_at"].endswith("T00:00:00Z")
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert len(client.get(turns).json()["items"]) == 1
    assert_problem(client.post(turns, json={"content": "Again", "stream": True}), 429, "limit_exceeded")
    assert client.patch(f"/v1/sessions/{session_id}", json={"limits": None}).json()["limits"] == {}
    assert client.post(turns, json={"content": "Again"}).status_code == 201


def test_a_total_that_is_used_up_has_no_retry_after(client: httpx.Client) -> None:
    session_id = new_session(client, limits={"turns_total": 0, "usd_total": 0.5})
    refused = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hi"})
    assert assert_problem(refused, 429, "limit_exceeded")["limit"]["resets_at"] is None
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize(
    "limits", [{"turns_per_week": 1}, {"turns_total": -1}, {"turns_total": 1.5}, {"usd_total": "1"}, [], 3]
)
def test_unknown_and_impossible_limits_are_refused(client: httpx.Client, limits: object) -> None:
    assert_problem(client.post("/v1/sessions", json={"limits": limits}), 422, "invalid_request")


def test_a_fork_has_its_sessions_limits(client: httpx.Client) -> None:
    session_id = new_session(client, limits={"turns_total": 5})
    client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hi"})
    assert client.post(f"/v1/sessions/{session_id}/fork", json={}).json()["limits"] == {"turns_total": 5}


@pytest.mark.parametrize(
    ("name", "code"), [("turns_per_minute", "rate_limit_exceeded"), ("turns_total", "insufficient_quota")]
)
def test_a_chat_client_gets_it_in_openais_form(client: httpx.Client, database_url: str, name: str, code: str) -> None:
    limit_tenant(database_url, **{name: 0})
    body = {"model": "offline", "messages": [{"role": "user", "content": "Hi"}]}
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["type"], error["limit"]["name"]) == (code, "rate_limit_error", name)
    # Clients try again by themselves unless they are told not to.
    assert refused.headers.get("x-should-retry") == (None if code == "rate_limit_exceeded" else "false")
    assert ("retry-after" in refused.headers) == (code == "rate_limit_exceeded")
