"""A process on its way out: what it tells balancers, and what it still takes on."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress

from app.domain.errors import ShuttingDown

_RETRY_AFTER_S = 1


class Drain:
    """`announced` makes `/readyz` 503, so that nobody is sent here any more; `closed` refuses new work too.

    What runs already is not touched by either.
    """

    def __init__(self) -> None:
        self.announced = False
        self.closed = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def work(self) -> Generator[None]:
        """One request, from its beginning to the end of its answer. Raises `ShuttingDown` once new ones are refused."""
        if self.closed:
            raise ShuttingDown("This process is about to end; another try meets another one.", _RETRY_AFTER_S)
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def until_idle(self, timeout_s: float) -> None:
        """Returns once no request runs, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def announce(self) -> None:
        """This process is about to end."""
        self.announced = True

    def close(self) -> None:
        """Whoever comes now is sent to another process."""
        self.announced = True
        self.closed = True
