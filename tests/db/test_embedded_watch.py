"""An embedded Postgres that ends unasked is started again: by one, once, on its own data, or not for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from app.db import embedded
from app.db.embedded import kept_running
from app.db.embedded_server import LARGEST_LOG_BYTES
from tests.db.servers import finish, first_line, holder, postmaster_id, query, runs, wait_until_stopped

_WITHIN_S = 40.0  # some tenths of a second on an idle machine; this one may be busy


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def kept(folder: Path, give_up_after_s: float = 60.0) -> Generator[embedded.EmbeddedPostgres]:
    server = embedded.start(folder)
    try:
        with kept_running(server, give_up_after_s=give_up_after_s):
            yield server
    finally:
        server.stop()


def test_a_postmaster_that_was_killed_is_started_again_on_its_data_and_counted(data_dir: Path) -> None:
    with kept(data_dir) as server:
        query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS figure", "SELECT 1")
        for times in (1, 2, 3):
            killed = postmaster_id(data_dir)
            os.kill(killed, signal.SIGKILL)
            until(lambda times=times: embedded.count_restarts(server.dsn) == times)
            assert query(server.dsn, "SELECT figure FROM kept") == 7
            assert postmaster_id(data_dir) != killed
    assert not runs(data_dir)


def test_no_restarts_of_another_database_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "restarts").write_text("a file of someone else\n")
    (tmp_path / "postgresql").mkdir()
    monkeypatch.chdir(tmp_path / "postgresql")
    assert embedded.count_restarts("postgresql://someone@127.0.0.1:5432/db") == 0
    assert embedded.count_restarts(f"postgresql:///db?host={tmp_path}/postgresql") == 0


def test_the_log_of_a_running_server_stays_small_and_goes_on(data_dir: Path) -> None:
    """Each post to a session that runs a turn adds two kilobytes to it: a client could fill the disk."""
    log = data_dir / "postgres" / "server.log"
    with kept(data_dir) as server:
        with log.open("ab") as earlier:
            earlier.truncate(LARGEST_LOG_BYTES + 1)
        until(lambda: log.stat().st_size < LARGEST_LOG_BYTES)
        _ask(server.dsn, "SELECT refused")
        assert b'column "refused" does not exist' in log.read_bytes()
        assert log.stat().st_size < 10_000


def test_a_backend_that_outlives_its_postmaster_is_ended(data_dir: Path) -> None:
    """One that computes never asks whether its postmaster lives, and no new server may start beside it."""
    forever = "DO $$ BEGIN LOOP END LOOP; END $$"
    with kept(data_dir) as server:
        busy = threading.Thread(target=_ask, args=(server.dsn, forever))
        busy.start()
        until(lambda: query(server.dsn, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'") == 1)
        os.kill(postmaster_id(data_dir), signal.SIGKILL)
        assert runs(data_dir)  # by the orphan
        until(lambda: embedded.count_restarts(server.dsn) == 1)
        busy.join(_WITHIN_S)
        assert not busy.is_alive()
        assert query(server.dsn, "SELECT 1") == 1


def _ask(dsn: str, statement: str) -> None:
    with contextlib.suppress(Exception):  # its connection is cut
        query(dsn, statement)


def test_of_several_processes_one_starts_it_again_and_all_have_it(data_dir: Path) -> None:
    keeping = "import contextlib; from app.db.embedded import kept_running\n"
    then = f"{keeping}        with kept_running(server, give_up_after_s=60): input()"
    others = [holder(data_dir, then), holder(data_dir, then)]
    dsns = [first_line(other) for other in others]
    with kept(data_dir) as server:
        os.kill(postmaster_id(data_dir), signal.SIGKILL)
        joined = holder(data_dir)  # a command that begins in the middle of it
        dsns.append(first_line(joined))
        assert [query(dsn, "SELECT 1") for dsn in (*dsns, server.dsn)] == [1, 1, 1, 1]
        assert embedded.count_restarts(server.dsn) <= 1  # none where the command was faster
        assert [finish(other) for other in (*others, joined)] == [0, 0, 0]
        assert query(server.dsn, "SELECT 1") == 1
    assert not runs(data_dir)


def test_a_folder_that_is_away_for_a_moment_is_waited_for_and_never_made_anew(data_dir: Path) -> None:
    cluster, away = data_dir / "postgres" / "data", data_dir / "postgres" / "away"
    with kept(data_dir) as server:
        query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS figure", "SELECT 1")
        cluster.rename(away)
        os.kill(int((away / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        wait_until_stopped(data_dir)
        with pytest.raises(embedded.EmbeddedPostgresError, match="cannot use"):
            server.start_again()
        assert not cluster.exists()
        away.rename(cluster)
        until(lambda: embedded.count_restarts(server.dsn) == 1)
        assert query(server.dsn, "SELECT figure FROM kept") == 7


def test_one_that_can_not_be_started_is_given_up_and_the_process_ends(data_dir: Path) -> None:
    notified = threading.Event()

    def break_it() -> None:
        with kept(data_dir, give_up_after_s=1.0):
            (data_dir / "postgres" / "data" / "PG_VERSION").unlink()
            os.kill(postmaster_id(data_dir), signal.SIGKILL)
            assert notified.wait(_WITHIN_S)

    before = signal.signal(signal.SIGTERM, lambda _number, _frame: notified.set())
    try:
        with pytest.raises(embedded.EmbeddedPostgresError, match=r"could not be started again, \d+ tries in .* s: "):
            break_it()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not runs(data_dir)
