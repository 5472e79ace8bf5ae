"""`plimsoll serve` with the embedded Postgres, which is killed under it: real processes, one worker and several."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import PATIENCE_S
from tests.commands.test_cli import address, serving

_WITHIN_S = 60.0  # less than a second on an idle machine; this one may be busy


def kill_postmaster(folder: Path) -> None:
    pid_file = folder / "plimsoll" / "postgres" / "data" / "postmaster.pid"
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def restarts(url: str) -> str:
    """As whichever worker takes a new connection says it."""
    found = re.search(
        r"^embedded_database_restarts_total (\S+)", httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text, re.MULTILINE
    )
    assert found is not None
    return found[1]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_database_is_back_with_what_was_acknowledged_and_every_worker_counts_it(
    tmp_path: Path, workers: str
) -> None:
    with serving(tmp_path, "--workers", workers) as (process, printed):
        url = address(printed)
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            session = client.post("/v1/sessions", json={}).json()["id"]
            turns = f"/v1/sessions/{session}/turns"
            assert client.post(turns, json={"content": "before"}).status_code == 201
            assert restarts(url) == "0.0"
            kill_postmaster(tmp_path)
            until(lambda: restarts(url) == "1.0")
            until(lambda: client.get("/readyz").status_code == 200)
            until(lambda: client.post(turns, json={"content": "after"}).status_code == 201)
            contents = [turn["user_input"] for turn in client.get(turns).json()["items"]]
            assert sorted(contents) == ["after", "before"]
        assert {restarts(url) for _ in range(6)} == {"1.0"}
    assert process.returncode == 0
    log = (tmp_path / "log").read_text()
    assert log.count("embedded_database_ended") == 1
    assert log.count("embedded_database_restarted") == 1
    assert "Traceback" not in log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_database_that_stays_away_ends_the_process_with_one_sentence_and_an_exit_code(
    tmp_path: Path, workers: str
) -> None:
    settings = {"PLIMSOLL_EMBEDDED_RESTART_S": "1"}
    with serving(tmp_path, "--workers", workers, **settings) as (process, printed):
        assert httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S).status_code == 200
        (tmp_path / "plimsoll" / "postgres" / "data" / "PG_VERSION").unlink()
        kill_postmaster(tmp_path)
        assert process.wait(_WITHIN_S) == 2
    log = (tmp_path / "log").read_text()
    last = log.splitlines()[-1]
    assert last.startswith("plimsoll: The embedded Postgres ended and could not be started again, ")
    assert "PG_VERSION" in last
    assert "Traceback" not in log
