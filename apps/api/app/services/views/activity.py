"""Events of a tenant's turns for its followers, from one poll of the database for the whole process, while a client
follows. Why it does not LISTEN: docs/decisions/0013-inspector-page.md."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Generator, Set
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from app.db.database import record_of
from app.db.driver import Record
from app.db.figures import changed_turns, open_turns
from app.domain.errors import DatabaseUnavailable, ProcessBusy, TooManyStreams
from app.domain.figures import TurnChange
from app.domain.types import OPEN_STATUSES, TenantId, TurnStatus
from app.services.process_state import Allowance
from app.services.runtime import Runtime

logger = logging.getLogger(__name__)

MOST_OPEN_TURNS = 200
_STREAMS_END_WITHIN_S = 30
"""Suggested retry delay when a process has no free stream. Another process may have one at once."""
_MOST_WAITING = 256
_MOST_ROWS = 5000
_MOST_WATCHED = 5000
"""Turns that wait for tools and whose end is an event: those of clients that never come back wait for ever."""
_COMMITS_WITHIN_S = 5.0
"""Added to the period that a poll reads: a turn becomes visible at its commit, which is later than its timestamp."""


@dataclass(slots=True, eq=False)
class Follower:
    """One listener. `missed` is set when events were lost: there were too many at once, or a poll failed."""

    tenant_id: TenantId
    events: asyncio.Queue[TurnChange] = field(default_factory=lambda: asyncio.Queue[TurnChange](_MOST_WAITING))
    missed: bool = False

    def deliver(self, event: TurnChange) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self.missed = True


class Activity:
    """The followers of a process and the one poll that serves them all."""

    def __init__(self, streams: Allowance, poll_s: float = 1.0) -> None:
        self._streams = streams
        self._poll_s = poll_s
        self._followers: set[Follower] = set()
        self._known: dict[tuple[UUID, UUID], Record] = {}
        self._polling: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, rt: Runtime, tenant_id: TenantId) -> Generator[Follower]:
        """Delivers the events of the tenant's turns until the block ends. Raises `TenantBusy`, `TooManyStreams`."""
        try:
            self._streams.take(tenant_id)
        except ProcessBusy as error:
            raise TooManyStreams(error.detail, _STREAMS_END_WITHIN_S) from None
        follower = Follower(tenant_id)
        self._followers.add(follower)
        if self._polling is None:
            # Without the context of a request: it continues for other followers when the first one's request ends.
            self._polling = asyncio.create_task(self._poll_forever(rt), name="activity", context=Context())
        try:
            yield follower
        finally:
            self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._streams.give_back(follower.tenant_id)
        if not self._followers and self._polling is not None:
            self._polling.cancel()
            self._polling = None
            self._known.clear()

    async def open_turns(self, rt: Runtime, tenant_id: TenantId) -> list[TurnChange]:
        """The tenant's turns that run or wait for tools, newest first, at most `MOST_OPEN_TURNS`. They are watched from
        now on, so that followers get the event of their end."""
        rows = await rt.database.run(open_turns, tenant_id, MOST_OPEN_TURNS)
        if self._polling is not None:
            for row in rows:
                self._known.setdefault(_key(row), row)
        return [record_of(TurnChange, row) for row in rows]

    async def _poll_forever(self, rt: Runtime) -> None:
        last = monotonic()
        while True:
            await asyncio.sleep(self._poll_s)
            began = monotonic()
            try:
                await self._poll(rt, within_s=began - last + _COMMITS_WITHIN_S)
            except DatabaseUnavailable:
                self._miss_some(self._tenants())
                continue
            except Exception:
                logger.exception("the poll of what turns do broke")
                self._miss_some(self._tenants())
            last = began

    def _tenants(self) -> Set[TenantId]:
        return {follower.tenant_id for follower in self._followers}

    async def _poll(self, rt: Runtime, within_s: float) -> None:
        asked, tenants = self._known.copy(), self._tenants()
        followed = {key: row for key, row in asked.items() if row["tenant_id"] in tenants}
        watched = {key: row["status"] for key, row in followed.items() if row["status"] in OPEN_STATUSES}
        rows = await rt.database.run(changed_turns, sorted(tenants), watched, within_s=within_s, limit=_MOST_ROWS)
        waiting = [key for key, status in watched.items() if status == TurnStatus.AWAITING_TOOLS]
        # Turns that were listed during the statement may have begun long before: the next one asks for them.
        before, listed = self._known, {key: row for key, row in self._known.items() if key not in asked}
        self._known = {key: asked[key] for key in waiting[-_MOST_WATCHED:]} | listed | {_key(row): row for row in rows}
        # Every tenant's rows before the last place are there; of its next ones some may not have fitted in.
        last_place = rows[-1]["place"] if len(rows) == _MOST_ROWS else math.inf
        self._miss_some({row["tenant_id"] for row in rows if row["place"] >= last_place - 1})
        delivered = Counter[TenantId]()
        for row in rows:
            known, tenant_id = before.get(_key(row)), row["tenant_id"]
            if known is not None and known["status"] == row["status"]:
                continue
            delivered[tenant_id] += 1
            if delivered[tenant_id] <= _MOST_WAITING:
                self._deliver(row)
                await asyncio.sleep(0)
        self._miss_some({tenant_id for tenant_id, events in delivered.items() if events > _MOST_WAITING})

    def _miss_some(self, tenants: Set[TenantId]) -> None:
        for follower in self._followers:
            follower.missed |= follower.tenant_id in tenants

    def _deliver(self, row: Record) -> None:
        event = record_of(TurnChange, row)
        for follower in self._followers:
            if follower.tenant_id == row["tenant_id"]:
                follower.deliver(event)


async def next_event(follower: Follower, within_s: float) -> TurnChange | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await follower.events.get()
    return None


def _key(row: Record) -> tuple[UUID, UUID]:
    """The ids of session and turn: the turns of a fork have the same ids as those of its source."""
    return row["session_id"], row["turn_id"]
