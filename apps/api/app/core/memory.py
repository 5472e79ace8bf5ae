"""How a process of the service manages its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Final

_COLLECT_AFTER_OBJECTS: Final = 5_000
"""Objects made between collections of the newest, which block the event loop for 2 ms: what a turn leaves. Nearly all
of them are freed with their last reference, so a collection per 700 objects would find nothing."""
_MAPPED_BYTES: Final = 1024 * 1024
"""Size from which a block of memory is always mapped on its own, so that it grows without a copy.

Once a large block was freed, glibc's default takes blocks of up to 32 MB from its heap: a body of 14 MB that grows was
then copied within one slice, which blocks the event loop for 7 ms."""
_M_MMAP_THRESHOLD: Final = -3  # malloc.h


def collect_seldom() -> None:
    """Makes the garbage collector skip all objects that exist, and run less often from now on."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])


def map_large_blocks() -> None:
    """Applies `_MAPPED_BYTES` to this process. Other C libraries than glibc have no such setting."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
