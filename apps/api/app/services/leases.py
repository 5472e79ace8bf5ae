"""Leases: a running turn is held by whoever renews it; a turn nobody renews any more ends as `worker_lost`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.db.turns import Claim, fail_lost_turns, renew_leases
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TurnId

if TYPE_CHECKING:
    from app.services.runtime import Runtime

logger = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3


class Leases:
    """The turns this process runs at the moment."""

    def __init__(self) -> None:
        self._held: dict[TurnId, Claim] = {}

    @contextmanager
    def held(self, claim: Claim) -> Generator[None]:
        """Has the claim renewed while the block runs."""
        self._held[claim.turn_id] = claim
        try:
            yield
        finally:
            del self._held[claim.turn_id]

    def claims(self) -> tuple[Claim, ...]:
        """What is held now."""
        return tuple(self._held.values())


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
