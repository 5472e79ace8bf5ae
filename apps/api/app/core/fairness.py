"""What tenants share of a process: slots and threads. No tenant can use all, and waiting tenants are served in turn.

A task that holds several gates has taken them in one order, so that no two wait for each other: a slot of heavy work,
the session, a connection. That of a model's connections is held alone. Work on a thread waits for none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

ANONYMOUS = ""
"""The tenant of a request before authentication."""

tenant_at_work: ContextVar[str | None] = ContextVar("tenant_at_work", default=None)
"""The tenant of the running task; None for the process's own work."""
T = TypeVar("T")


class QueueFull(Exception):
    """The queue of this key is full."""


def share_of(total: int, ratio: float) -> int:
    """One tenant's share of a total, which is at least one."""
    return max(1, int(total * ratio))


class FairGate:
    """At most `slots` callers hold a slot at once, and at most `per_key` of one key.

    Without a free slot, callers wait in the queue of their key. Keys are served in turn, so a key with many waiters
    does not delay others. At most `most_waiting` wait for each key; None means no bound.
    """

    def __init__(self, slots: int, per_key: int, most_waiting: int | None = None) -> None:
        self._free = slots
        self._per_key = per_key
        self._most_waiting = most_waiting
        self._inside: dict[Hashable, int] = {}  # a Counter deletes, and finds what is missing, at five times the cost
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def full_for(self, key: Hashable) -> bool:
        """Whether the key has all the slots that it may have."""
        return self._inside.get(key, 0) >= self._per_key

    async def acquire(self, key: Hashable, within_s: float | None) -> None:
        """Takes a slot, which `release` gives back. Raises `QueueFull`, and `TimeoutError` if none was free in time."""
        place = self.place(key)
        if place is None:
            return
        try:
            async with asyncio.timeout(within_s):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.release(key)  # it got a slot at the moment it was cancelled
            else:
                self._leave(key, place)
            raise

    def place(self, key: Hashable) -> asyncio.Future[None] | None:
        """Takes a free slot, or returns a place in the queue of the key, done once it has one. Raises `QueueFull`."""
        if self._free > 0 and not self.full_for(key):
            self._enter(key)
            return None
        queue = self._waiting.get(key)
        if self._most_waiting is not None and len(queue or ()) >= self._most_waiting:
            raise QueueFull
        if queue is None:
            queue = self._waiting[key] = deque()
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        return place

    def release(self, key: Hashable) -> None:
        """Gives a slot back, and gives free slots to the next waiters."""
        left = self._inside.pop(key, 0) - 1
        if left:
            self._inside[key] = left
        self._free += 1
        while self._free > 0:
            for waiting in self._waiting:
                if not self.full_for(waiting):
                    self._let_in(waiting)
                    break
            else:
                return

    def _let_in(self, key: Hashable) -> None:
        queue = self._waiting.pop(key)
        place = queue.popleft()
        if queue:
            self._waiting[key] = queue  # at the end: other keys are next
        if not place.done():
            self._enter(key)
            place.set_result(None)

    def _enter(self, key: Hashable) -> None:
        self._free -= 1
        self._inside[key] = self._inside.get(key, 0) + 1

    def _leave(self, key: Hashable, place: asyncio.Future[None]) -> None:
        queue = self._waiting.get(key)
        if queue is None:
            return
        with suppress(ValueError):
            queue.remove(place)
        if not queue:
            del self._waiting[key]


class FairThreads(ThreadPoolExecutor):
    """Threads for work that would block the event loop. Work of a tenant runs on at most its share of them at once.

    Work that is cancelled while it waits never runs; work that runs keeps its thread until it ends.
    """

    def __init__(self, threads: int, tenant_ratio: float, name: str) -> None:
        super().__init__(threads, name)
        self._slots = FairGate(threads, share_of(threads, tenant_ratio))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs the work for the tenant of the running task. Call it on the event loop, as `asyncio.to_thread` does."""
        loop, tenant, result = asyncio.get_running_loop(), tenant_at_work.get(), Future[T]()

        def finished(work: Future[T]) -> None:
            error = work.exception()
            if error is None:
                result.set_result(work.result())
            else:
                result.set_exception(error)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._slots.release, tenant)

        def start(_: object = None) -> None:
            if result.set_running_or_notify_cancel():
                # No frame of the thread may have the result: an error's traceback would refer to what has the error.
                ThreadPoolExecutor.submit(self, fn, *args, **kwargs).add_done_callback(finished)
            else:
                self._slots.release(tenant)

        place = self._slots.place(tenant)
        if place is None:
            start()
        else:
            place.add_done_callback(start)
        return result
