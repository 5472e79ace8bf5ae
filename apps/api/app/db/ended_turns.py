"""Turns that are ended from outside: cancelled, or lost with the worker that ran them."""

from __future__ import annotations

from uuid import UUID

from app.db.database import Transaction
from app.db.limits import GIVING_BACK, give_back_of_tenant
from app.db.sessions import locked_session
from app.db.sql import Statement, sql
from app.db.table_parts import OPEN_STATUSES_SQL
from app.domain.types import JsonObject, SessionId, TenantId, TurnId


def _ending(status: str, session: str, which: str, used: str) -> str:
    """Ends a session's open turns from outside. `session` says when its row is locked for it, `which` turns are meant,
    and `used` what becomes of what they have reserved: turns, tokens and usd."""
    return f"""
        WITH {locked_session(session)}, held AS (
            SELECT session_id, id, reservation FROM turns JOIN locked ON session_id = locked_id
            WHERE session_id = CAST(:session_id AS uuid) AND {which} FOR NO KEY UPDATE OF turns
        ), ended AS (
            UPDATE turns SET status = '{status}', fence = fence + 1, lease_expires_at = NULL,
                completed_at = statement_timestamp(), error = CAST(:error AS jsonb), reservation = NULL
            FROM held WHERE turns.session_id = CAST(:session_id AS uuid) AND turns.id = held.id
            RETURNING turns.id
        ), released AS (
            SELECT reservation, {used} FROM held WHERE reservation IS NOT NULL
        ), {GIVING_BACK}
        SELECT ended.id, released.* FROM ended LEFT JOIN released ON true
    """


# A model that was stopped in the middle is paid for, and nobody reports how much: what was reserved for it counts.
_ALL_USED = (
    "CAST(reservation ->> 'turns' AS bigint) AS turns, CAST(reservation ->> 'tokens' AS bigint) AS tokens,"
    " CAST(reservation ->> 'usd' AS numeric) AS usd"
)
_OPEN = f"status IN {OPEN_STATUSES_SQL}"
_CANCEL = sql(_ending("cancelled", "true", f"{_OPEN} AND id = CAST(:turn_id AS uuid)", _ALL_USED))
_COMPLETE = sql(_ending("completed", "true", "status = 'running' AND id = CAST(:turn_id AS uuid)", _ALL_USED))
_CANCEL_IN_SESSION = sql(_ending("cancelled", "tenant_id = :tenant_id", _OPEN, _ALL_USED))
_LOST = "status = 'running' AND lease_expires_at < statement_timestamp()"
_NOTHING_USED = "0 AS turns, 0 AS tokens, 0 AS usd"
# Every post that meets an open turn asks: the row is only waited for where there is something to end.
_HAS_LOST = f"EXISTS (SELECT FROM turns WHERE session_id = CAST(:session_id AS uuid) AND {_LOST})"
_LOSE = sql(_ending("failed", _HAS_LOST, _LOST, _NOTHING_USED))
_SESSIONS_WITH_LOST = sql(f"""
    SELECT DISTINCT session_id FROM turns WHERE {_LOST} AND session_id > CAST(:after_id AS uuid)
    ORDER BY session_id LIMIT CAST(:limit AS integer)
    """)

_CANCELLED: JsonObject = {"code": "turn_cancelled", "detail": "The turn was cancelled; the message is kept."}
_WORKER_LOST: JsonObject = {
    "code": "worker_lost",
    "detail": "The process that ran this turn stopped before it was done. The message is kept; the model is not asked "
    "again by itself.",
}


async def cancel_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> bool:
    """Ends a turn that waits or runs; false when it had ended before. Whoever runs it can no longer write."""
    return bool(await _end(tx, _CANCEL, session_id=session_id, turn_id=turn_id, error=_CANCELLED))


async def complete_answered_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> None:
    """Ends a turn whose calls have all been answered, and whose last word is theirs: the model gets no other round."""
    await _end(tx, _COMPLETE, session_id=session_id, turn_id=turn_id, error=None)


async def cancel_open_turns(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> list[TurnId]:
    """Ends what waits or runs in the tenant's session, as `cancel_turn` does; which turns that were."""
    return await _end(tx, _CANCEL_IN_SESSION, session_id=session_id, tenant_id=tenant_id, error=_CANCELLED)


async def fail_lost_turns(tx: Transaction, session_id: SessionId) -> int:
    """Ends the session's running turns whose lease is over; how many there were."""
    return len(await _end(tx, _LOSE, error=_WORKER_LOST, session_id=session_id))


async def _end(tx: Transaction, ending: Statement, **parameters: object) -> list[TurnId]:
    """Ends a session's open turn, of which there is one at most; which it was. Wants a transaction: what the tenant had
    reserved for it is settled by a second statement."""
    rows = await tx.fetch(ending, **parameters)
    for row in rows:
        if row["reservation"] is not None:
            await give_back_of_tenant(tx, {name: value for name, value in row.items() if name != "id"})
    return [TurnId(row["id"]) for row in rows]


async def sessions_with_lost_turns(tx: Transaction, after_id: UUID, limit: int) -> list[SessionId]:
    """Sessions behind the given one in which a turn's lease is over, in the order of their ids."""
    rows = await tx.fetch(_SESSIONS_WITH_LOST, after_id=after_id, limit=limit)
    return [SessionId(row["session_id"]) for row in rows]
