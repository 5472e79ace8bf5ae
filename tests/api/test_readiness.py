"""Which schemas of the database a replica is ready for: during an upgrade two versions share one database."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.api.conftest import new_session, serving, settings_for
from torture.databases import execute


@pytest.mark.parametrize(
    ("version", "ready"),
    [("of_a_later_release", (200, "ahead")), ("2026_11_23_packed_terms", (503, "behind"))],
)
def test_a_migration_leaves_the_replicas_of_the_version_before_ready_but_not_those_of_a_later_one(
    database_url: str, version: str, ready: tuple[int, str]
) -> None:
    with serving(settings_for(database_url)) as url, httpx.Client(base_url=url, timeout=30) as client:
        session = new_session(client)
        statement = f"UPDATE alembic_version SET version_num = '{version}'"  # noqa: S608 - one of the test's own
        asyncio.run(execute(database_url, statement))
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["migrations"]) == ready
        assert client.post(f"/v1/sessions/{session}/turns", json={"content": "Hi"}).status_code == 201
