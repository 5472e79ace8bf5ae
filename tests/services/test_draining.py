"""A process on its way out: balancers see it, what runs ends, and new work is refused."""

from __future__ import annotations

import asyncio

import pytest

from app.domain.errors import ShuttingDown
from app.services.process_state import Drain


async def test_requests_that_run_are_waited_for_and_new_ones_are_refused() -> None:
    drain = Drain()
    leave = asyncio.Event()

    async def request() -> None:
        with drain.work():
            await leave.wait()

    running = asyncio.create_task(request())
    await asyncio.sleep(0)
    drain.announced = True
    with drain.work():
        pass  # announced, but not closed: a balancer may not have seen it yet
    drain.close()
    with pytest.raises(ShuttingDown) as refused, drain.work():
        pass
    assert refused.value.retry_after_s >= 1
    waiting = asyncio.create_task(drain.until_idle(5))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    leave.set()
    await waiting
    assert running.done()


async def test_a_request_that_never_ends_is_waited_for_no_longer_than_the_grace_time() -> None:
    drain = Drain()
    with drain.work():
        await drain.until_idle(0.01)
