"""Service processes: started by the nursery, watched by pidfd, ended by their own id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.programs import ROOT, ProgramFailed, free_port

_UP_WITHIN_S = 30.0
_ENDED_WITHIN_S = 20.0


@dataclass(slots=True)
class Replica:
    """One `plimsoll serve` with one worker, so its id is the worker's."""

    pid: int
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal; nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def ended(self, within_s: float) -> bool:
        """Whether it has ended in that time."""
        try:
            watch = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(watch, over.set)
        try:
            async with asyncio.timeout(within_s):
                await over.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return True

    async def until_up(self) -> None:
        """Returns once the port answers. Raises `ProgramFailed`."""
        deadline = asyncio.get_running_loop().time() + _UP_WITHIN_S
        while asyncio.get_running_loop().time() < deadline:
            # It listens before it is up; the first answer is what counts.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    if (await reader.readline()).startswith(b"HTTP/1.1 200"):
                        return
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.02)
        raise ProgramFailed(f"a replica did not start: {self.log.read_text(errors='replace')[-2000:]}")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return process_state(self.pid) == "T"

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_sockets(self) -> int:
        folder = Path(f"/proc/{self.pid}/fd")
        links: list[str] = []
        for entry in list(folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                links.append(str(entry.readlink()))
        return sum(link.startswith("socket:") for link in links)


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does: `T` stopped, `Z` ended and not yet waited for, "" gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


class Nursery:
    """Where replicas come from (`torture/nursery.py`)."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._asking = asyncio.Lock()
        self._born: list[Replica] = []

    async def start(self, environment: Mapping[str, str], *, name: str, port: int | None = None) -> Replica:
        """A replica that answers. `port` is a free one unless given. Raises `ProgramFailed`."""
        port = port or free_port()
        log = self._folder / f"{name}.log"
        order = {
            "environment": {"PLIMSOLL_PORT": str(port), "PLIMSOLL_LOG_LEVEL": "WARNING", **environment},
            "log": str(log),
            "folder": str(self._folder),
        }
        assert self._process.stdin
        assert self._process.stdout
        async with self._asking:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            pid = int(await self._process.stdout.readline())
        replica = Replica(pid, port, log)
        self._born.append(replica)
        await replica.until_up()
        return replica

    @contextlib.asynccontextmanager
    async def running(self, environment: Mapping[str, str], *, name: str) -> AsyncGenerator[Replica]:
        """A replica for the block, ended politely."""
        replica = await self.start(environment, name=name)
        try:
            yield replica
        finally:
            await end(replica)

    async def clear(self) -> None:
        """Ends whatever is left."""
        for replica in self._born:
            if not await replica.ended(0):
                replica.send(signal.SIGKILL)
                replica.send(signal.SIGCONT)
        self._born.clear()


async def end(replica: Replica) -> None:
    """Ends a replica, politely first."""
    replica.send(signal.SIGCONT)
    replica.send(signal.SIGTERM)
    if not await replica.ended(_ENDED_WITHIN_S):
        replica.send(signal.SIGKILL)


@contextlib.asynccontextmanager
async def nursery(folder: Path) -> AsyncGenerator[Nursery]:
    """Starts the nursery, and ends it with all that came from it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLIMSOLL_", "CONTEXT_"))}
    path = os.pathsep.join(filter(None, [str(ROOT / "apps/api"), str(ROOT), kept.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "torture.nursery",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**kept, "PYTHONPATH": path},
    )
    own = Nursery(process, folder)
    try:
        yield own
    finally:
        await own.clear()
        assert process.stdin
        process.stdin.close()
        await process.wait()
