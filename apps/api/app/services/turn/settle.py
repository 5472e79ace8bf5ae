"""Transaction two of a turn, for as long as it makes sense to try: a reply that was paid for is not thrown away."""

from __future__ import annotations

import asyncio
import logging

from app.db.claims import Claim
from app.db.records import Settlement, settle_turn, settled_before
from app.domain.errors import DatabaseUnavailable, TurnLost
from app.domain.types import TurnRecord
from app.services.runtime import Runtime

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


async def settle(rt: Runtime, claim: Claim, settlement: Settlement, *, patience_s: float | None = None) -> TurnRecord:
    """Stores the end of the turn in one statement, and tries again while the database can not: for `patience_s`, by
    default a lease's time, after which the turn is no longer ours.

    It can not while it is away or out of something, and where it rolled the statement back for a lock or a conflict.

    A commit whose answer was lost on its way is found again and not made twice. Raises `TurnLost` when somebody else
    has ended the turn: nothing was written; `DatabaseUnavailable` when the database stayed away.
    """
    pause_s = _FIRST_PAUSE_S
    gives_up_at = asyncio.get_running_loop().time() + (rt.turn_lease_s if patience_s is None else patience_s)
    retried = False
    while True:
        try:
            async with rt.database.autocommit() as tx:
                turn = await settle_turn(tx, claim, settlement)
                if turn is None and retried:
                    turn = await settled_before(tx, claim)
        except DatabaseUnavailable as error:
            if asyncio.get_running_loop().time() + pause_s > gives_up_at:
                raise
            if not retried:
                logger.warning("a turn's end could not be stored (%s); trying on", error.detail)
            retried = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            continue
        if turn is None:
            raise TurnLost("Another process ended this turn while it ran here; nothing of this answer was stored.")
        return turn
