"""Whatever keeps `plimsoll serve` from starting is one sentence, before anything is said to listen: real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from app.db import embedded
from app.db.migrate import upgrade
from bench.pgbouncer import find_pgbouncer
from tests.commands.test_cli import environment, refusal
from tests.pooling import pooled
from torture.databases import execute

SECRET = "hunter2"

# Importing the service takes a second, a fork of who has imported it none; what is forked is `plimsoll serve` itself.
FORKING = """
import json, os, sys
import app.cli, app.serving
"".encode("idna")  # else loaded by the first name that is looked up, by somebody who may not read it
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT, 0o600), number)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        if order["user"]:
            os.setgroups([])
            os.setgid(order["user"])
            os.setuid(order["user"])
        sys.argv = ["plimsoll", "serve"]
        status = 0
        try:
            app.cli.main()
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
NOBODY = 65534

CATALOGUE = """default = "main"

[models.main]
provider = "openai"
model = "m"
base_url = "http://127.0.0.1:9/v1"
"""

Settings: TypeAlias = dict[str, str]


class Serve:
    """Runs `plimsoll serve`, again and again."""

    def __init__(self, process: subprocess.Popen[str], outputs: Path) -> None:
        self._process = process
        self._outputs = outputs

    def refused(self, folder: Path, settings: Settings, user: int = 0) -> str:
        """The one sentence of one that does not start in this folder, with these settings."""
        out, err = self._outputs / "out", self._outputs / "err"
        for output in (out, err):
            output.unlink(missing_ok=True)
        order = {"folder": str(folder), "out": str(out), "err": str(err), "user": user} | {
            "environment": environment(**{"PLIMSOLL_PORT": "0", "XDG_DATA_HOME": str(folder)} | settings)
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert out.read_text() == ""  # so nothing was said to listen
        assert SECRET not in err.read_text()
        return refusal(subprocess.CompletedProcess("serve", status, "", err.read_text()))


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Generator[Serve]:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield Serve(process, tmp_path_factory.mktemp("outputs"))
    process.communicate()
    assert process.returncode == 0


def catalogue(text: str) -> Callable[[Path], Settings]:
    def write(folder: Path) -> Settings:
        (folder / "models.toml").write_text(text)
        return {"MODELS_FILE": "models.toml"}

    return write


def variables(**settings: str) -> Callable[[Path], Settings]:
    return lambda _: settings


def dotenv(text: bytes) -> Callable[[Path], Settings]:
    def write(folder: Path) -> Settings:
        (folder / ".env").write_bytes(text)
        return {}

    return write


def data_dir_is_a_file(folder: Path) -> Settings:
    (folder / "file").write_text("")
    return {"PLIMSOLL_DATA_DIR": str(folder / "file")}


def no_certificates(folder: Path) -> Settings:
    (folder / "models.toml").write_text(CATALOGUE.replace("http:", "https:"))
    (folder / "corporate.pem").write_text("")
    named = {"MODELS_FILE": "models.toml", "SSL_CERT_FILE": "corporate.pem"}
    return named | {"DATABASE_URL": f"postgresql://someone:{SECRET}@127.0.0.1:1/db"}


def not_text(folder: Path) -> Settings:
    (folder / "models.toml").write_bytes(b"default = '\xff'")
    return {"MODELS_FILE": "models.toml"}


@dataclass(frozen=True)
class Fault:
    """`says` are pieces of the sentence: file, line, variable, reason."""

    arranged: Callable[[Path], Settings]
    says: tuple[str, ...]


FAULTS: dict[str, Fault] = {
    "catalogue not there": Fault(variables(MODELS_FILE="absent.toml"), ("MODELS_FILE absent.toml", "No such file")),
    "catalogue is a folder": Fault(variables(MODELS_FILE="."), ("MODELS_FILE . ", "Is a directory")),
    "catalogue is not text": Fault(not_text, ("MODELS_FILE models.toml", "not UTF-8")),
    "catalogue is not TOML": Fault(catalogue("default = 'a'\n[models.a\n"), ("MODELS_FILE models.toml", "line 2")),
    "catalogue with an unknown field": Fault(
        catalogue(CATALOGUE + "\n\ncolour = 'red'\n"), ("models.main.colour: there is no such key",)
    ),
    "catalogue with a wrong type": Fault(
        catalogue(CATALOGUE + "fallbacks = [\n  'main2',\n  3,\n]\n"), ("models.main.fallbacks.1", "string")
    ),
    "catalogue without a field": Fault(
        catalogue(CATALOGUE.replace('model = "m"\n', "")), ("models.main.model: is missing",)
    ),
    "catalogue with two mistakes": Fault(
        catalogue(CATALOGUE.replace('"openai"', '"somebody"') + "timeout_s = 0\n"),
        ("models.main.provider: ", "; models.main.timeout_s: "),
    ),
    "catalogue whose default is not there": Fault(catalogue(CATALOGUE.replace('"main"', '"x"')), ("'x'",)),
    "API key that is not set": Fault(
        catalogue(CATALOGUE + "api_key_env = 'KEY_OF_NOBODY'\n"),
        ("MODELS_FILE models.toml", "models.main.api_key_env", "KEY_OF_NOBODY is not set"),
    ),
    "API key that no header can carry": Fault(
        lambda folder: catalogue(CATALOGUE + "api_key_env = 'BAD_KEY'\n")(folder) | {"BAD_KEY": f"{SECRET}\r\nX: y"},
        ("BAD_KEY holds characters",),
    ),
    "port that is no number": Fault(variables(PLIMSOLL_PORT="many"), ("PLIMSOLL_PORT: ", "integer")),
    "no worker": Fault(variables(PLIMSOLL_WORKERS="0"), ("PLIMSOLL_WORKERS: ", "greater")),
    "ratio out of range": Fault(variables(CONTEXT_PRUNE_TRIGGER_RATIO="7"), ("CONTEXT_PRUNE_TRIGGER_RATIO: ",)),
    "ratios that contradict": Fault(
        variables(CONTEXT_SUMMARY_TRIGGER_RATIO="0.9", CONTEXT_PRUNE_TRIGGER_RATIO="0.8"),
        ("CONTEXT_PRUNE_TRIGGER_RATIO: ", "0.8", "0.9"),
    ),
    "lease that ends before it is renewed": Fault(
        variables(PLIMSOLL_TURN_LEASE_S="0.0001"), ("PLIMSOLL_TURN_LEASE_S: ", "greater than or equal to 1")
    ),
    "comments without a pause": Fault(variables(PLIMSOLL_HEARTBEAT_S="1e-9"), ("PLIMSOLL_HEARTBEAT_S: ", "0.05")),
    "lease without an end": Fault(variables(PLIMSOLL_TURN_LEASE_S="inf"), ("PLIMSOLL_TURN_LEASE_S: ", "86400")),
    "pause beyond all clocks": Fault(variables(PLIMSOLL_SHUTDOWN_DELAY_S="1e300"), ("PLIMSOLL_SHUTDOWN_DELAY_S: ",)),
    "wait that Postgres would round to none": Fault(
        variables(PLIMSOLL_DB_LOCK_TIMEOUT_S="0.0004"), ("PLIMSOLL_DB_LOCK_TIMEOUT_S: ", "0.001")
    ),
    "window beyond bigint": Fault(
        variables(CONTEXT_FALLBACK_LIMIT="1" + "0" * 19), ("CONTEXT_FALLBACK_LIMIT: ", "less than or equal")
    ),
    "size beyond a double": Fault(
        variables(PLIMSOLL_MAX_BODIES_BYTES="1" + "0" * 400), ("PLIMSOLL_MAX_BODIES_BYTES: ", "less than or equal")
    ),
    "summarizer that is not there": Fault(
        variables(CONTEXT_SUMMARY_MODEL="nobody"), ("CONTEXT_SUMMARY_MODEL: ", "'nobody'", "offline")
    ),
    "embedding model that is not there": Fault(
        variables(CONTEXT_EMBEDDING_MODEL="offline"), ("CONTEXT_EMBEDDING_MODEL: ", "'offline'", "local")
    ),
    "two settings of .env": Fault(
        dotenv(b"# mine\nPLIMSOLL_TURN_LEASE_S=-1\nexport PLIMSOLL_LOG_FORMAT=hunter2\n"),
        ("PLIMSOLL_TURN_LEASE_S (.env, line 2): ", "PLIMSOLL_LOG_FORMAT (.env, line 3): "),
    ),
    "lines of .env that set nothing": Fault(
        dotenv(f"# mine\n\nDATABASE_URL: postgresql://me:{SECRET}@db\nPLIMSOLL_HOST 0.0.0.0\n".encode()),
        (".env, line 3: ", ".env, line 4: ", "NAME=value"),
    ),
    ".env that is not text": Fault(dotenv(b"PLIMSOLL_PORT=\xff\n"), (".env cannot be read", "UTF-8")),
    "folder that is not text": Fault(variables(PLIMSOLL_DATA_DIR="\udcff"), ("PLIMSOLL_DATA_DIR: ", "not UTF-8")),
    "folder of a user that is not text": Fault(
        lambda folder: {"XDG_DATA_HOME": f"{folder}/\udcff"}, ("PLIMSOLL_DATA_DIR", "not UTF-8")
    ),
    "origin with a password": Fault(
        variables(PLIMSOLL_CORS_ORIGINS=f"https://one.example, https://me:{SECRET}@two.example"),
        ("PLIMSOLL_CORS_ORIGINS: ", "entry 2"),
    ),
    "origin that is not text": Fault(variables(PLIMSOLL_CORS_ORIGINS="\udcff"), ("PLIMSOLL_CORS_ORIGINS: ", "UTF-8")),
    "allowed host that is an address of a page": Fault(
        variables(PLIMSOLL_ALLOWED_HOSTS=f"one.example, https://me:{SECRET}@two.example"),
        ("PLIMSOLL_ALLOWED_HOSTS: ", "entry 2", "chat.example.org"),
    ),
    "allowed host with a port": Fault(
        variables(PLIMSOLL_ALLOWED_HOSTS="one.example:8443"), ("PLIMSOLL_ALLOWED_HOSTS: ", "without a port")
    ),
    "allowed hosts by a pattern": Fault(
        variables(PLIMSOLL_ALLOWED_HOSTS="*.one.example"), ("PLIMSOLL_ALLOWED_HOSTS: ", "* alone")
    ),
    "host of another machine": Fault(
        variables(PLIMSOLL_HOST="192.0.2.1"), ("PLIMSOLL_HOST", "192.0.2.1", "this machine")
    ),
    "host that is not known": Fault(variables(PLIMSOLL_HOST="nowhere.invalid"), ("PLIMSOLL_HOST: ", "nowhere.invalid")),
    "host that is no name": Fault(variables(PLIMSOLL_HOST="a..b"), ("PLIMSOLL_HOST: ", "not a host name")),
    "certificate that is not named": Fault(
        lambda folder: {
            "DATABASE_URL": f"postgresql://someone:{SECRET}@127.0.0.1:1/db?sslmode=verify-full",
            "HOME": str(folder),
        },
        ("DATABASE_URL: ", "sslrootcert=FILE", "root.crt"),
    ),
    "database that is not there": Fault(
        variables(DATABASE_URL=f"postgresql://someone:{SECRET}@127.0.0.1:1/db"),
        ("DATABASE_URL: ", "cannot be reached"),
    ),
    "database on an unknown host": Fault(
        variables(DATABASE_URL=f"postgresql://someone:{SECRET}@nowhere.invalid/db"), ("DATABASE_URL: ", "cannot be")
    ),
    "no connection string": Fault(
        variables(DATABASE_URL=f"mysql://u:{SECRET}@h/db"), ("DATABASE_URL", "percent-encoded")
    ),
    "port of a database that is none": Fault(
        variables(DATABASE_URL=f"postgresql://u:{SECRET}@127.0.0.1:65536/db"), ("DATABASE_URL", "host:port")
    ),
    "empty connection string": Fault(variables(DATABASE_URL=""), ("DATABASE_URL: it is empty",)),
    "file of certificates without one": Fault(no_certificates, ("SSL_CERT_FILE: ", "corporate.pem")),
    "file of certificates that is not there": Fault(
        lambda folder: no_certificates(folder) | {"SSL_CERT_FILE": "absent.pem"},
        ("SSL_CERT_FILE: ", "absent.pem", "No such file"),
    ),
    "certificate that is not there": Fault(
        variables(DATABASE_URL=f"postgresql://u:{SECRET}@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/absent.pem"),
        ("DATABASE_URL", "certificate file"),
    ),
    "socket that is not there": Fault(
        variables(DATABASE_URL=f"postgresql://u:{SECRET}@/db?host=/absent"), ("DATABASE_URL", "no such socket")
    ),
    "data folder that is a file": Fault(data_dir_is_a_file, ("PLIMSOLL_DATA_DIR", "file", "directory")),
}


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_start_fault_is_one_sentence_that_names_file_line_and_variable(
    serve: Serve, tmp_path: Path, name: str, workers: str
) -> None:
    fault = FAULTS[name]
    printed = serve.refused(tmp_path, {"PLIMSOLL_WORKERS": workers} | fault.arranged(tmp_path))
    for piece in fault.says:
        assert piece in printed


def test_a_port_that_is_in_use_is_named_with_the_next(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert f"PLIMSOLL_PORT={port % 65535 + 1}" in serve.refused(tmp_path, {"PLIMSOLL_PORT": str(port)})


def test_an_address_that_others_reach_wants_a_key_however_it_is_spelled(
    serve: Serve, tmp_path: Path, database_url: str
) -> None:
    for host in ("0.0.0.0", "::"):
        printed = serve.refused(tmp_path, {"DATABASE_URL": database_url, "PLIMSOLL_HOST": host})
        assert f"{host} (PLIMSOLL_HOST)" in printed
        assert "plimsoll keys create" in printed


def test_workers_that_have_no_folder_for_their_metrics_do_not_start(
    serve: Serve, tmp_path: Path, database_url: str
) -> None:
    settings = data_dir_is_a_file(tmp_path) | {"DATABASE_URL": database_url, "PLIMSOLL_WORKERS": "2"}
    assert "PLIMSOLL_DATA_DIR: " in serve.refused(tmp_path, settings)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a full disk")
def test_workers_whose_metrics_find_no_room_do_not_start(serve: Serve, tmp_path: Path, database_url: str) -> None:
    """They would be ended by SIGBUS, again and again, without a word."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        settings = {"DATABASE_URL": database_url, "PLIMSOLL_WORKERS": "2", "PLIMSOLL_DATA_DIR": str(disk)}
        printed = serve.refused(tmp_path, settings)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert "PLIMSOLL_DATA_DIR: " in printed
    assert "No space left" in printed


@contextlib.contextmanager
def answering(first_words: bytes) -> Generator[int]:
    """The port of a server that is no Postgres."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as client:
                        client.recv(1024)
                        client.sendall(first_words)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"R\0\0\0\x08\0\0\0\x63", b"", b"E\0\0\0\x05\0"]
)
def test_a_server_that_is_no_postgres_is_reported(serve: Serve, tmp_path: Path, words: bytes) -> None:
    with answering(words) as port:
        url = f"postgresql://someone:{SECRET}@127.0.0.1:{port}/db?sslmode=disable"
        assert "DATABASE_URL: " in serve.refused(tmp_path, {"DATABASE_URL": url})


