"""A server of one's own for as long as it is needed: a child process on a free loopback port, its log in a file."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

STOP_WITHIN_S = 10.0


class ServerDidNotStartError(Exception):
    """The server was not ready in time or ended. The message carries the end of its log."""


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    *,
    name: str,
    folder: Path,
    environment: Mapping[str, str],
    log_path: Path,
    ready_url: str,
    ready_within_s: float,
) -> Generator[None]:
    """Starts the command in `folder`, waits until `ready_url` answers 200, and stops it at the end.

    Raises `ServerDidNotStartError`.
    """
    with log_path.open("wb") as log:
        process = subprocess.Popen(list(command), cwd=folder, env=dict(environment), stdout=log, stderr=log)  # noqa: S603 - the caller's own program
    try:
        _wait_until_ready(process, name, ready_url, ready_within_s, log_path)
        yield
    finally:
        _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], name: str, ready_url: str, ready_within_s: float, log_path: Path
) -> None:
    deadline = time.monotonic() + ready_within_s
    with httpx.Client(timeout=2.0, trust_env=False) as http:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if http.get(ready_url).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    how = "was not ready in time" if process.poll() is None else f"ended with status {process.returncode}"
    end_of_log = log_path.read_text(encoding="utf-8", errors="replace")[-3000:]
    raise ServerDidNotStartError(f"{name} {how}; the end of its log:\n{end_of_log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
