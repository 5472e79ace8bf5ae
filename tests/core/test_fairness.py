"""Slots and threads that are shared fairly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from threading import Event

import pytest

from app.core.fairness import FairGate, FairThreads, QueueFull, share_of, tenant_at_work
from tests.freed import assert_is_freed, no_collections

LONG_S = 60.0


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_key_has_no_more_than_its_part_and_another_is_let_in_at_once() -> None:
    gate = FairGate(4, 3)
    for _ in range(3):
        await gate.acquire("hog", LONG_S)
    waiting = asyncio.create_task(gate.acquire("hog", LONG_S))
    await _settle()
    assert not waiting.done()
    await gate.acquire("neighbour", 0.001)
    gate.release("neighbour")
    await _settle()
    assert not waiting.done()
    gate.release("hog")
    await waiting


async def test_a_release_looks_at_one_waiting_key_and_not_at_all_of_them() -> None:
    looked_at: list[object] = []

    class Watched(FairGate):
        def full_for(self, key: Hashable) -> bool:
            looked_at.append(key)
            return super().full_for(key)

    gate = Watched(1, 1)
    assert gate.place("inside") is None
    places = [gate.place(number) for number in range(100)]
    looked_at.clear()
    gate.release("inside")
    assert looked_at == [0]
    assert places[0] is not None
    assert places[0].done()


async def test_the_process_itself_has_the_key_none_and_is_let_in_like_any_other() -> None:
    gate = FairGate(1, 1)
    await gate.acquire(None, LONG_S)
    waiting = asyncio.create_task(gate.acquire(None, LONG_S))
    await _settle()
    gate.release(None)
    await _settle()
    assert waiting.done()


async def test_keys_are_let_in_by_turns_however_many_one_of_them_has_waiting() -> None:
    gate = FairGate(1, 1)
    await gate.acquire("first", LONG_S)
    order: list[str] = []

    async def work(key: str) -> None:
        await gate.acquire(key, LONG_S)
        order.append(key)
        gate.release(key)

    tasks = [asyncio.create_task(work(key)) for key in ("a", "a", "a", "a", "b", "c")]
    await _settle()
    gate.release("first")
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "a", "a"]


async def test_a_queue_has_an_end_and_a_wait_too() -> None:
    gate = FairGate(1, 1, most_waiting=1)
    await gate.acquire("a", LONG_S)
    waiting = asyncio.create_task(gate.acquire("a", LONG_S))
    await _settle()
    with pytest.raises(QueueFull):
        await gate.acquire("a", LONG_S)
    with pytest.raises(TimeoutError):
        await gate.acquire("b", 0.001)
    gate.release("a")
    await waiting


async def test_no_slot_is_lost_or_given_twice_when_waiters_go_away_at_any_moment() -> None:
    chance = random.Random(10)  # noqa: S311 - a test's own order of things
    gate, inside, most = FairGate(3, 2), {"a": 0, "b": 0, "c": 0}, 0

    async def work(key: str) -> None:
        nonlocal most
        await gate.acquire(key, LONG_S)
        try:
            inside[key] += 1
            most = max(most, sum(inside.values()))
            assert inside[key] <= 2
            await asyncio.sleep(0)
        finally:
            inside[key] -= 1
            gate.release(key)

    tasks = [asyncio.create_task(work(chance.choice("abc"))) for _ in range(500)]
    for task in tasks:
        if chance.random() < 0.3:
            task.cancel()
        if chance.random() < 0.2:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    for key in ("a", "a", "b"):
        await gate.acquire(key, 0.001)


@pytest.mark.parametrize(("total", "ratio", "share"), [(10, 0.75, 7), (1, 0.75, 1), (3, 0.75, 2), (500, 1.0, 500)])
def test_a_share_is_at_least_one(total: int, ratio: float, share: int) -> None:
    assert share_of(total, ratio) == share


@contextmanager
def _at_work(tenant: str | None) -> Generator[None]:
    token = tenant_at_work.set(tenant)
    yield
    tenant_at_work.reset(token)


def _waits(threads: FairThreads, tenant: str, until: Event, begun: list[str]) -> asyncio.Future[None]:
    def work() -> None:
        begun.append(tenant)
        until.wait()

    with _at_work(tenant):
        return asyncio.get_running_loop().run_in_executor(threads, work)


async def test_a_tenant_with_much_to_compute_leaves_another_a_thread() -> None:
    over, begun = Event(), list[str]()
    with FairThreads(3, 0.75, "test") as threads:
        try:
            of_hog = [_waits(threads, "hog", over, begun) for _ in range(20)]
            with _at_work("neighbour"):
                ran = asyncio.get_running_loop().run_in_executor(threads, sum, [1, 2])
                assert await asyncio.wait_for(ran, LONG_S) == 3
            assert begun == ["hog", "hog"]
        finally:
            over.set()
        await asyncio.gather(*of_hog)
    assert len(begun) == 20


async def test_work_given_up_while_it_waits_never_runs_and_keeps_its_thread_while_it_runs() -> None:
    over, begun = Event(), list[str]()
    with FairThreads(2, 0.5, "test") as threads:
        try:
            running, waiting, last = [_waits(threads, "a", over, begun) for _ in range(3)]
            running.cancel()
            waiting.cancel()
            await _settle()
            assert begun == ["a"]
        finally:
            over.set()
        await asyncio.wait_for(last, LONG_S)
        assert begun == ["a", "a"]


async def test_an_error_of_the_work_is_raised_and_frees_its_thread() -> None:
    with FairThreads(1, 1.0, "test") as threads:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await asyncio.get_running_loop().run_in_executor(threads, divmod, 1, 0)


async def test_an_error_of_the_work_is_freed_with_its_caller_without_a_collection() -> None:
    """It referred to the frame of its thread, which referred to it: refused bodies that are read on threads stayed."""

    def fail() -> float:
        return 1 / 0

    with no_collections(), FairThreads(1, 1.0, "test") as threads:
        loop = asyncio.get_running_loop()
        await assert_is_freed(lambda: loop.run_in_executor(threads, fail), ZeroDivisionError)
