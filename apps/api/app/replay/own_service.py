"""A real Plimsoll of one's own for as long as a demo takes: free loopback port, temporary data, embedded Postgres."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

import app

READY_WITHIN_S = 40.0
STOP_WITHIN_S = 10.0
SERVE = "from app.cli import main; main()"


class ServiceDidNotStartError(Exception):
    """The service was not ready in time or ended. The message carries the end of its log."""


@contextmanager
def own_service() -> Generator[str]:
    """Starts `plimsoll serve`, waits for `/readyz`, gives its address; stops it and deletes its data at the end.

    Raises `ServiceDidNotStartError`. Settings of the surrounding environment do not reach it: it runs the defaults.
    """
    folder = Path(tempfile.mkdtemp(prefix="plimsoll-demo-"))
    port = _free_port()
    log_path = folder / "service.log"
    try:
        with log_path.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own module
                [sys.executable, "-c", SERVE, "serve"],
                cwd=folder,
                env=_environment(folder, port),
                stdout=log,
                stderr=log,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, log_path)
            yield url
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, port: int) -> dict[str, str]:
    ours = ("PLIMSOLL_", "CONTEXT_", "DATABASE_URL", "MODELS_FILE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    package_root = str(Path(app.__file__).resolve().parents[1])
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, kept.get("PYTHONPATH")))),
        "PLIMSOLL_PORT": str(port),
        "PLIMSOLL_DATA_DIR": str(folder / "data"),
        "PLIMSOLL_LOG_LEVEL": "WARNING",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    with httpx.Client(base_url=url, timeout=2.0, trust_env=False) as http:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if http.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    how = "was not ready in time" if process.poll() is None else f"ended with status {process.returncode}"
    end_of_log = log_path.read_text(encoding="utf-8", errors="replace")[-3000:]
    raise ServiceDidNotStartError(f"plimsoll serve {how}; the end of its log:\n{end_of_log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
