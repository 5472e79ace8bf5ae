"""Who may ask what: open while no key exists, then a key a request, and tenants that never meet."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import pytest
from uuid_utils.compat import uuid7

from app.db.api_keys import ApiKey
from app.domain.types import TenantId
from app.services import keys
from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for
from tests.pooling import own_database


def make_key(database_url: str, tenant: str) -> tuple[ApiKey, str]:
    async def work() -> tuple[ApiKey, str]:
        database = own_database(database_url)
        try:
            return await keys.create_key(database, uuid7, TenantId(tenant), "test")
        finally:
            await database.aclose()

    return asyncio.run(work())


@contextmanager
def client_of(url: str, secret: str | None) -> Generator[httpx.Client]:
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def secrets(database_url: str) -> tuple[str, str]:
    """A key each of two tenants."""
    return make_key(database_url, "anna")[1], make_key(database_url, "bert")[1]


def test_once_a_key_exists_nothing_of_v1_answers_without_one(database_url: str, secrets: tuple[str, str]) -> None:
    with serving(settings_for(database_url)) as url, client_of(url, None) as client:
        for value in (None, "", "Bearer", "Basic eDp5", "Bearer plk_wrong", secrets[0], "Bearer é\xff"):
            headers = [] if value is None else [(b"authorization", value.encode("latin-1"))]
            answer = client.get("/v1/sessions", headers=headers)
            assert_problem(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert_problem(client.post("/v1/sessions", content=b"garbage"), 401, "unauthenticated")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.get("/v1/sessions", headers={"authorization": f"bearer  {secrets[0]}"}).status_code == 200


def test_another_tenants_things_are_the_same_404_as_nothing(database_url: str, secrets: tuple[str, str]) -> None:
    with (
        serving(settings_for(database_url)) as url,
        client_of(url, secrets[0]) as anna,
        client_of(url, secrets[1]) as bert,
    ):
        session_id = new_session(anna)
        new_session(anna)
        path = f"/v1/sessions/{session_id}"
        turn_id = anna.post(f"{path}/turns", json={"content": "private"}).json()["turn"]["id"]
        anna.put(f"{path}/pins/p", json={"content": "private"})
        calls = [
            ("GET", path, None),
            ("PATCH", path, {"room_goal": "mine"}),
            ("DELETE", path, None),
            ("GET", f"{path}/turns", None),
            ("POST", f"{path}/turns", {"content": "hello"}),
            ("GET", f"{path}/turns/{turn_id}", None),
            ("GET", f"{path}/turns/{turn_id}/audit", None),
            ("GET", f"{path}/turns/{turn_id}/prompt", None),
            ("GET", f"{path}/context", None),
            ("GET", f"{path}/summaries", None),
            ("POST", f"{path}/summaries", None),
            ("GET", f"{path}/pins", None),
            ("GET", f"{path}/pins/p", None),
            ("PUT", f"{path}/pins/p", {"content": "mine"}),
            ("DELETE", f"{path}/pins/p", None),
        ]
        for method, address, body in calls:
            assert_problem(bert.request(method, address, json=body), 404, "session_not_found")
        own = f"/v1/sessions/{new_session(bert)}"
        assert_problem(bert.get(f"{own}/turns/{turn_id}"), 404, "turn_not_found")
        cursor = anna.get("/v1/sessions?limit=1").json()["next_cursor"]
        assert_problem(bert.get(f"/v1/sessions?cursor={cursor}"), 422, "invalid_request")
        assert len(bert.get("/v1/sessions").json()["items"]) == 1
        assert anna.get(f"{path}/pins/p").json()["content"] == "private"
        assert anna.get(path).json()["room_goal"] is None


def test_an_open_service_asks_for_keys_soon_after_the_first_is_made(database_url: str) -> None:
    with serving(settings_for(database_url)) as url, client_of(url, None) as client:
        assert client.get("/v1/sessions", headers={"authorization": "Bearer whatever"}).status_code == 200
        make_key(database_url, "anna")
        with serving(settings_for(database_url)) as other, client_of(other, None) as second:
            assert second.get("/v1/sessions").status_code == 401
