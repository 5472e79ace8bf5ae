"""What tenants share of a process, and how much of it one may hold: event streams, request bodies, heavy work.

These are caps on what is in hand at one moment; quotas of use are `services/limits/quotas.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from app.core.fairness import FairGate, QueueFull, share_of
from app.db.database import Database
from app.domain.errors import ProcessBusy, TenantBusy
from app.domain.types import TenantId

RETRY_AFTER_S = 2
_MOST_WAITING = 64
"""Requests of one tenant that wait for a slot of heavy work; one more is refused at once."""
_LONGEST_WAIT_S = 20.0


class Allowance:
    """An amount of something that is either had at once or refused: event streams, bytes of request bodies."""

    def __init__(self, what: str, total: int, tenant_ratio: float) -> None:
        self._what = what
        self._total = total
        self._per_tenant = share_of(total, tenant_ratio)
        self._all_taken = 0
        self._taken: Counter[TenantId] = Counter()

    def take(self, tenant_id: TenantId, amount: int = 1) -> None:
        """Adds to what the tenant holds. Raises `TenantBusy` over its share, `ProcessBusy` over the whole."""
        if self._all_taken + amount > self._total:
            raise ProcessBusy(f"This process has as many {self._what} in hand as it takes.", RETRY_AFTER_S)
        if self._taken[tenant_id] + amount > self._per_tenant:
            raise TenantBusy(f"Your requests hold as many {self._what} of this process as they may.", RETRY_AFTER_S)
        self._all_taken += amount
        self._taken[tenant_id] += amount

    def give_back(self, tenant_id: TenantId, amount: int = 1) -> None:
        """Takes away from what the tenant holds."""
        self._all_taken -= amount
        self._taken[tenant_id] -= amount
        if not self._taken[tenant_id]:
            del self._taken[tenant_id]


class HeavyWork:
    """Work that reads or writes whole sessions: fork, import, export, simulate, erase.

    It has connections of its own, which only who holds a slot may use; so turns never wait for one behind it.
    """

    def __init__(self, database: Database, tenant_ratio: float) -> None:
        self.database = database
        self._gate = FairGate(database.pool_size, share_of(database.pool_size, tenant_ratio), _MOST_WAITING)

    @asynccontextmanager
    async def slot(self, tenant_id: TenantId) -> AsyncGenerator[Database]:
        """One piece of work, with the database that it may use; it waits its turn, fair to other tenants.

        Raises `TenantBusy` when the tenant has too much of it running and waiting, `ProcessBusy` when others have.
        """
        try:
            await self._gate.acquire(tenant_id, _LONGEST_WAIT_S)
        except QueueFull:
            raise TenantBusy(
                "You have as much heavy work running and waiting here as you may.", RETRY_AFTER_S
            ) from None
        except TimeoutError:
            if self._gate.full_for(tenant_id):
                raise TenantBusy("Your other heavy work here takes longer than one waits.", RETRY_AFTER_S) from None
            raise ProcessBusy("The heavy work of this process takes longer than one waits.", RETRY_AFTER_S) from None
        try:
            yield self.database
        finally:
            self._gate.release(tenant_id)
