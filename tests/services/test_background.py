"""Background work outlives what breaks it: a sweeper or a renewer that stops for good would brick sessions."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest

from app.domain.types import SessionId
from app.services.background import collect_forever, keep_going
from app.services.runtime import Runtime
from app.services.summaries import summarize_now
from app.services.turn.gather import session_window
from tests.services.service import Service, ref_of, service


async def test_background_work_that_broke_is_begun_again_and_it_is_logged(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun = 0
    again = asyncio.Event()

    async def breaks_once(_: Runtime) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise LookupError("nobody expected this")
        again.set()
        await asyncio.sleep(60)

    async with service(database_url) as at:
        keeper = asyncio.create_task(keep_going(breaks_once, at.rt))
        try:
            async with asyncio.timeout(30):
                await again.wait()
        finally:
            keeper.cancel()
    assert "breaks_once" in caplog.text


class _Circle:
    def __init__(self) -> None:
        self.itself = self


@asynccontextmanager
async def _collecting(at: Service) -> AsyncGenerator[None]:
    """Nothing but `collect_forever` collects garbage in the block, and only what is made there: a whole collection of
    all that a test process has takes tens of seconds on a busy machine."""
    thresholds = gc.get_threshold()
    gc.disable()
    gc.freeze()
    collecting = asyncio.create_task(collect_forever(at.rt, 0.01))
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        collecting.cancel()
        gc.unfreeze()
        gc.enable()
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("collected", [True, False])
async def test_objects_that_refer_to_themselves_are_freed_between_two_pieces_of_work(
    database_url: str, *, collected: bool
) -> None:
    """Also in a process that makes so few objects that its newest are not collected."""
    async with service(database_url) as at, _collecting(at):
        gc.collect()
        circles = [_Circle() for _ in range(300)]
        freed = asyncio.Event()
        left = weakref.ref(circles[0], lambda _: freed.set())
        if collected:
            gc.collect(0)
        del circles
        assert left() is not None
        await freed.wait()


async def test_counting_newer_objects_does_not_disturb_what_another_thread_builds(database_url: str) -> None:
    """While a list of these objects was alive, a tuple in it that another thread was building could not grow: a
    `SystemError`, nearly always with so many objects, as a thread then waits for the interpreter."""

    def build(end: float) -> None:
        while time.monotonic() < end:
            assert len(tuple(_while_it_gets_older(range(1_000)))) == 1_000

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # as the service has it
    try:
        async with service(database_url) as at, _collecting(at):
            newer: list[object] = [[] for _ in range(50_000)]
            await asyncio.to_thread(build, time.monotonic() + 0.5)
            assert newer
    finally:
        sys.setswitchinterval(interval)


def _while_it_gets_older(numbers: Iterable[int]) -> Generator[int]:
    gc.collect(0)  # what is being built is counted from here on
    yield from numbers


async def test_what_a_collection_has_left_is_looked_at_again_after_many_others(database_url: str) -> None:
    """Each collection went through the cache of sessions: with 2,400 of them it blocked the event loop for 20 ms."""
    async with service(database_url) as at, _collecting(at):
        older = [_Circle() for _ in range(300)]
        gc.collect()
        left = weakref.ref(older.pop())
        older.clear()
        newer = [_Circle() for _ in range(300)]
        freed = asyncio.Event()
        newest = weakref.ref(newer.pop(), lambda _: freed.set())
        newer.clear()
        await freed.wait()
        assert newest() is None
        assert left() is not None
        while left() is not None:
            newer.extend([_Circle() for _ in range(300)])
            newer.clear()
            await asyncio.sleep(0.01)


async def test_the_collector_does_not_go_through_cached_sessions_which_their_last_reference_frees(
    database_url: str,
) -> None:
    """It went through 22 objects of each: with 10,000 sessions a whole collection blocked the event loop for 30 ms."""
    sessions = 30
    async with service(database_url) as at:
        await _summarized(at)
        before = _older_objects()
        made = [await _summarized(at) for _ in range(sessions)]
        assert _older_objects() - before < 2 * sessions
        left = await _parts(at, made[-1])
        gc.disable()
        try:
            at.rt.pasts.forget(made[-1])
            assert [part() for part in left] == [None, None]
        finally:
            gc.enable()


async def _summarized(at: Service) -> SessionId:
    """A session whose cached past has turns, a summary and an index."""
    session_id = (await at.session(policy={"auto_summarize": False, "protected_turns": 1})).id
    for number in range(4):
        await at.turn(session_id, f"The number of crane {number} is 47{number}. " * 20)
    await summarize_now(at.rt, ref_of(session_id))
    for number in range(2):
        await at.turn(session_id, f"And what is the number of crane {number}?")
    return session_id


async def _parts(at: Service, session_id: SessionId) -> Sequence[weakref.ref[object]]:
    rows = await session_window(at.rt, ref_of(session_id))
    assert rows.summary is not None
    assert not gc.is_tracked(rows.summary.body)
    return weakref.ref(rows.summary.body), weakref.ref(rows.kept.columns)


def _older_objects() -> int:
    gc.collect()
    return sum(map(len, map(gc.get_objects, (None,))))  # as `newer_objects` counts
