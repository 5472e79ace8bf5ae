"""CPU time of a program: user and system seconds of a process and its children."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

POSTGRES = "postgres"


def cpu_seconds(root_pid: int, *, without_postgres: bool = False) -> float:
    """CPU spent so far by the living processes of the tree under `root_pid`."""
    return of_tree(
        root_pid, lambda process: 0.0 if without_postgres and process.name() == POSTGRES else _spent_s(process)
    )


def of_tree(root_pid: int, figure: Callable[[Any], float]) -> float:
    """The sum of a figure of each process under `root_pid`. A child that has ended since it was listed has none."""
    root: Any = psutil.Process(root_pid)
    total = figure(root)
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += figure(child)
    return total


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
        try:
            return time.clock_gettime((~int(process.pid) << 3) | 2)
        except OSError as error:
            raise psutil.NoSuchProcess(process.pid) from error
    times = process.cpu_times()
    return float(times.user + times.system)
