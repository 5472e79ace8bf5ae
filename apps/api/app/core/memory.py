"""How a process of the service manages its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Final

_COLLECT_AFTER_OBJECTS: Final = 5_000
"""Objects made between collections of the newest, which block the event loop for 2 ms: what a turn leaves. Nearly all
of them are freed with their last reference, so a collection per 700 objects would find nothing."""
_MAPPED_BYTES: Final = 4 * 1024 * 1024
"""Size from which a block of memory is always mapped on its own, so that it grows without a copy.

Once a large block was freed, glibc's default takes blocks of up to 32 MB from its heap: a body of 14 MB that grows was
then copied within one slice, which blocks the event loop for 7 ms."""
_TRIMMED_BYTES: Final = 16 * 1024 * 1024
"""Free memory at the end of the heap from which it is given back. Each copy of smaller texts would otherwise get new
pages from the kernel, which takes longer than the copy: to read a row of 3 MB took 9 ms in place of 5."""
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_M_TRIM_THRESHOLD: Final = -1
_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = (ctypes.py_object,), None


def collect_seldom() -> None:
    """Makes the garbage collector skip all objects that exist, and run less often from now on."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])


def newer_objects() -> int:
    """How many objects were left by collections of the newest since those that look further.

    The list of them must not outlive this one call of the interpreter: while another thread runs, a tuple in it that
    the thread builds cannot grow, and the thread gets a `SystemError`."""
    return sum(map(len, map(gc.get_objects, (1,))))


def skip_when_collecting(*data: object) -> None:
    """Makes the garbage collector skip these objects and what they refer to, for good: the last reference frees them,
    and none may ever be part of a circle. What an object refers to that is skipped already is not looked at."""
    found = [*filter(gc.is_tracked, data)]
    while found:
        each = found.pop()
        if gc.is_tracked(each) and not isinstance(each, type):
            _untrack(each)
            found += filter(gc.is_tracked, gc.get_referents(each))


def map_large_blocks() -> None:
    """Sets when this process maps blocks and gives memory back. Other C libraries than glibc have no such options."""
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        set_option(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
