"""What an error refers to: it is to be freed with the error, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType

import pytest

_FREED_WITHIN_S = 5.0


def _own_frame() -> Generator[FrameType]:
    yield sys._getframe()  # pyright: ignore[reportPrivateUsage]


def _frames_of_ended_generators_have_callers() -> bool:
    generator = _own_frame()
    frame = next(generator)
    next(generator, None)
    return frame.f_back is not None


frees_failed_blocks = pytest.mark.skipif(
    _frames_of_ended_generators_have_callers(),
    reason="this Python lets only a collection free what an error in an `asynccontextmanager` refers to "
    "(3.12 and the first releases of 3.13 and 3.14: python/cpython#100964)",
)


class Referred:
    """What a frame of the error's traceback refers to, as that of a request refers to its body."""


@contextmanager
def no_collections() -> Generator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def assert_is_freed(failing: Callable[[], Awaitable[object]], error: type[Exception]) -> None:
    """That what the frame referred to that awaited the failing work is freed soon. A thread that has done the work, or
    the event loop, may still refer to the error for a moment."""
    referred = await _referred_by(failing, error)
    await assert_soon(lambda: referred() is None)


async def _referred_by(failing: Callable[[], Awaitable[object]], error: type[Exception]) -> weakref.ref[Referred]:
    referred = Referred()
    with pytest.raises(error):
        await failing()
    return weakref.ref(referred)


async def assert_soon(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_FREED_WITHIN_S):
        while not holds():  # noqa: ASYNC110 - nothing tells when an object is freed
            await asyncio.sleep(0.001)
