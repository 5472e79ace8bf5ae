"""Leases: a running turn is held by whoever renews it; a turn nobody renews any more ends as `worker_lost`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from app.db.claims import Claim, fail_lost_turns, renew_leases
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TurnId

if TYPE_CHECKING:
    from app.services.runtime import Runtime

logger = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3


class Leases:
    """The turns this process runs at the moment, each in a task of its own that no client's going away ends."""

    def __init__(self) -> None:
        self._held: dict[TurnId, tuple[Claim, asyncio.Task[Any]]] = {}

    def hold(self, claim: Claim, task: asyncio.Task[Any]) -> None:
        """Has the claim renewed until the task is done."""
        self._held[claim.turn_id] = (claim, task)
        task.add_done_callback(lambda done: self._release(claim, done))

    def _release(self, claim: Claim, task: asyncio.Task[Any]) -> None:
        held = self._held.get(claim.turn_id)
        if held is not None and held[1] is task:
            del self._held[claim.turn_id]
        if not task.cancelled():
            task.exception()  # told to whoever waits, or in the turn's record when nobody does any more

    def cancel(self, turn_id: TurnId) -> None:
        """Stops the turn's work if it runs here; its end must have been stored before."""
        held = self._held.get(turn_id)
        if held is not None:
            held[1].cancel()

    def claims(self) -> tuple[Claim, ...]:
        """What is held now."""
        return tuple(claim for claim, _ in self._held.values())

    async def drain(self, timeout_s: float) -> None:
        """Waits for running turns to end by themselves."""
        tasks = [task for _, task in self._held.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


async def renew_forever(rt: Runtime) -> None:
    """Renews what this process runs, three times a lease, in one statement."""
    while True:
        await asyncio.sleep(rt.turn_lease_s / _RENEWALS_PER_LEASE)
        claims = rt.leases.claims()
        if not claims:
            continue
        try:
            async with rt.database.autocommit() as tx:
                await renew_leases(tx, claims, rt.turn_lease_s)
        except DatabaseUnavailable:
            logger.warning("%d leases could not be renewed: the database can not be reached", len(claims))


async def sweep_forever(rt: Runtime) -> None:
    """Ends the turns of dead workers, once a lease, so that nobody has to post to a session to see it."""
    while True:
        await asyncio.sleep(rt.turn_lease_s)
        try:
            async with rt.database.autocommit() as tx:
                lost = await fail_lost_turns(tx)
        except DatabaseUnavailable:
            continue
        if lost:
            logger.warning("%d turns of lost workers were ended", lost)
