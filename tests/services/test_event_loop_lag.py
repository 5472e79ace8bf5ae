"""What one piece of work takes of the event loop is seen, and what a busy machine takes is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.services.background import beat_forever
from tests.services.service import Service, service
from tests.services.test_database_metrics import measured


async def _lag_after(at: Service, work: Callable[[], None]) -> float:
    beats = asyncio.create_task(beat_forever(at.rt))
    for _ in range(3):
        await asyncio.sleep(0.05)
    work()
    for _ in range(3):
        await asyncio.sleep(0.05)
    beats.cancel()
    return measured(at.rt.telemetry)["event_loop_lag_seconds"]


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_work_that_keeps_the_loop_is_seen_for_as_long_as_it_computes(database_url: str) -> None:
    async with service(database_url) as at:
        # A beat was due up to a fiftieth of a second after the work began.
        assert 0.27 < await _lag_after(at, lambda: _compute(0.3)) < 0.4


async def test_a_loop_that_the_machine_lets_wait_does_not_count(database_url: str) -> None:
    async with service(database_url) as at:
        assert await _lag_after(at, lambda: time.sleep(0.5)) < 0.25
