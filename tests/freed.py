"""What an error refers to: it is to be freed with the error, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import pytest


class Referred:
    """What a frame of the error's traceback refers to, as that of a request refers to its body."""


@contextmanager
def no_collections() -> Generator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def referred_by(failing: Callable[[], Awaitable[object]], error: type[Exception]) -> weakref.ref[Referred]:
    """What the frame referred to that awaited the failing work, if it is not freed yet."""
    referred = Referred()
    with pytest.raises(error):
        await failing()
    await asyncio.sleep(0)  # until then the event loop refers to the future that woke this task
    return weakref.ref(referred)
