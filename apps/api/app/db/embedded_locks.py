"""`flock` on files that hold nothing: the kernel gives such a lock back however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

_POLL_S = 0.01
_LOCK_TIMEOUT_S = 60.0


class EmbeddedPostgresError(Exception):
    """The embedded server can not be had; the sentence says why and what to do."""


def open_lock(path: Path) -> int:
    """The descriptor of a lock file, not locked yet. Programs we start do not inherit it unless they are meant to."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """Takes the lock for us alone, if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Has the lock for us alone while the block runs. Raises `EmbeddedPostgresError` after a minute of waiting."""
    with closing(open_lock(path)) as descriptor:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"Another process holds {path} and does not let go.")
            time.sleep(_POLL_S)
        yield


@contextlib.contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Closes the descriptor, and with it gives its lock back, when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
