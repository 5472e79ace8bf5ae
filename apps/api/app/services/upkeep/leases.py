"""Leases: a running turn is held by whoever renews it; a turn nobody renews any more ends as `worker_lost`."""

from __future__ import annotations

import asyncio
from typing import Any

from app.db.claims import Claim, fail_lost_turns, sessions_with_lost_turns
from app.db.database import Database
from app.domain.types import SessionId, TurnId
from app.services.conflicts import retried


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

    def cancel(self, *turn_ids: TurnId) -> None:
        """Stops the turns' work if they run here; their end must have been stored before."""
        for turn_id in turn_ids:
            if turn_id in self._held:
                self._held[turn_id][1].cancel()

    def claims(self) -> tuple[Claim, ...]:
        """What is held now."""
        return tuple(claim for claim, _ in self._held.values())

    async def drain(self, timeout_s: float) -> None:
        """Waits for running turns to end by themselves."""
        tasks = [task for _, task in self._held.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


async def end_lost_turns(database: Database) -> int:
    """Ends all running turns whose lease is over, session by session; how many there were."""
    async with database.autocommit() as tx:
        sessions = await sessions_with_lost_turns(tx)
    lost = 0
    for session_id in sessions:
        lost += await _end_lost_turns_of(database, session_id)
    return lost


@retried
async def _end_lost_turns_of(database: Database, session_id: SessionId) -> int:
    async with database.autocommit() as tx:
        return await fail_lost_turns(tx, session_id)
