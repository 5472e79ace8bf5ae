"""A failover's first minute: Postgres answers, and refuses to write."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from migrations.drift import with_database
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.pooling import behind_pooler
from torture.databases import citus_servers, execute


@contextmanager
def read_only(server: str, database_url: str) -> Generator[None]:
    """New sessions may not write while the block runs, and old ones are ended; those of the block stay as they are."""
    name = urlsplit(database_url).path[1:]
    end_sessions = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608 - a name of ours
    run(server, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    run(server, end_sessions)
    yield
    run(server, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    if behind_pooler():  # which would lend out its own sessions of before for ever
        run(server, end_sessions)


def run(dsn: str, statement: str) -> None:
    asyncio.run(execute(dsn, statement))


def post(client: httpx.Client, session: str) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/turns", json={"content": "Hi"})


def test_a_database_that_refuses_to_write_is_503_not_ready_and_recovered_from(
    postgres_server: str, database_url: str
) -> None:
    with serving(settings_for(database_url)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        session = new_session(client)
        assert client.get("/readyz").status_code == 200
        with read_only(postgres_server, database_url):
            # The first may meet a connection that was ended, which is a 503 of another reason.
            answers = [post(client, session) for _ in range(6)]
            assert {answer.status_code for answer in answers} == {503}
            assert {answer.json()["code"] for answer in answers} == {"database_unavailable"}
            assert all(int(answer.headers["Retry-After"]) > 0 for answer in answers)
            assert "read-only" in answers[-1].json()["detail"]
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["database"]) == (503, "read_only")
            assert client.get(f"/v1/sessions/{session}").status_code == 200  # what only reads goes on
            assert client.get("/healthz").status_code == 200
        # Sessions of before would refuse for ever: they are thrown away, without a word to anybody.
        assert client.get("/readyz").status_code == 200
        made = post(client, session)
        assert made.status_code == 201, made.text
        assert made.json()["turn"]["seq"] == 1
    check_nothing_is_left(postgres_server, database_url)


def test_a_window_with_messages_that_have_to_be_counted_for_the_model_is_read_where_nothing_can_be_stored(
    postgres_server: str, database_url: str
) -> None:
    with serving(settings_for(database_url)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        session = new_session(client)
        assert post(client, session).status_code == 201
        stored = client.get(f"/v1/sessions/{session}/context").json()
    own = with_database(postgres_server, urlsplit(database_url).path[1:])
    run(own, "UPDATE messages SET token_encoding = 'cl100k_base', token_estimate = token_estimate + 1")
    with read_only(postgres_server, database_url), serving(settings_for(database_url)) as url:
        read = httpx.get(f"{url}/v1/sessions/{session}/context", timeout=PATIENCE_S)
        assert (read.status_code, read.json()) == (200, stored)


def check_nothing_is_left(server: str, database_url: str) -> None:
    """The 503s wrote nothing."""
    own = with_database(server, urlsplit(database_url).path[1:])
    run(own, "DO $$ BEGIN ASSERT (SELECT count(*) FROM turns) = 1; END $$")


@pytest.mark.skipif(citus_servers() is not None, reason="distributed tables have no triggers")
@pytest.mark.parametrize(
    ("error", "detail"),
    [
        ("53100", "no disk, memory or connection left"),
        ("53200", "no disk, memory or connection left"),
        ("58030", "cannot be reached"),
        ("57P04", "cannot be reached"),
        ("25006", "is read-only now"),
        ("42501", "user may not do this"),
    ],
)
def test_refusals_of_the_database_are_a_503_that_says_why(
    postgres_server: str, database_url: str, error: str, detail: str
) -> None:
    """A full disk, no memory, a failing disk, a database that is being replaced, a right that is missing: as Postgres
    would say it."""
    own = with_database(postgres_server, urlsplit(database_url).path[1:])
    raises = f"BEGIN RAISE EXCEPTION 'in need' USING ERRCODE = '{error}'; END"
    with serving(settings_for(database_url)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        session = new_session(client)
        run(own, f"CREATE FUNCTION in_need() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$")
        run(own, "CREATE TRIGGER in_need BEFORE INSERT ON turns EXECUTE FUNCTION in_need()")
        answer = post(client, session)
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        assert detail in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0
        run(own, "DROP TRIGGER in_need ON turns")
        assert post(client, session).status_code == 201
