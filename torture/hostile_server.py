"""`python -m torture.hostile_server`: plays hostile answers by number, in a process of its own; it prints its port.

What it costs to make and send them must not be measured. `POST /{number}/ready` makes one.
"""

from __future__ import annotations

import asyncio
import sys

from tests.providers.hostile import HOSTILE
from tests.providers.server import Answer, Seen, Step, serving

READY = "ready"


async def _serve() -> None:
    made: dict[int, Step] = {}

    def play(seen: Seen) -> Step:
        _, number, *rest = seen.path.split("/")
        if rest == [READY]:
            made.clear()
            made[int(number)] = HOSTILE[int(number)].step()
            return Answer({})
        return made[int(number)]

    async with serving(play) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