@pytest.fixture(scope="module")
def own_database(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Path, str]]:
    """A data folder whose server runs, and its address; `someone` needs a password there."""
    folder = tmp_path_factory.mktemp("own") / "var"
    server = embedded.start(folder)
    asyncio.run(upgrade(server.dsn))
    rules = folder / "postgres" / "data" / "pg_hba.conf"
    rules.write_text(f"local all someone scram-sha-256\n{rules.read_text()}")
    roles = ("CREATE ROLE someone LOGIN PASSWORD 'another'", "CREATE ROLE stranger LOGIN")
    for statement in (*roles, "SELECT pg_reload_conf()"):
        asyncio.run(execute(server.dsn, statement))
    yield folder, server.dsn
    server.stop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("postgres@/", f"someone:{SECRET}@/"), "password authentication failed"),
        (("postgres@/", f"nobody:{SECRET}@/"), '"nobody" does not exist'),
        (("/plimsoll?", "/absent?"), '"absent" does not exist'),
        (("postgres@/", "stranger@/"), "permission denied for table alembic_version"),
    ],
)
def test_a_database_that_refuses_us_is_quoted(
    serve: Serve, tmp_path: Path, own_database: tuple[Path, str], change: tuple[str, str], says: str
) -> None:
    printed = serve.refused(tmp_path, {"DATABASE_URL": own_database[1].replace(*change)})
    assert "DATABASE_URL: the database refuses this connection: " in printed
    assert says in printed


