"""Replicas behind a TCP balancer: connections go to them in turn, past those that do not answer; it counts them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from bench.wire import pump
from torture.replicas import Nursery, Replica

REPLICAS = 3


@dataclass(slots=True)
class Balancer:
    """`served` counts connections by port."""

    replicas: Sequence[Replica]
    port: int = 0
    served: Counter[int] = field(default_factory=Counter[int])
    _turn: count[int] = field(default_factory=count)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        first = next(self._turn)
        for number in range(len(self.replicas)):
            port = self.replicas[(first + number) % len(self.replicas)].port
            with contextlib.suppress(OSError):
                upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
                self.served[port] += 1
                await asyncio.gather(pump(reader, upstream_writer), pump(upstream_reader, writer))
                return
        writer.transport.abort()


@contextlib.asynccontextmanager
async def balanced(replicas: Sequence[Replica]) -> AsyncGenerator[Balancer]:
    """Balances over the replicas on a free port."""
    own = Balancer(replicas)
    server = await asyncio.start_server(own.serve, "127.0.0.1", 0, backlog=1024)
    own.port = server.sockets[0].getsockname()[1]
    try:
        yield own
    finally:
        server.close()


@contextlib.asynccontextmanager
async def fleet(nursery: Nursery, environment: Mapping[str, str], *, name: str) -> AsyncGenerator[Balancer]:
    """Three replicas, for the block, behind a balancer."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(nursery.running(environment, name=f"{name}-{number}"))
            for number in range(REPLICAS)
        ]
        yield await stack.enter_async_context(balanced(replicas))
