"""The scripted server in a thread of its own, for tests that are no coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeAlias

from tests.providers.server import Play, ScriptedServer, serving

ThreadedServer: TypeAlias = ScriptedServer


@contextmanager
def threaded_serving(*script: Play) -> Generator[ThreadedServer]:
    """As `serving`, on an event loop of its own."""
    ready: list[ScriptedServer] = []
    started, over = threading.Event(), threading.Event()

    async def play() -> None:
        async with serving(*script) as server:
            ready.append(server)
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(play()), daemon=True)
    thread.start()
    assert started.wait(60), "the scripted server did not start"
    try:
        yield ready[0]
    finally:
        over.set()
        thread.join(60)
