"""The command line as people meet it: real processes, a real port, a real database."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

import app
import plimsoll_sdk
from migrations.drift import with_database
from plimsoll_demo.first_session import METADATA
from tests.api.conftest import PATIENCE_S
from tests.commands.running import run_command
from tests.db.test_migrations import execute, tables
from tests.pooling import pooler_settings
from torture.databases import new_name

PLIMSOLL = [sys.executable, "-c", "from app.cli import main; main()"]
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
OURS = ("PLIMSOLL_", "CONTEXT_", "DATABASE_URL", "MODELS_FILE", "PROMETHEUS_")


def environment(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    packages = os.pathsep.join(str(Path(file).parents[1]) for file in (app.__file__, plimsoll_sdk.__file__))
    own = {"PYTHONPATH": packages, "COLUMNS": "200"}
    return kept | own | (pooler_settings() if "DATABASE_URL" in settings else {}) | settings


def plimsoll(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, in an empty folder, with these settings and no others."""
    return run_command(arguments, folder, environment(**{"XDG_DATA_HOME": str(folder)} | settings))


@contextmanager
def serving(
    folder: Path, *arguments: str, command: Sequence[str] = PLIMSOLL, **settings: str
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A running `plimsoll serve --port 0`, and what it printed up to its curl line; ended by SIGTERM."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            cwd=folder,
            env=environment(**{"XDG_DATA_HOME": str(folder)} | settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        printed = "".join(process.stdout.readline() for _ in range(3))
        assert "curl" in printed, (printed, (folder / "log").read_text())
        yield process, printed
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@contextmanager
def inherits_at_hangup(handler: signal.Handlers) -> Generator[None]:
    """What processes that are started inside do at SIGHUP unless they decide otherwise: `nohup` has it ignored, which
    may be how these tests were started."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def address(printed: str) -> str:
    found = re.search(r"listens on (http://\S+)", printed)
    assert found is not None
    return found[1]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that could not be carried out."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("plimsoll: ")
    return lines[0]


def test_serve_from_nothing_prints_a_curl_line_that_answers_a_turn(tmp_path: Path) -> None:
    """Embedded Postgres, its migration, the address, the line, and an end that leaves nothing running."""
    with serving(tmp_path) as (process, printed):
        assert httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S).status_code == 200
        curl = next(line for line in printed.splitlines() if line.startswith("curl"))
        answer = subprocess.check_output(["sh", "-c", curl], text=True, timeout=PATIENCE_S)
        assert '"object":"chat.completion"' in answer
        of_turn, demo = httpx.get(f"{address(printed)}/v1/sessions", timeout=PATIENCE_S).json()["items"]
        assert demo["metadata"] == METADATA != of_turn["metadata"]
        assert f"(data: {tmp_path / 'plimsoll'})" in printed
    assert process.returncode == 0
    assert not (tmp_path / "plimsoll" / "postgres" / "data" / "postmaster.pid").exists()
    assert not (tmp_path / "var").exists()


def test_how_libpq_connects_to_other_servers_is_not_asked_of_the_embedded_one(tmp_path: Path) -> None:
    others = {"PGSSLMODE": "verify-full", "PGSSLNEGOTIATION": "direct", "PGTARGETSESSIONATTRS": "standby"}
    with serving(tmp_path, "--workers", "2", HOME=str(tmp_path), **others) as (process, printed):
        assert httpx.get(f"{address(printed)}/readyz", timeout=PATIENCE_S).status_code == 200
    assert process.returncode == 0


def test_a_log_on_a_full_disk_costs_no_connection(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with (
        serving(tmp_path, DATABASE_URL=database_url) as (_, printed),
        closing(HTTPConnection(address(printed).removeprefix("http://"), timeout=PATIENCE_S)) as one_connection,
    ):
        for _ in range(3):
            one_connection.request("GET", "/v1/models")
            with one_connection.getresponse() as answer:
                assert (answer.status, answer.read()[:1]) == (200, b"{")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without a full disk to write to")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_welcome_that_cannot_be_printed_ends_no_service(tmp_path: Path, database_url: str, workers: str) -> None:
    host = "127.0.0.3"  # where no other test takes the port that was free
    with socket.socket() as taken:
        taken.bind((host, 0))
        port = taken.getsockname()[1]
    with open("/dev/full", "w") as full, (tmp_path / "log").open("w") as log:  # noqa: PTH123
        process = subprocess.Popen(
            [*PLIMSOLL, "serve", "--host", host, "--port", str(port), "--workers", workers],
            cwd=tmp_path,
            env=environment(DATABASE_URL=database_url, XDG_DATA_HOME=str(tmp_path)),
            stdout=full,
            stderr=log,
        )
    try:
        answer = None
        while answer is None:
            assert process.poll() is None, (tmp_path / "log").read_text()
            with suppress(httpx.ConnectError):  # it does not listen yet
                answer = httpx.get(f"http://{host}:{port}/readyz", timeout=PATIENCE_S)
            time.sleep(0.05)
        assert answer.status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_data_of_an_earlier_version_below_the_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "var" / "postgres").mkdir(parents=True, mode=0o700)
    with serving(tmp_path, PLIMSOLL_DEMO="false") as (_, printed):
        assert f"(data: {tmp_path / 'var'})" in printed
        assert httpx.get(f"{address(printed)}/v1/sessions", timeout=PATIENCE_S).json()["items"] == []
    assert (tmp_path / "var" / "postgres" / "data").is_dir()
    assert not (tmp_path / "plimsoll").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP], ids=lambda sent: sent.name)
def test_ctrl_c_in_the_terminal_and_closing_it_drain_and_then_stop_the_database(
    tmp_path: Path, database_url: str, sent: signal.Signals, workers: str
) -> None:
    settings = {"DATABASE_URL": database_url, "PLIMSOLL_WORKERS": workers}
    with inherits_at_hangup(signal.SIG_DFL), serving(tmp_path, **settings) as (process, printed):
        assert httpx.get(address(printed) + "/healthz", timeout=PATIENCE_S).status_code == 200
        process.send_signal(sent)
        process.wait(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_under_nohup_a_closed_terminal_changes_nothing(tmp_path: Path, database_url: str, workers: str) -> None:
    settings = {"DATABASE_URL": database_url, "PLIMSOLL_WORKERS": workers}
    with inherits_at_hangup(signal.SIG_IGN), serving(tmp_path, **settings) as (process, printed):
        before = _workers_of(process)
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert _workers_of(process) == before
        assert httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S).status_code == 200
    assert process.returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_at_sigterm_balancers_know_at_once_and_requests_are_served_until_the_delay_is_over(
    tmp_path: Path, database_url: str, workers: str
) -> None:
    settings = {"DATABASE_URL": database_url, "PLIMSOLL_SHUTDOWN_DELAY_S": "8"}
    with serving(tmp_path, "--workers", workers, **settings) as (process, printed):
        url = address(printed)
        assert httpx.get(url + "/readyz", timeout=PATIENCE_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 6  # several workers hear of it from the process that started them
        while (ready := httpx.get(url + "/readyz", timeout=PATIENCE_S)).status_code == 200:
            assert time.monotonic() < deadline
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert httpx.post(url + "/v1/sessions", json={}, timeout=PATIENCE_S).status_code == 201
        assert process.wait(timeout=PATIENCE_S) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("from_terminal", [False, True])
def test_several_workers_hear_of_one_signal_at_once(tmp_path: Path, database_url: str, *, from_terminal: bool) -> None:
    """Also of a Ctrl-C, which the terminal sends to each of them besides. Nobody looks for a signal within an hour."""
    settings = {"DATABASE_URL": database_url, "PLIMSOLL_SHUTDOWN_DELAY_S": "2"}
    seldom = "import app.serving; app.serving._Workers.check_s = 3600; from app.cli import main; main()"
    command = [sys.executable, "-c", seldom]
    with serving(tmp_path, "--workers", "2", command=command, **settings) as (process, printed):
        sent_at = time.monotonic()
        for pid in _workers_of(process) if from_terminal else ():
            os.kill(pid, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        while httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S).status_code == 200:
            assert process.poll() is None
        assert process.wait(timeout=PATIENCE_S) == 0
        assert time.monotonic() - sent_at >= 2


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_what_waits_for_the_delay(tmp_path: Path, database_url: str, workers: str) -> None:
    settings = {"DATABASE_URL": database_url, "PLIMSOLL_SHUTDOWN_DELAY_S": "3600"}
    with serving(tmp_path, "--workers", workers, **settings) as (process, _):
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)  # one that comes before another was handled is lost
            time.sleep(1)
        assert process.poll() is not None


def test_several_workers_share_one_address_one_database_and_their_metrics(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as (process, printed):
        with httpx.Client(base_url=address(printed), timeout=PATIENCE_S) as client:
            for _ in range(4):
                session = client.post("/v1/sessions", json={}).json()["id"]
                made = client.post(f"/v1/sessions/{session}/turns", json={"content": "hello"})
                assert made.status_code == 201
        metrics = [httpx.get(address(printed) + "/metrics", timeout=PATIENCE_S).text for _ in range(4)]
        folders = list((tmp_path / "plimsoll" / "metrics").iterdir())
        assert [len(list(folder.glob("*.db"))) > 0 for folder in folders] == [True]
    assert [re.findall(r"^prompt_tokens_per_turn_count (\S+)", text, re.MULTILINE) for text in metrics] == [["4.0"]] * 4
    assert process.returncode == 0
    assert list((tmp_path / "plimsoll" / "metrics").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="others have one loopback address only")
def test_the_same_port_at_another_address_has_metrics_of_its_own(tmp_path: Path, database_url: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    shared = {"DATABASE_URL": database_url, "PLIMSOLL_DATA_DIR": str(tmp_path / "data")}
    with serving(first, "--workers", "2", **shared) as (_, printed):
        with httpx.Client(base_url=address(printed), timeout=PATIENCE_S) as client:
            session = client.post("/v1/sessions", json={}).json()["id"]
            assert client.post(f"/v1/sessions/{session}/turns", json={"content": "hello"}).status_code == 201
        again = ("--workers", "2", "--host", "127.0.0.2", "--port", str(httpx.URL(address(printed)).port))
        with serving(second, *again, **shared) as (_, other):
            counts = [
                httpx.get(f"{each}/metrics", timeout=PATIENCE_S).text for each in (address(printed), address(other))
            ]
            found = [re.findall(r"^prompt_tokens_per_turn_count (\S+)", text, re.MULTILINE) for text in counts]
            assert found == [["1.0"], ["0.0"]]


def test_workers_end_when_the_process_that_started_them_was_killed(tmp_path: Path, database_url: str) -> None:
    with serving(tmp_path, "--workers", "2", DATABASE_URL=database_url) as (process, printed):
        port = httpx.URL(address(printed)).port
        assert port is not None
        assert httpx.get(address(printed) + "/healthz", timeout=PATIENCE_S).status_code == 200
        process.kill()
        deadline = time.monotonic() + PATIENCE_S
        while _answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)


_MAIN = 'default = "main"\n[models.main]\nprovider = "offline"\nmodel = "offline"\n'


def test_a_worker_that_is_replaced_has_the_catalogue_of_the_start(tmp_path: Path, database_url: str) -> None:
    catalogue = tmp_path / "models.toml"
    catalogue.write_text(_MAIN)
    settings = {"DATABASE_URL": database_url, "MODELS_FILE": "models.toml"}
    with serving(tmp_path, "--workers", "2", **settings) as (process, printed):
        for changed in ("default = ", _MAIN.replace("main", "other"), None):
            catalogue.unlink()
            if changed is not None:
                catalogue.write_text(changed)
            ended = _workers_of(process)
            for worker in ended:
                os.kill(worker, signal.SIGKILL)
            models = httpx.get(address(printed) + "/v1/models", timeout=PATIENCE_S).json()
            assert [model["id"] for model in models["data"]] == ["main"], changed
            assert not set(ended) & set(_workers_of(process))
    assert process.returncode == 0


def test_a_worker_that_cannot_be_replaced_ends_all_with_an_error(tmp_path: Path, database_url: str) -> None:
    with serving(tmp_path, "--workers", "2", DATABASE_URL=database_url) as (process, _):
        shutil.rmtree(tmp_path / "plimsoll" / "metrics")
        os.kill(_workers_of(process)[0], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while "Application startup failed" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline, "it was not replaced"
            time.sleep(0.05)
        assert process.wait(timeout=25) == 2  # sooner than a worker's silence would be noticed
    assert "plimsoll: the application did not start" in (tmp_path / "log").read_text()


def test_while_turns_end_after_sigterm_connections_are_refused_and_do_not_wait(
    tmp_path: Path, database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "models.toml").write_text(
            'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\n'
            f'base_url = "http://127.0.0.1:{silent.getsockname()[1]}/v1"\n'
        )
        settings = {"DATABASE_URL": database_url, "MODELS_FILE": "models.toml", "PLIMSOLL_DRAIN_S": str(PATIENCE_S)}
        with serving(tmp_path, "--workers", "2", **settings) as (process, printed):
            session = httpx.post(address(printed) + "/v1/sessions", json={}, timeout=PATIENCE_S).json()["id"]
            turns, body = f"{address(printed)}/v1/sessions/{session}/turns", {"content": "hello", "stream": True}
            with httpx.stream("POST", turns, json=body, timeout=PATIENCE_S) as stream:
                assert next(stream.iter_lines()) == "event: turn.created"
            port = httpx.URL(address(printed)).port
            assert port is not None
            process.send_signal(signal.SIGTERM)
            while _answers(port):
                time.sleep(0.01)
            assert _workers_of(process)  # the turn still runs
            silent.close()
            assert process.wait(timeout=PATIENCE_S) == 0


def _workers_of(process: subprocess.Popen[str]) -> list[int]:
    command = ["pgrep", "-f", "-P", str(process.pid), "spawn_main"]
    return list(map(int, subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()))


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_given_database_is_not_migrated_by_serve_and_readyz_says_so(tmp_path: Path, empty_database_url: str) -> None:
    with serving(tmp_path, DATABASE_URL=empty_database_url) as (_, printed):
        answer = httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["migrations"]) == (503, "empty")
        assert plimsoll(tmp_path, "migrate", DATABASE_URL=empty_database_url).returncode == 0
        assert httpx.get(address(printed) + "/readyz", timeout=PATIENCE_S).status_code == 200
    assert "/readyz stays 503 until `plimsoll migrate`" in (tmp_path / "log").read_text()
    assert not (tmp_path / "plimsoll").exists()


def test_keys_are_made_listed_and_revoked_and_the_secret_is_shown_once(tmp_path: Path, database_url: str) -> None:
    made = plimsoll(tmp_path, "keys", "create", "--tenant", "acme", "--name", "laptop", DATABASE_URL=database_url)
    secret = made.stdout.strip()
    assert secret.startswith("plk_")
    again = plimsoll(
        tmp_path, "keys", "create", "--tenant", "acme", "--name", "b", "--if-none", DATABASE_URL=database_url
    )
    assert (again.returncode, again.stdout) == (0, "")
    unset = ("keys", "create", "--tenant", "acme", "--name", "c", "--secret-env", "NOT_SET")
    assert "--secret-env names is not set" in refusal(plimsoll(tmp_path, *unset, DATABASE_URL=database_url))
    listed = plimsoll(tmp_path, "keys", "list", DATABASE_URL=database_url).stdout
    assert "acme / laptop" in listed
    assert secret not in listed
    with serving(tmp_path, DATABASE_URL=database_url, PLIMSOLL_API_KEY=secret) as (_, printed):
        curl = next(line for line in printed.splitlines() if line.startswith("curl"))
        answer = subprocess.check_output(["sh", "-c", curl], text=True, env=environment(PLIMSOLL_API_KEY=secret))
        assert '"object":"chat.completion"' in answer
    key_id = listed.splitlines()[1].split()[0]
    assert plimsoll(tmp_path, "keys", "revoke", key_id, DATABASE_URL=database_url).stdout == "Revoked: laptop\n"
    assert "no such key" in refusal(plimsoll(tmp_path, "keys", "revoke", UNKNOWN_ID, DATABASE_URL=database_url))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without a full disk to write to")
def test_what_cannot_be_printed_is_one_line_and_a_key_whose_secret_nobody_got_is_not_made(
    tmp_path: Path, database_url: str
) -> None:
    create = ("keys", "create", "--tenant", "acme", "--name", "lost")
    closed_end, closed_pipe = os.pipe()
    os.close(closed_end)
    with open("/dev/full", "w") as full, os.fdopen(closed_pipe, "w") as closed:  # noqa: PTH123
        for arguments, where in ((("--version",), full), (("keys", "list"), full), (create, full), (create, closed)):
            done = subprocess.run(
                [*PLIMSOLL, *arguments],
                cwd=tmp_path,
                env=environment(DATABASE_URL=database_url),
                stdout=where,
                stderr=subprocess.PIPE,
                text=True,
                timeout=300,
                check=False,
            )
            reason = "Broken pipe" if where is closed else "No space left on device"
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert re.fullmatch(rf"plimsoll: .*{reason}\n", done.stderr)
    without = shlex.join([*PLIMSOLL, *create]) + " >&-"
    done = subprocess.run(
        ["sh", "-c", without],
        cwd=tmp_path,
        env=environment(DATABASE_URL=database_url),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, []), done.stderr
    assert "lost" not in plimsoll(tmp_path, "keys", "list", DATABASE_URL=database_url).stdout


def test_letters_that_the_locale_lacks_are_escaped(tmp_path: Path, database_url: str) -> None:
    plimsoll(tmp_path, "limits", "set", "Zürich €", "--turns-total", "3", DATABASE_URL=database_url)
    listed = subprocess.run(
        [*PLIMSOLL, "limits", "list"],
        cwd=tmp_path,
        env=environment(DATABASE_URL=database_url, PYTHONIOENCODING="latin-1"),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert listed.stdout.decode("latin-1").endswith("  Zürich \\u20ac\n")


def test_an_address_others_reach_wants_a_key_first(tmp_path: Path, database_url: str) -> None:
    output = refusal(plimsoll(tmp_path, "serve", "--port", "0", DATABASE_URL=database_url, PLIMSOLL_HOST="0.0.0.0"))
    assert "plimsoll keys create" in output
    plimsoll(tmp_path, "keys", "create", "--tenant", "t", "--name", "n", DATABASE_URL=database_url)
    with serving(tmp_path, DATABASE_URL=database_url, PLIMSOLL_HOST="0.0.0.0") as (_, printed):
        assert httpx.get(address(printed) + "/v1/sessions", timeout=PATIENCE_S).status_code == 401


def test_a_busy_port_is_one_line_and_says_which_to_take(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        output = refusal(plimsoll(tmp_path, "serve", "--port", str(port)))
    assert f"PLIMSOLL_PORT={port + 1}" in output
    assert not (tmp_path / "plimsoll").exists()


@pytest.mark.parametrize(
    ("command", "url", "says"),
    [
        (("serve", "--port", "0"), "postgresql://someone:hunter2@127.0.0.1:1/db", "cannot be reached"),
        (("keys", "list"), "postgresql://someone:hunter2@nowhere.invalid/db", "cannot be reached"),
        (("migrate",), "postgresql://someone:hun/ter2@127.0.0.1/db", "percent-encoded"),
        (("migrate",), "mysql://someone:hunter2@127.0.0.1/db", "percent-encoded"),
        (("migrate",), "hunter2", "percent-encoded"),
    ],
)
def test_a_database_that_can_not_be_had_is_one_line_without_the_password(
    tmp_path: Path, command: tuple[str, ...], url: str, says: str
) -> None:
    output = refusal(plimsoll(tmp_path, *command, DATABASE_URL=url))
    assert says in output
    assert "hun" not in output
    assert "ter2" not in output


def test_a_database_that_is_not_there_is_named(tmp_path: Path, postgres_server: str) -> None:
    missing = with_database(postgres_server, "not_there")
    output = refusal(plimsoll(tmp_path, "serve", "--port", "0", DATABASE_URL=missing))
    assert 'database "not_there" does not exist' in output


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_does_not_store_every_text_is_refused_before_it_is_migrated(
    tmp_path: Path, postgres_server: str, encoding: str
) -> None:
    name = new_name()
    asyncio.run(
        execute(
            postgres_server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'", "SELECT"
        )
    )
    url = with_database(postgres_server, name)
    for command in (("migrate",), ("serve", "--port", "0")):
        assert f"encoding of the database is {encoding}" in refusal(plimsoll(tmp_path, *command, DATABASE_URL=url))
    assert asyncio.run(tables(url)) == set()
    asyncio.run(execute(postgres_server, f"DROP DATABASE {name}", "SELECT"))


@pytest.mark.parametrize("command", [(), ("keys", "create"), ("simulate",), ("replay",)])
def test_the_help_gives_no_value_to_a_flag(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = plimsoll(tmp_path, *command, "--help")
    assert done.returncode == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"PLIMSOLL_PORT": "many"}, "PLIMSOLL_PORT: "),
        ({"PLIMSOLL_WORKERS": "0"}, "PLIMSOLL_WORKERS: "),
        ({"CONTEXT_SUMMARY_TRIGGER_RATIO": "7"}, "CONTEXT_SUMMARY_TRIGGER_RATIO: "),
        ({"CONTEXT_SUMMARY_TRIGGER_RATIO": "0.9", "CONTEXT_PRUNE_TRIGGER_RATIO": "0.8"}, "trigger"),
        ({"MODELS_FILE": "not-there.toml"}, "MODELS_FILE not-there.toml cannot be used: it cannot be read"),
        ({"MODELS_FILE": "broken.toml"}, "MODELS_FILE broken.toml cannot be used: default: is missing; "),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    (tmp_path / "broken.toml").write_text("[models.main]\nprovider = 'somebody'\n")
    assert says in refusal(plimsoll(tmp_path, "serve", **{"PLIMSOLL_PORT": "0"} | settings))
    assert not (tmp_path / "plimsoll").exists()


def test_a_schema_of_a_later_release_is_not_migrated_and_the_other_commands_work_on_it(
    tmp_path: Path, database_url: str
) -> None:
    change = "UPDATE alembic_version SET version_num = 'later'"
    subprocess.run(
        [sys.executable, "-c", _EXECUTE, database_url, change], env=environment(), check=True, timeout=PATIENCE_S
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(tmp_path, *arguments, DATABASE_URL=database_url)

    assert "later release" in refusal(run("migrate"))
    assert run("keys", "create", "--tenant", "acme", "--name", "first").stdout.startswith("plk_")
    key_id = run("keys", "list").stdout.splitlines()[1].split()[0]
    assert run("keys", "revoke", key_id).stdout == "Revoked: first\n"
    assert "turns_total 5" in run("limits", "set", "acme", "--turns-total", "5").stdout
    assert run("windows", "list").returncode == 0
    assert "Deleted 0 sessions." in run("purge", "--older-than", "30d").stdout


_EXECUTE = """
import asyncio, asyncpg, sys
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.execute(sys.argv[2])
    await connection.close()
asyncio.run(main())
"""


def test_two_serves_on_one_data_folder_share_the_database_until_the_last_ends(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data = {"PLIMSOLL_DATA_DIR": str(tmp_path / "var")}
    with serving(other, **data) as (_, second):
        with serving(tmp_path, **data) as (_, first):
            session = httpx.post(address(first) + "/v1/sessions", json={}, timeout=PATIENCE_S).json()["id"]
        assert httpx.get(f"{address(second)}/v1/sessions/{session}", timeout=PATIENCE_S).status_code == 200


def test_limits_of_a_tenant_are_set_listed_and_cleared(tmp_path: Path, database_url: str) -> None:
    def limits(*arguments: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(tmp_path, "limits", *arguments, DATABASE_URL=database_url)

    assert limits("set", "acme").returncode == 2
    assert limits("set", "a\nb", "--turns-total", "1").returncode == 2
    done = limits("set", "acme", "--turns-per-minute", "60", "--usd-per-month", "12.5")
    assert (done.returncode, done.stdout) == (0, "acme: turns_per_minute 60, usd_per_month 12.5\n")
    listed = limits("list").stdout
    assert re.search(r"turns_per_minute +60 +0 +- +acme", listed), listed
    assert re.search(r"usd_per_month +12\.5 +0 +- +acme", listed), listed
    assert limits("clear", "acme").stdout == "acme: removed 2 limits.\n"
    assert limits("set", "acme", "--turns-total", "5").returncode == 0
    assert limits("clear", "acme").stdout == "acme: removed 1 limit.\n"
    assert "acme" not in limits("list").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("limits", "set", "a\udcff", "--turns-per-minute", "60"),
        ("limits", "clear", "a\udcff"),
        ("limits", "list", "a\udcff"),
        ("windows", "forget", "a\udcff"),
        ("purge", "--older-than", "30d", "--tenant", "a\udcff"),
        ("simulate", UNKNOWN_ID, "--tenant", "a\udcff"),
        ("simulate", UNKNOWN_ID, "--policy", "a\udcff"),
        ("simulate", UNKNOWN_ID, "--policy", '{"focus": "\udcff"}'),
        ("simulate", UNKNOWN_ID, "--model", "a\udcff"),
        ("keys", "create", "--tenant", "acme", "--name", "a\udcff"),
        ("keys", "create", "--tenant", "acme", "--name", "a", "--secret-env", "a\udcff"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused_in_words(
    tmp_path: Path, database_url: str, arguments: tuple[str, ...]
) -> None:
    done = plimsoll(tmp_path, *arguments, DATABASE_URL=database_url)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_windows_that_providers_stated_are_listed_and_forgotten(tmp_path: Path, database_url: str) -> None:
    def windows(*arguments: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(tmp_path, "windows", *arguments, DATABASE_URL=database_url)

    stated = """
        INSERT INTO learned_windows (model_alias, tenant_id, context_window, statements, last_turn_id, expires_at)
        VALUES ('main', 'acme', 4096, 3, gen_random_uuid(), now() + interval '7 days'),
            ('main', 'other', 2048, 1, gen_random_uuid(), now() + interval '7 days'),
            ('mini', 'acme', 8192, 1, gen_random_uuid(), now() + interval '7 days'),
            ('mini', 'other', 8192, 1, gen_random_uuid(), now() + interval '7 days'),
            ('mini', 'third', 8192, 1, gen_random_uuid(), now() - interval '1 second')
    """
    asyncio.run(execute(database_url, stated))
    listed = [line.split() for line in windows("list").stdout.splitlines()[1:]]
    assert [(line[:3], line[-3], line[-1]) for line in listed] == [
        (["4096", "3", "tenant"], "main", "acme"),
        (["2048", "1", "nobody"], "main", "other"),
        (["8192", "1", "all"], "mini", "acme"),
        (["8192", "1", "all"], "mini", "other"),
    ]
    assert windows("forget", "main").stdout == "main: deleted 2 stated windows.\n"
    assert windows("forget", "nobody").stdout == "nobody: deleted 0 stated windows.\n"
    assert "main" not in windows("list").stdout
    assert windows("forget").returncode == 2
