"""The Postgres servers that a run is made on: given ones, the embedded one, and an older one that the system has."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from app.db import embedded

OLDER_BINARIES = Path("/usr/lib/postgresql/15/bin")
"""Where Debian and Ubuntu put the oldest version that the service takes."""
_PORT = 5432  # only names the socket file
_READY_WITHIN_S = 30.0


@contextlib.contextmanager
def embedded_server(folder: Path) -> Generator[str]:
    """The URL of a server of the version in the wheel."""
    server = embedded.start(folder)
    try:
        yield server.dsn
    finally:
        server.stop()


@contextlib.contextmanager
def older_server(folder: Path) -> Generator[str]:
    """The URL of a server of the version in `OLDER_BINARIES`, set up as the embedded one is.

    Root's runs as the account `postgres`, which the system's packages make.
    """
    user = "postgres" if os.geteuid() == 0 else None
    folder.mkdir()
    folder.parent.chmod(0o711)  # the account has to get there
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    options = "-U postgres -A trust -E UTF8 --no-locale --no-instructions --wal-segsize=1"
    subprocess.run(
        [OLDER_BINARIES / "initdb", "-D", data, *options.split()],
        check=True,
        capture_output=True,
        cwd=folder,
        user=user,
    )
    settings = f"listen_addresses= unix_socket_directories={folder} port={_PORT} max_connections=200"
    settings += " min_wal_size=80MB max_wal_size=1GB"
    arguments = [part for setting in settings.split() for part in ("-c", setting)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [OLDER_BINARIES / "postgres", "-D", data, *arguments], cwd=folder, user=user, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _READY_WITHIN_S
        while "ready" not in (folder / "server.log").read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((folder / "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        yield f"postgresql://postgres@/postgres?host={folder}&port={_PORT}"
    finally:
        process.terminate()  # waits for its clients, which are gone
        process.wait()
