"""Heavy pure work (an import's checks and counts, a simulation) in separate processes, step by step: in the serving
process it would hold the interpreter for tens of milliseconds at a time, and delay every turn."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Generic, TypeVar, TypeVarTuple

from app.domain.errors import ProcessBusy
from app.services.heavy.child import GONE, RELEASE, Step, Tools, receive, send
from app.services.process_state import BUSY_RETRY_S

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
Given = TypeVarTuple("Given")

_START_S = 60.0
_IDLE_S = 300.0
"""Seconds for which an idle process is kept: the next job then saves the second that a start takes."""
_REAPED_WITHIN_S = 0.2
CPU_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
"""Linux' files with the processor time of a container, of cgroups 2 and 1: microseconds in each period, or no limit."""
_NO_QUOTA = ("max", "-1")


class Job(Generic[T]):
    """An object, perhaps in another process, whose methods are run one at a time."""

    def __init__(self, run: Callable[[Callable[..., Any], tuple[Any, ...]], Awaitable[Any]]) -> None:
        self._run = run

    async def do(self, method: Callable[[T, *Given], R], *given: *Given) -> R:
        """The method's result; it and the arguments must be picklable. In another process, `ProcessBusy` is raised if
        that has ended, and the job with it, and `JobFailed` for an error that is no `PlimsollError`."""
        return await self._run(method, given)


class HeavyJobs:
    """The child processes of this process, each lent to one job at a time. There are as many as jobs run at once, which
    `HeavyWork.slot` bounds. Without `own_processes`, all jobs run on threads."""

    def __init__(
        self,
        tools: Tools,
        *,
        own_processes: bool = True,
        idle_s: float = _IDLE_S,
        log_level: str = "INFO",
        log_format: str = "json",
    ) -> None:
        self._tools = tools
        self._own_processes = own_processes
        self._idle_s = idle_s
        self._log = (log_level, log_format)
        self._children: set[_Child] = set()
        self._idle: dict[_Child, asyncio.TimerHandle] = {}

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def has_room_for_two(self) -> bool:
        """Whether a job may be divided among two processes: no other job is at work, and there are several processors,
        of which the system gives this service no quota: two busy processes would use it up, and turns would wait."""
        if not self._own_processes or len(self._children) > len(self._idle):
            return False
        for quota in CPU_QUOTAS:
            with suppress(OSError):  # outside containers, and on other systems, there is none of them
                if not quota.read_text().startswith(_NO_QUOTA):
                    return False
        processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return processors > 1

    @property
    def idle_pids(self) -> list[int]:
        return [child.pid for child in self._idle]

    @asynccontextmanager
    async def job(self, kind: Callable[[Tools], T], *, small: bool = False) -> AsyncGenerator[Job[T]]:
        """A new job, which is released at the end of the block. A `small` one runs on a thread. If a step still runs at
        the end, because its caller was cancelled, its process is killed. Raises `ProcessBusy`."""
        if small or not self._own_processes:
            made = kind(self._tools)
            yield Job[T](lambda method, given: asyncio.to_thread(method, made, *given))
            return
        child = self._idle_child() or await self._started()
        try:
            await child.ask((kind, None))
            yield Job[T](lambda method, given: child.ask((method, given)))
        finally:
            if child.finish():
                self._idle[child] = asyncio.get_running_loop().call_later(self._idle_s, self._end, child)
            else:
                self._end(child)

    def close(self) -> None:
        for child in [*self._children]:
            self._end(child)

    def _idle_child(self) -> _Child | None:
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.is_alive():
                return child
            self._end(child)
        return None

    async def _started(self) -> _Child:
        child = _Child(*self._log)
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_S):
                await child.answer()
        except TimeoutError as error:
            self._end(child)
            raise child.gone() from error
        except BaseException:
            self._end(child)
            raise
        return child

    def _end(self, child: _Child) -> None:
        self._children.discard(child)
        if timer := self._idle.pop(child, None):
            timer.cancel()
        child.kill()


class _Child:
    """One child process, and this end of the socket to it."""

    def __init__(self, log_level: str, log_format: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._stream = self._socket.makefile("rwb")
        self._ready = False
        self._asked = True  # it answers once it is ready
        program = f"from app.services.heavy.child import main; main({log_level!r}, {log_format!r})"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with a program of our own
                [sys.executable, "-P", "-c", program], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, process_group=0
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, message: Step) -> Any:
        """The child's answer. Raises what the child raised, and `ProcessBusy` if it has ended."""
        self._asked = True
        await self._on_thread(send, message)
        return await self.answer()

    async def answer(self) -> Any:
        """The next answer, to a message or to the start."""
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._socket, arrived.set)
        try:
            await arrived.wait()  # no thread waits for as long as the child works
        finally:
            loop.remove_reader(self._socket)
            self._socket.setblocking(True)  # uvloop makes what it watches non-blocking
        value, error = await self._on_thread(receive)
        self._asked, self._ready = False, True
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return value

    async def _on_thread(self, transfer: Callable[[BufferedRWPair, *Given], R], *given: *Given) -> R:
        """Off the event loop: a turn may have tens of thousands of messages."""
        try:
            return await asyncio.to_thread(transfer, self._stream, *given)
        except GONE as error:
            raise self.gone() from error

    def gone(self) -> ProcessBusy:
        """Logs that the process has ended, and why; returns the error for the caller that waits for it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPED_WITHIN_S)
        what = "ended" if self._ready else "did not start (its own lines above say why)"
        logger.error("The process for heavy work %s: pid %d, exit code %s", what, self.pid, self._process.returncode)
        return ProcessBusy("The process that did this work here has ended; nothing was stored.", BUSY_RETRY_S)

    def finish(self) -> bool:
        """Makes it release its job. False if it has ended, or still runs a step that no caller waits for."""
        if self._asked:
            return False
        try:
            self._socket.send(RELEASE)  # a few bytes, and it has read all before them
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self._socket.close()
        self._process.kill()
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()  # a thread that still reads from the stream, or writes to it, then ends as well
        with suppress(OSError):  # what was not written yet has no reader
            self._stream.close()  # else the socket stays open until the next garbage collection
