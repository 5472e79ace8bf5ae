"""What a process keeps in memory beside the database. Shares limit what is in use at one moment; quotas of use over
time are in `services/limits.py`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from app.core.fairness import FairGate, QueueFull, share_of
from app.db.claims import Claim
from app.db.database import Database
from app.domain.errors import InvalidRequest, PlimsollError, ProcessBusy, ShuttingDown, TenantBusy
from app.domain.types import SessionId, TenantId, TurnId

logger = logging.getLogger(__name__)

T = TypeVar("T")

COOLDOWN_S = 30.0
WARN_EVERY_S = 60.0
_RETRY_ELSEWHERE_AFTER_S = 1
BUSY_RETRY_S = 2
_MOST_WAITING = 64
"""Requests of one tenant that wait for a slot of heavy work; one more is refused at once."""
_LONGEST_WAIT_S = 20.0


class Leases:
    """The turns that this process runs now. Each has its own task, which continues if the client disconnects."""

    def __init__(self) -> None:
        # Keyed by session too: a forked turn has the same id in both sessions and may run in both at once.
        self._held: dict[tuple[SessionId, TurnId], tuple[Claim, asyncio.Task[Any]]] = {}

    def hold(self, claim: Claim, task: asyncio.Task[Any]) -> None:
        """Registers the claim, whose lease is renewed until the task is done."""
        self._held[claim.session_id, claim.turn_id] = (claim, task)
        task.add_done_callback(lambda done: self._release(claim, done))

    def _release(self, claim: Claim, task: asyncio.Task[Any]) -> None:
        key = (claim.session_id, claim.turn_id)
        held = self._held.get(key)
        if held is not None and held[1] is task:
            del self._held[key]
        with suppress(asyncio.CancelledError):  # the task forgets it, with the frames and the window that it refers to
            task.exception()  # marked as seen: the waiting caller gets it, or the turn's record has it

    def cancel(self, session_id: SessionId, *turn_ids: TurnId) -> list[asyncio.Task[Any]]:
        """Cancels the tasks of these turns, and returns those that run here; their end must be stored already."""
        keys = [(session_id, turn_id) for turn_id in turn_ids]
        tasks = [self._held[key][1] for key in keys if key in self._held]
        for task in tasks:
            task.cancel()
        return tasks

    def held(self) -> tuple[tuple[Claim, asyncio.Task[Any]], ...]:
        return tuple(self._held.values())

    async def drain(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running turns to end by themselves."""
        tasks = [task for _, task in self._held.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


def summary_task(session_id: SessionId) -> str:
    """The name of the background task that makes a session's summary."""
    return f"the summary of session {session_id}"


class Chores:
    """Background tasks that are running. If one is lost with its process, its work must be found due again later."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Runs the work in the background; an error that it raises is logged."""
        self._keep(asyncio.create_task(work, name=name))

    async def result_of(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """The result of the work, which goes on in the background if the caller is cancelled."""
        task = asyncio.create_task(work, name=name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._keep(task)
            raise
        finally:
            del task  # it refers to its error, whose traceback refers to this frame

    def runs(self, name: str) -> bool:
        return any(task.get_name() == name for task in self._tasks)

    def cancel(self, name: str) -> None:
        """Cancels the running tasks of this name, also one whose caller waits for its result or has just left it."""
        for task in asyncio.all_tasks():
            if task.get_name() == name:
                task.cancel()

    def _keep(self, task: asyncio.Task[Any]) -> None:
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
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running tasks to end, and cancels the others."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Cooldowns:
    """Models that this process does not call for a while after a failure: for the tenant whose call failed, and for all
    once calls of two tenants have failed, since it may be a tenant's request that fails. `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: dict[str, dict[TenantId | None, float]] = {}

    def rest(self, model_alias: str, tenant_id: TenantId | None = None) -> None:
        """Starts the cooldown of an alias that failed after its retries."""
        self._until[model_alias] = self._resting(model_alias) | {tenant_id: self._monotonic() + COOLDOWN_S}

    def is_resting(self, model_alias: str, tenant_id: TenantId | None = None) -> bool:
        resting = self._resting(model_alias)
        return tenant_id in resting or len(resting) > 1

    def awake(self, model_alias: str, fallbacks: Sequence[str], tenant_id: TenantId | None = None) -> tuple[str, ...]:
        """The alias and its fallbacks, in their order, that are not resting; the alias itself if all are."""
        aliases = (model_alias, *fallbacks)
        return tuple(alias for alias in aliases if not self.is_resting(alias, tenant_id)) or (model_alias,)

    def _resting(self, model_alias: str) -> dict[TenantId | None, float]:
        now = self._monotonic()
        return {tenant: until for tenant, until in self._until.get(model_alias, {}).items() if now < until}


class Warnings:
    """Of the warnings about one thing, one a minute is logged, so that no tenant fills the log with its turns. What
    they can be about is a closed set; `monotonic` is its clock in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def due(self, about: Hashable) -> int | None:
        """How many were left out since the last one was logged; None if this one is left out too."""
        now = self._monotonic()
        logged_at, left_out = self._logged.get(about, (-WARN_EVERY_S, 0))
        if now - logged_at < WARN_EVERY_S:
            self._logged[about] = (logged_at, left_out + 1)
            return None
        self._logged[about] = (now, 0)
        return left_out


class Drain:
    """How a process stops. `announced` makes `/readyz` answer 503, so that load balancers send no more requests;
    `closed` refuses new ones too. Neither affects requests that are already running."""

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
            raise ShuttingDown("This process is shutting down; nothing was stored.", _RETRY_ELSEWHERE_AFTER_S)
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def until_idle(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def close(self) -> None:
        """Refuses new requests from now on; a retry reaches another process."""
        self.announced = True
        self.closed = True


class Allowance:
    """An amount that requests share and get at once or not at all: event streams, bytes of bodies, of windows."""

    def __init__(self, what: str, total: int, tenant_ratio: float) -> None:
        self._what = what
        self._total = total
        self.per_tenant = share_of(total, tenant_ratio)
        self._all_taken = 0
        self._taken: dict[TenantId, int] = {}
        self._returned: deque[tuple[TenantId, int]] = deque()

    def take(self, tenant_id: TenantId, amount: int = 1) -> None:
        """Adds to what the tenant holds. Raises as `check`."""
        self.check(tenant_id, amount)
        self.count(tenant_id, amount)

    def check(self, tenant_id: TenantId, amount: int = 1) -> None:
        """Raises `ProcessBusy` if so much more would be over the total, and as `check_share`."""
        while self._returned:
            self.give_back(*self._returned.popleft())
        if self._all_taken + amount > self._total:
            raise ProcessBusy(f"This process has reached its limit of {self._what}.", BUSY_RETRY_S)
        self.check_share(tenant_id, amount)

    def check_share(self, tenant_id: TenantId, amount: int = 1) -> None:
        """Raises `TenantBusy` if so much more would be over the tenant's share."""
        if self._taken.get(tenant_id, 0) + amount > self.per_tenant:
            raise TenantBusy(f"Your tenant has reached its share of this process's {self._what}.", BUSY_RETRY_S)

    def count(self, tenant_id: TenantId, amount: int) -> None:
        """Adds to what the tenant holds, even over its share. What is over it takes no room from others."""
        before = self._taken.pop(tenant_id, 0)
        if taken := before + amount:
            self._taken[tenant_id] = taken
        self._all_taken += min(taken, self.per_tenant) - min(before, self.per_tenant)

    def give_back(self, tenant_id: TenantId, amount: int = 1) -> None:
        self.count(tenant_id, -amount)

    def give_back_later(self, tenant_id: TenantId, amount: int) -> None:
        """Gives back before the next `take`. Unlike `give_back`, it may be called on any thread, at any moment."""
        self._returned.append((tenant_id, amount))


class HeldBytes:
    """Bytes of one request. They are held until they are given back, or this object is no longer referred to."""

    def __init__(self, allowance: Allowance, tenant_id: TenantId) -> None:
        self._allowance = allowance
        self._tenant_id = tenant_id
        self._held = 0

    def take(self, size_bytes: int) -> None:
        """Adds to the bytes. Raises as `Allowance.take`."""
        self._allowance.take(self._tenant_id, size_bytes)
        self._held += size_bytes

    def give_back(self) -> None:
        """Gives back what is held. It can be called repeatedly."""
        held, self._held = self._held, 0
        self._allowance.give_back(self._tenant_id, held)

    def __del__(self) -> None:
        if self._held:
            self._allowance.give_back_later(self._tenant_id, self._held)


class WindowBytes(HeldBytes):
    """The bytes of messages, pins and instructions that were read for one window, held as long as they are."""

    def take(self, size_bytes: int) -> None:
        """Adds to the bytes. Raises as `Allowance.take`, and `InvalidRequest` if the window alone exceeds the share."""
        most = self._allowance.per_tenant
        if self._held + size_bytes > most:
            raise InvalidRequest(
                f"What this session's prompts are made of has more than {most} bytes. Fork the session through an "
                "earlier turn, remove pins, or delete its largest items (DELETE /v1/conversations/{id}/items/{item})."
            )
        super().take(size_bytes)


class HeavyWork:
    """Work that reads or writes whole sessions. It has its own connections, which only the holder of a slot may use, so
    turns never wait for a connection behind it."""

    def __init__(self, database: Database, tenant_ratio: float) -> None:
        self.database = database
        self._gate = FairGate(database.pool_size, share_of(database.pool_size, tenant_ratio), _MOST_WAITING)

    @asynccontextmanager
    async def slot(self, tenant_id: TenantId) -> AsyncGenerator[Database]:
        """A slot for one piece of work, with the database that it may use. Waiting tenants get slots in turn. Raises
        `TenantBusy` if the tenant has too much heavy work running and waiting, `ProcessBusy` if others have."""
        try:
            await self._gate.acquire(tenant_id, _LONGEST_WAIT_S)
        except QueueFull:
            raise TenantBusy("Your tenant has reached its share of this process's heavy work.", BUSY_RETRY_S) from None
        except TimeoutError:
            if self._gate.full_for(tenant_id):
                raise TenantBusy("Your tenant's other heavy work here did not end in time.", BUSY_RETRY_S) from None
            raise ProcessBusy("The heavy work of this process did not end in time.", BUSY_RETRY_S) from None
        try:
            yield self.database
        finally:
            self._gate.release(tenant_id)
