"""Work that a turn leaves behind for after its answer: tasks of this process that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from app.domain.errors import PlimsollError

logger = logging.getLogger(__name__)


class Chores:
    """Running chores. One that is lost with its process must be found due again by whoever comes next."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Runs the work beside everything else; what it raises is logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PlimsollError):
            logger.warning("%s was given up: %s", task.get_name(), error.code)
        elif error is not None:
            logger.error("%s broke", task.get_name(), exc_info=error)

    async def settle(self) -> None:
        """Waits until nothing is left to do."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self, timeout_s: float) -> None:
        """Gives what runs so long to end, and cancels the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
