"""The promises of docs/decisions/0002-embedded-postgres.md, each on a server of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from app.db import embedded, embedded_server
from tests.db.servers import APPLICATION, finish, first_line, holder, postmaster_id, query, runs

DURABILITY = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "data_checksums": "on"}


def test_it_starts_from_nothing_in_seconds_with_durability_on(tmp_path: Path) -> None:
    began_s = time.monotonic()
    server = embedded.start(tmp_path / "not" / "there" / "yet")
    took_s = time.monotonic() - began_s
    try:
        assert {name: query(server.dsn, f"SHOW {name}") for name in DURABILITY} == DURABILITY
        assert query(server.dsn, "SELECT current_database()") == "plimsoll"
    finally:
        server.stop()
    assert took_s < 30  # 0.7 s on an idle machine; this one may be busy
    assert not runs(tmp_path / "not" / "there" / "yet")


async def test_its_dsn_suits_sqlalchemy_too(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    engine = create_async_engine(server.dsn.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT current_database()")) == "plimsoll"
    finally:
        await engine.dispose()
        server.stop()


def test_it_listens_on_no_network_address_and_only_to_its_owner(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    try:
        assert query(server.dsn, "SHOW listen_addresses") == ""
        assert (data_dir / "postgres").stat().st_mode & 0o777 == 0o700
    finally:
        server.stop()


def test_the_log_of_pages_that_first_change_after_a_checkpoint_is_a_fraction_of_them(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    try:
        rows = "SELECT repeat('words of a message ', 40) FROM generate_series(1, 1000)"
        before = query(
            server.dsn, f"CREATE TABLE texts AS {rows}", "CHECKPOINT", "SELECT pg_current_wal_insert_lsn()::text"
        )
        logged_bytes = query(
            server.dsn, "DELETE FROM texts", f"SELECT (pg_current_wal_insert_lsn() - '{before}')::bigint"
        )
        assert logged_bytes < query(server.dsn, "SELECT pg_relation_size('texts')") / 4
    finally:
        server.stop()


def test_a_second_start_joins_and_the_last_one_out_stops_it(data_dir: Path) -> None:
    first, second = embedded.start(data_dir), embedded.start(data_dir)
    postmaster = postmaster_id(data_dir)
    first.stop()
    first.stop()
    assert query(second.dsn, "SELECT 1") == 1
    assert postmaster_id(data_dir) == postmaster
    second.stop()
    assert not runs(data_dir)


def test_two_processes_that_start_at_once_both_succeed_from_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    both = [holder(folder), holder(folder)]
    dsns = [first_line(process) for process in both]
    assert [query(dsn, "SELECT 1") for dsn in dsns] == [1, 1]
    assert [finish(process) for process in both] == [0, 0]
    assert not runs(folder)


def test_a_holder_that_was_killed_counts_as_gone(data_dir: Path) -> None:
    killed = holder(data_dir)
    dsn = first_line(killed)
    killed.kill()
    killed.communicate()
    assert query(dsn, "SELECT 1") == 1  # the server outlives it
    server = embedded.start(data_dir)
    server.stop()
    assert not runs(data_dir)


def test_committed_data_survive_a_postmaster_that_was_killed(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    query(first.dsn, "CREATE TABLE kept AS SELECT 7 AS figure", "SELECT 1")
    os.kill(postmaster_id(data_dir), signal.SIGKILL)
    second = embedded.start(data_dir)
    try:
        assert query(second.dsn, "SELECT figure FROM kept") == 7
        assert "was not properly shut down" in (data_dir / "postgres" / "server.log").read_text()
    finally:
        first.stop()
        second.stop()


def test_a_pid_file_that_names_a_living_stranger_is_no_obstacle(data_dir: Path) -> None:
    pid_file = data_dir / "postgres" / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getppid()}\n{pid_file.parent}\n0\n5432\n\n\n0 0\nready\n")
    (data_dir / "postgres" / "run" / ".s.PGSQL.5432.lock").write_text(f"{os.getppid()}\n")
    server = embedded.start(data_dir)
    try:
        assert query(server.dsn, "SELECT 1") == 1
        assert postmaster_id(data_dir) != os.getppid()
    finally:
        server.stop()


def test_half_an_initdb_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "postgres" / "data.new" / "base").mkdir(parents=True)
    (tmp_path / "postgres").chmod(0o700)
    server = embedded.start(tmp_path)
    assert query(server.dsn, "SELECT 1") == 1
    server.stop()


def test_ctrl_c_in_the_terminal_does_not_reach_it(data_dir: Path) -> None:
    server = embedded.start(data_dir)
    try:
        assert os.getsid(postmaster_id(data_dir)) != os.getsid(0)
    finally:
        server.stop()


def test_a_folder_deeper_than_a_socket_address_works_and_leaves_no_link_behind(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary) if len(str(temporary)) < 70 else None)
    deep = tmp_path / ("deep" * 30) / "var"
    deep.parent.mkdir()
    data_dir.rename(deep)
    first, second = embedded.start(deep), embedded.start(deep)
    try:
        assert [query(server.dsn, "SELECT 1") for server in (first, second)] == [1, 1]
    finally:
        first.stop()
        second.stop()
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_that_is_as_deep_is_no_obstacle(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, deep = tmp_path / ("t" * 100), tmp_path / ("deep" * 30)
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    data_dir.rename(deep)
    server = embedded.start(deep)
    try:
        assert query(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()
    assert list(temporary.iterdir()) == []


def test_a_cause_that_prevents_the_start_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(embedded.EmbeddedPostgresError, match="cannot use"):
        embedded.start(tmp_path / "file")


def test_why_it_ended_is_reported_though_it_then_logs_that_it_ended(data_dir: Path) -> None:
    embedded.start(data_dir).stop()  # so that the log is of two starts
    for segment in (data_dir / "postgres" / "data" / "pg_wal").glob("0*"):
        segment.unlink()
    with pytest.raises(embedded.EmbeddedPostgresError, match=r"ended at once: .*could not locate a valid checkpoint"):
        embedded.start(data_dir)


def test_data_of_another_version_is_left_alone(data_dir: Path) -> None:
    version = data_dir / "postgres" / "data" / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(embedded.EmbeddedPostgresError, match="made by PostgreSQL 16"):
        embedded.start(data_dir)


CONTAINER = """
import os, subprocess, sys
open("/proc/sys/user/max_user_namespaces", "w").write("0")
from pathlib import Path
from app.db import embedded
server = embedded.start(Path(sys.argv[1]))
owner = (Path(sys.argv[1]) / "postgres" / "data").stat().st_uid
postmaster = (Path(sys.argv[1]) / "postgres" / "data" / "postmaster.pid").read_text().split()[0]
effective = next(line for line in open(f"/proc/{postmaster}/status") if line.startswith("CapEff"))
server.stop()
print(owner, int(effective.split()[1], 16))
"""
CAP_DAC_OVERRIDE = 1 << 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or sys.platform != "linux", reason="needs Linux and root")
@pytest.mark.parametrize(("mode", "capabilities"), [(0o755, 0), (0o700, CAP_DAC_OVERRIDE)])
def test_as_root_where_no_user_namespace_is_allowed_it_runs_as_an_account(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, mode: int, capabilities: int
) -> None:
    """As in a plain container: a namespace of its own, with all user ids, in which no further one may be made."""
    # pytest's temporary folders are closed to others, as a home with mode 0700 is.
    folder = tmp_path / "var"
    if mode == 0o755:
        if not _open_to_all(embedded_server.find_binaries()):
            pytest.skip("the checkout itself is closed to other accounts")
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o755)
    try:
        done = _in_a_container([sys.executable, "-c", CONTAINER, str(folder)])
        assert done.returncode == 0, done.stderr
        owner, held = (int(word) for word in done.stdout.split())
        assert owner != 0
        assert held == capabilities
    finally:
        shutil.rmtree(folder)


def _open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _in_a_container(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs it as root of a user namespace into which the first 65,536 ids are mapped."""
    enter = textwrap.dedent("""
        import ctypes, os, sys
        ctypes.CDLL(None).unshare(0x10000000)
        print(flush=True)
        sys.stdin.readline()
        os.setgid(0)
        os.setuid(0)
        os.execv(sys.argv[1], sys.argv[1:])
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", enter, *command],
        env=os.environ | {"PYTHONPATH": str(APPLICATION)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text("0 0 65536")
    except OSError:
        process.kill()
        process.communicate()
        pytest.skip("no user namespace can be made here, so none can be laid out as a container")
    stdout, stderr = process.communicate("\n", timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
