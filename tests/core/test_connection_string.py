"""`DATABASE_URL` in the forms of other programs and of providers of Postgres."""

from __future__ import annotations

import ssl
from urllib.parse import unquote

import httpx
import pytest

from app.core.connection_string import for_driver, servers_of
from tests.api.conftest import serving, settings_for

AT = "://user:p%40ss@db.example:5432/app"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (f"postgresql{AT}", f"postgresql{AT}"),
        (f"postgres{AT}?sslmode=require", f"postgres{AT}?sslmode=require"),
        (f"postgresql+asyncpg{AT}?ssl=require", f"postgresql{AT}?sslmode=require"),
        (f"postgres+psycopg2{AT}", f"postgresql{AT}"),
        (f"postgresql{AT}?connect_timeout=10&keepalives=1", f"postgresql{AT}"),
        (f"postgresql{AT}?channel_binding=prefer&application_name=a", f"postgresql{AT}?application_name=a"),
        (f"postgresql{AT}?sslmode=verify-full&sslrootcert=/ca", f"postgresql{AT}?sslmode=verify-full&sslrootcert=/ca"),
        ("postgresql://a,b/app?target_session_attrs=any", "postgresql://a,b/app?target_session_attrs=any"),
        ("postgresql://u@/app?host=%2Frun%2Fx&port=5", "postgresql://u@/app?host=%2Frun%2Fx&port=5"),
        ("host=db.example dbname=app", "host=db.example dbname=app"),  # no URL: the start says what it has to be
    ],
)
def test_what_only_other_programs_know_is_left_out_and_all_else_stays_as_it_is(given: str, read: str) -> None:
    assert for_driver(given) == read


def test_the_certificates_of_the_system_are_a_file_of_it() -> None:
    trusted = ssl.get_default_verify_paths().cafile or "system"
    assert for_driver(f"postgresql{AT}?sslrootcert=system") == f"postgresql{AT}?sslrootcert={trusted}"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [("channel_binding=require", "no channel binding"), ("sslmode=no-verify", "one of"), ("ssl=true", "one of")],
)
def test_what_the_driver_cannot_do_is_refused_without_quoting_the_password(query: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        for_driver(f"postgresql{AT}?{query}")
    assert "p%40ss" not in str(refused.value)


def test_a_service_connects_with_the_string_of_an_sqlalchemy_program(database_url: str) -> None:
    url = database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    url += ("&" if "?" in url else "?") + "ssl=prefer&connect_timeout=10&gssencmode=disable"
    with serving(settings_for(url)) as address:
        assert httpx.get(f"{address}/readyz").status_code == 200
        assert httpx.post(f"{address}/v1/sessions", json={}).status_code == 201


@pytest.mark.parametrize(
    ("listed", "each"),
    [
        (f"postgresql{AT}", [f"postgresql{AT}"]),
        ("host=a,b dbname=app", ["host=a,b dbname=app"]),
        ("postgresql://u:p%40s@a:1,[::1]/app?ssl=on", ["postgresql://u:p%40s@a:1/app?ssl=on", "postgresql://u:p%40s@[::1]/app?ssl=on"]),
        ("postgresql://u@/app?host=/x/a,b&port=5", ["postgresql://u@/app?host=/x/a&port=5", "postgresql://u@/app?host=b&port=5"]),
        ("postgresql://u@/app?host=a,b&port=1,2", ["postgresql://u@/app?host=a&port=1", "postgresql://u@/app?host=b&port=2"]),
        ("postgresql://u@/app?host=a,b", ["postgresql://u@/app?host=a", "postgresql://u@/app?host=b"]),
        ("postgresql://u@/app?host=a,b,c&port=1,2", ["postgresql://u@/app?host=a,b,c&port=1,2"]),
        ("postgresql://a,b/app?target_session_attrs=prefer-standby", ["postgresql://a,b/app?target_session_attrs=prefer-standby"]),
    ],
)  # fmt: skip
def test_a_string_of_several_servers_is_one_for_each(listed: str, each: list[str]) -> None:
    assert [unquote(server) for server in servers_of(listed)] == [unquote(server) for server in each]
