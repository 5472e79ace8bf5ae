"""A real Plimsoll of one's own for as long as a demo takes: free loopback port, temporary data, embedded Postgres."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from plimsoll_demo.own_process import free_port, running

READY_WITHIN_S = 120.0
SERVE = "from app.cli import main; main()"


@contextmanager
def own_service(settings: Mapping[str, str] | None = None, *, log_path: Path | None = None) -> Generator[str]:
    """Starts `plimsoll serve`, waits for `/readyz`, gives its address; stops it and deletes its data at the end.

    Settings of the surrounding environment do not reach it: it runs the defaults, but for the variables in `settings`,
    and for summaries made ahead: what a turn finds made would go by how fast the machine is.
    Its log goes with its data, unless `log_path` names a file. Raises `ServerDidNotStartError`.
    """
    folder = Path(tempfile.mkdtemp(prefix="plimsoll-demo-"))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        with running(
            [sys.executable, "-c", SERVE, "serve"],
            name="plimsoll serve",
            folder=folder,
            environment=_environment(folder, port) | dict(settings or {}),
            log_path=log_path or folder / "service.log",
            ready_url=f"{url}/readyz",
            ready_within_s=READY_WITHIN_S,
        ):
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, port: int) -> dict[str, str]:
    ours = ("PLIMSOLL_", "CONTEXT_", "DATABASE_URL", "MODELS_FILE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PLIMSOLL_PORT": str(port),
        "PLIMSOLL_DATA_DIR": str(folder / "data"),
        "PLIMSOLL_DEMO": "false",
        "PLIMSOLL_LOG_LEVEL": "WARNING",
        "PLIMSOLL_SUMMARIZE_AHEAD": "false",
    }