def test_servers_none_of_which_is_what_the_address_asks_for_are_reported(
    serve: Serve, tmp_path: Path, own_database: tuple[Path, str]
) -> None:
    printed = serve.refused(tmp_path, {"DATABASE_URL": own_database[1] + "&target_session_attrs=standby"})
    assert "DATABASE_URL: " in printed
    assert "target attribute" in printed


@pytest.mark.skipif(find_pgbouncer() is None, reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)")
def test_a_pooler_that_the_service_does_not_know_of_is_reported(
    serve: Serve, tmp_path: Path, own_database: tuple[Path, str]
) -> None:
    with pooled(own_database[1]) as address:
        printed = serve.refused(tmp_path, {"DATABASE_URL": address})
    assert "PLIMSOLL_DB_POOLER=transaction" in printed
    assert "unsupported startup parameter" in printed


def test_a_data_folder_of_a_later_release_is_left_as_it_is(
    serve: Serve, tmp_path: Path, own_database: tuple[Path, str]
) -> None:
    folder, dsn = own_database
    asyncio.run(execute(dsn, "UPDATE alembic_version SET version_num = 'later'"))
    assert "later release" in serve.refused(tmp_path, {"PLIMSOLL_DATA_DIR": str(folder)})


@pytest.mark.parametrize(("version", "says"), [("99\n", "made by PostgreSQL 99"), (None, "PG_VERSION")])
def test_a_cluster_of_another_postgres_is_left_as_it_is(
    serve: Serve, tmp_path: Path, version: str | None, says: str
) -> None:
    data = tmp_path / "var" / "postgres" / "data"
    data.mkdir(parents=True)
    if version:
        (data / "PG_VERSION").write_text(version)
    printed = serve.refused(tmp_path, {})
    assert says in printed
    assert "PLIMSOLL_DATA_DIR" in printed


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as somebody else")


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that everybody may enter, and root alone may write to."""
    folder = Path(f"/tmp/plimsoll-test-{os.getpid()}")  # noqa: S108 - pytest's own folders are closed to others
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_a_data_folder_that_may_not_be_written_is_named(serve: Serve, open_folder: Path) -> None:
    printed = serve.refused(open_folder, {"PLIMSOLL_DATA_DIR": str(open_folder / "var")}, NOBODY)
    assert f"{open_folder}/var/postgres (PLIMSOLL_DATA_DIR): " in printed
    assert "Permission denied" in printed


@as_root
def test_a_data_folder_of_another_user_is_named_with_its_owner(serve: Serve, open_folder: Path) -> None:
    (open_folder / "var" / "postgres").mkdir(parents=True)
    printed = serve.refused(open_folder, {"PLIMSOLL_DATA_DIR": str(open_folder / "var")}, NOBODY)
    assert "belongs to root" in printed
    assert "PLIMSOLL_DATA_DIR" in printed


@as_root
def test_a_catalogue_that_may_not_be_read_is_named(serve: Serve, open_folder: Path) -> None:
    (open_folder / "models.toml").write_text(CATALOGUE)
    (open_folder / "models.toml").chmod(0o600)
    printed = serve.refused(open_folder, {"MODELS_FILE": "models.toml"}, NOBODY)
    assert "MODELS_FILE models.toml cannot be used: it cannot be read (Permission denied)" in printed


@as_root
@pytest.mark.skipif(
    int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80 if sys.platform == "linux" else True,
    reason="here everybody may listen on port 80",
)
def test_a_port_that_is_not_allowed_is_named(serve: Serve, open_folder: Path) -> None:
    printed = serve.refused(open_folder, {"PLIMSOLL_PORT": "80"}, NOBODY)
    assert "Permission denied; PLIMSOLL_PORT=8000" in printed
