"""Which schemas of the database a replica is ready for: during an upgrade two versions share one database."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.pooling import own_connection, past_pooler
from torture.databases import execute


async def set_version(database_url: str, version: str) -> str:
    """Has the database say that it is of this version; returns the one before."""
    async with own_connection(database_url) as connection:
        before: str = await connection.fetchval("SELECT version_num FROM alembic_version")
        await connection.execute("UPDATE alembic_version SET version_num = $1", version)
    return before


@contextmanager
def at_version(database_url: str, version: str) -> Generator[None]:
    """The database says this version in the block, and then again what is true: a cluster's is used by other tests."""
    before = asyncio.run(set_version(database_url, version))
    try:
        yield
    finally:
        asyncio.run(set_version(database_url, before))


@pytest.mark.parametrize(
    ("version", "ready"),
    [("of_a_later_release", (200, "ahead")), ("2026_11_23_packed_terms", (503, "behind"))],
)
def test_a_migration_leaves_the_replicas_of_the_version_before_ready_but_not_those_of_a_later_one(
    database_url: str, version: str, ready: tuple[int, str]
) -> None:
    with (
        serving(settings_for(database_url)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
        at_version(database_url, version),
    ):
        session = new_session(client)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["migrations"]) == ready
        assert client.post(f"/v1/sessions/{session}/turns", json={"content": "Hi"}).status_code == 201


@contextmanager
def served_as_another(database_url: str) -> Generator[tuple[httpx.Client, str]]:
    """A client of a service whose database user is not the owner of the tables, and the user's name."""
    name = f"served_{uuid4().hex[:12]}"
    parts = urlsplit(past_pooler(database_url))  # ours connects as one user for all
    user = urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
    asyncio.run(execute(database_url, f"CREATE ROLE {name} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"))
    try:
        with serving(settings_for(user)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            assert client.get("/readyz").status_code == 200
            yield client, name
    finally:
        asyncio.run(execute(database_url, f"DROP OWNED BY {name}; DROP ROLE {name}"))


@pytest.mark.parametrize("right", ["INSERT ON messages", "UPDATE ON turns", "SELECT ON pins"])
def test_a_replica_whose_database_user_may_not_store_turns_is_not_ready(database_url: str, right: str) -> None:
    with served_as_another(database_url) as (client, name):
        asyncio.run(execute(database_url, f"REVOKE {right} FROM {name}"))
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["database"]) == (503, "unavailable")


def test_a_replica_that_row_security_keeps_from_all_rows_is_not_ready(database_url: str) -> None:
    with served_as_another(database_url) as (client, _):
        try:
            asyncio.run(execute(database_url, "ALTER TABLE messages ENABLE ROW LEVEL SECURITY"))
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["database"]) == (503, "unavailable")
            refused = client.post(f"/v1/sessions/{new_session(client)}/turns", json={"content": "Hi"})
            assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
            asyncio.run(execute(database_url, "CREATE POLICY all_rows ON messages USING (true)"))
            assert client.get("/readyz").status_code == 200
            assert client.post(f"/v1/sessions/{new_session(client)}/turns", json={"content": "Hi"}).status_code == 201
        finally:
            undone = "DROP POLICY IF EXISTS all_rows ON messages", "ALTER TABLE messages DISABLE ROW LEVEL SECURITY"
            asyncio.run(execute(database_url, *undone))
