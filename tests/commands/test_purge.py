"""`plimsoll purge` as an operator meets it: a process, a database, figures."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from app.commands.administration import read_age
from app.domain.errors import OperatorError
from tests.api.conftest import new_session
from tests.commands.test_cli import plimsoll, refusal
from tests.db.test_migrations import execute


def test_it_counts_then_erases_and_says_what(tmp_path: Path, database_url: str, client: httpx.Client) -> None:
    def purge(*options: str) -> tuple[str, dict[str, str]]:
        done = plimsoll(tmp_path, "purge", "--older-than", "30d", *options, DATABASE_URL=database_url)
        assert (done.returncode, done.stderr) == (0, ""), "a progress bar where nobody looks"
        output, *rows = done.stdout.splitlines()
        return output, {name: count for count, name in (row.split() for row in rows)}

    ids = [new_session(client) for _ in range(3)]
    for session in ids:
        assert client.post(f"/v1/sessions/{session}/turns", json={"content": "hello"}).status_code == 201
    older = "UPDATE sessions SET updated_at = now() - interval '31 days'"
    asyncio.run(execute(database_url, older))
    assert client.patch(f"/v1/sessions/{ids[2]}", json={"room_goal": "Stay."}).status_code == 200
    output, would = purge("--dry-run")
    assert output == "Would delete 2 sessions."
    assert purge("--tenant", "nobody") == ("Deleted 0 sessions.", {})
    output, did = purge()
    assert (output, did) == ("Deleted 2 sessions.", would)
    assert (did["sessions"], did["turns"], did["messages"]) == ("2", "2", "4")
    found = [client.get(f"/v1/sessions/{session}").status_code for session in ids]
    assert found == [404, 404, 200], "the running service does not see it"


def test_an_invalid_age_is_refused_in_one_line(tmp_path: Path, database_url: str) -> None:
    for age, output in (("30", "for example"), ("2h", "24 hours")):
        line = refusal(plimsoll(tmp_path, "purge", f"--older-than={age}", DATABASE_URL=database_url))
        assert output in line


def test_an_age_is_a_number_of_hours_days_or_weeks() -> None:
    assert [read_age(text) for text in ("36h", "30d", "8w")] == [
        timedelta(hours=36),
        timedelta(days=30),
        timedelta(weeks=8),
    ]
    for text in ("", "30", "1m", "1.5d", "999999d", "30 d", "d30"):
        with pytest.raises(OperatorError):
            read_age(text)
