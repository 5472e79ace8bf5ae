"""CPU time of a program: user and system seconds of a process and its children."""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil

POSTGRES = "postgres"


def cpu_seconds(root_pid: int, *, without_postgres: bool = False) -> float:
    """CPU spent so far by the living processes of the tree under `root_pid`."""
    root = psutil.Process(root_pid)
    processes: list[Any] = [root, *root.children(recursive=True)]
    return sum(_spent_s(process) for process in processes if not (without_postgres and process.name() == POSTGRES))


def postmaster_pid(backend_pid: int) -> int | None:
    """The server that a connection's backend belongs to; None when it runs on another machine."""
    try:
        parent: Any = psutil.Process(backend_pid).parent()
    except psutil.NoSuchProcess:
        return None
    return int(parent.pid) if parent is not None and parent.name() == POSTGRES else None


def _spent_s(process: Any) -> float:
    if sys.platform == "linux":
        # The kernel's CPU clock of another process, in nanoseconds; psutil's figure comes in steps of 10 ms.
        return time.clock_gettime((~int(process.pid) << 3) | 2)
    times = process.cpu_times()
    return float(times.user + times.system)
