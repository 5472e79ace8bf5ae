"""Statements that read turns, end them from outside (cancelled, or lost with their worker), and append turns with
history from elsewhere. `db/claims.py` and `db/records.py` write the turns that run."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.db import tables
from app.db.database import Fetched, PageBounds, Transaction, record_of
from app.db.driver import Record
from app.db.limits import GIVING_BACK, give_back_of_tenant
from app.db.messages import AS_STORED, NEWEST_CALLS, NOT_REJECTED, messages_from_rows
from app.db.sessions import (
    NEWEST_OF_TENANT,
    OF_TENANT,
    ON_ITS_NODE,
    insert_in_session,
    lock_session,
    locked_session,
)
from app.db.sql import OPEN_STATUSES_SQL, Statement, by_key, insert_row, listed, of_session, sql
from app.domain.content import tool_calls_from_json
from app.domain.errors import TurnCancelled, TurnLost, existing
from app.domain.frozen import frozen, names_of, values_of
from app.domain.stored import JsonText, ListedTurn, NewHistory
from app.domain.types import JsonObject, Message, SessionId, SessionRef, TenantId, TurnId, TurnRecord, TurnStatus

_LONG_CHARS = 1_024
"""Longest system prompt or tools of a request, in characters, that are stored in the turn's row."""
_LONG_PARTS = f"""(
        SELECT name, text, encode(sha256(convert_to(text, 'UTF8')), 'hex') AS sha256
        FROM jsonb_each_text(CAST(:request AS jsonb)) AS part (name, text)
        WHERE name IN ('instructions', 'tools') AND length(text) > {_LONG_CHARS}
    ) AS long"""
SHORT_REQUEST = f"""coalesce((
        SELECT CAST(:request AS jsonb) - array_agg(name) || jsonb_object_agg(name || '_sha256', sha256)
        FROM {_LONG_PARTS}), :request)"""
"""SQL expression: `:request` as `turns.request` has it. Clients send their system prompt and their tools with every
turn; long ones are stored once, as blocks like those that prompts refer to (`parts_of_request`, in the same
statement)."""
_PART = """coalesce((
        SELECT jsonb_build_object('{0}', {1}) FROM prompt_blocks b
        WHERE b.session_id = t.session_id AND b.sha256 = t.request ->> '{0}_sha256'), '{{}}')"""
WHOLE_REQUEST = f"""t.request - 'instructions_sha256' - 'tools_sha256'
    || {_PART.format("instructions", "b.content")} || {_PART.format("tools", "CAST(b.content AS jsonb)")} AS request"""
"""SQL expression: the request of the turn `t` as it was given. Older rows have its long parts in place."""


def is_stored_apart(request: JsonText | None) -> bool:
    """Whether the request may have a system prompt or tools that are stored as a block."""
    return request is not None and len(request) > _LONG_CHARS


def parts_of_request(source: str, created_at: str) -> str:
    """An INSERT of the long parts of `:request`; `source` is a FROM list of at most one row."""
    values = {"session_id": "sessions.id", "sha256": "long.sha256", "content": "long.text", "created_at": created_at}
    block = insert_row(tables.prompt_blocks, values, f"{source}, {_LONG_PARTS}, {ON_ITS_NODE}")
    return f"{block} ON CONFLICT DO NOTHING"


_STORED = tuple(name for name in names_of(TurnRecord) if name != "tool_calls")
TURN_COLUMNS = ", ".join(f"turns.{name}" for name in _STORED)
"""The columns of `turns` that `turn_record` reads."""
_COLUMNS = f"""
    {", ".join(f"t.{name}" for name in _STORED)},
    CASE WHEN t.status = 'awaiting_tools' THEN {NEWEST_CALLS} END AS tool_calls
"""

_FOUND = f"""
    SELECT {_COLUMNS}, t.request_sha256 FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE s.id = :session_id AND s.tenant_id = :tenant_id
"""
_GET = sql(f"{_FOUND} AND t.id = :turn_id")
_BY_KEY = sql(f"{_FOUND} AND t.idempotency_key = :idempotency_key")
_MOST_SESSIONS = 2_000
"""Most sessions, the newest ones, that are looked through for one that began with a request."""
_BEGUN_BY = sql(f"""
    SELECT {_COLUMNS}, t.conversation_sha256
    FROM (
        SELECT id, last_turn_seq FROM sessions
        WHERE {OF_TENANT} AND id > :after_id AND external_id IS NULL AND idempotency_key IS NULL
        ORDER BY {NEWEST_OF_TENANT} LIMIT {_MOST_SESSIONS}
    ) s JOIN turns t ON t.session_id = s.id AND t.seq = s.last_turn_seq
    WHERE t.request_sha256 = :request_sha256 AND t.status <> 'rejected'
    ORDER BY s.id DESC LIMIT :limit
    """)
# A subquery for each field: the nodes of a Citus cluster can not plan a lateral join for all values of the parameters.
_OF_USER = """(
        SELECT m.{} FROM messages m WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'user'
        ORDER BY m.seq LIMIT 1)"""
_LISTED = f"""{_COLUMNS}, {_OF_USER.format("name")} AS name,
    coalesce({_OF_USER.format("said_at")}, t.created_at) AS said_at"""
_SIZED = ("user_input", "assistant_output", "error", "tool_calls")
_PAGES = listed(_LISTED, "turns t WHERE t.session_id = :session_id", "t.seq", _SIZED)

_NUMBERS = sql(f"SELECT t.id, t.seq FROM {by_key('turns', 't', 'id', 'CAST(:turn_ids AS uuid[])')}")


async def turn_numbers(tx: Transaction, session_id: SessionId, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
    rows = await tx.fetch(_NUMBERS, session_id=session_id, turn_ids=turn_ids)
    return {TurnId(row["id"]): row["seq"] for row in rows}


async def get_turn(tx: Transaction, session: SessionRef, turn_id: TurnId) -> TurnRecord | None:
    return await tx.fetch_record(turn_record, _GET, **of_session(session), turn_id=turn_id)


async def turn_by_key(tx: Transaction, session: SessionRef, idempotency_key: str) -> tuple[TurnRecord, str] | None:
    """The turn that was posted with an idempotency key, and the hash of its request."""
    row = await tx.fetchrow(_BY_KEY, **of_session(session), idempotency_key=idempotency_key)
    return (turn_record(row), row["request_sha256"]) if row else None


async def turns_begun_by(
    tx: Transaction, tenant_id: TenantId, request_sha256: str, *, after_id: UUID, limit: int
) -> list[tuple[TurnRecord, bytes | None]]:
    """The last turns of the tenant's newest unnamed sessions with an id above `after_id`, newest session first, if they
    came from this request and were not rejected; and the digests of their lists, which a running turn does not have
    yet."""
    rows = await tx.fetch(_BEGUN_BY, tenant_id=tenant_id, request_sha256=request_sha256, after_id=after_id, limit=limit)
    return [(turn_record(row), row["conversation_sha256"]) for row in rows]


async def page_of_turns(tx: Transaction, session_id: SessionId, bounds: PageBounds[int]) -> Fetched[ListedTurn]:
    return await tx.fetch_between(_listed, _PAGES, bounds, session_id=session_id)


def _listed(row: Record) -> ListedTurn:
    return record_of(ListedTurn, row, **_decoded(row))


def turn_record(row: Record) -> TurnRecord:
    """Converts a row with `TURN_COLUMNS` to a `TurnRecord`, with the calls of its `tool_calls`, if it has these."""
    return record_of(TurnRecord, row, **_decoded(row))


def _decoded(row: Record) -> JsonObject:
    return {"status": TurnStatus(row["status"]), "tool_calls": tool_calls_from_json(row.get("tool_calls"))}


def _ending(status: str, session: str, which: str, used: str) -> str:
    """SQL that ends open turns of a session from outside. `session` is the condition for locking its row, `which`
    selects the turns, and `used` has the turns, tokens and usd that count as used of their reservations."""
    return f"""
        WITH {locked_session(session)}, held AS (
            SELECT session_id, id, reservation FROM turns JOIN locked ON session_id = locked_id
            WHERE session_id = :session_id AND {which} FOR NO KEY UPDATE OF turns
        ), ended AS (
            UPDATE turns SET status = '{status}', fence = fence + 1, lease_expires_at = NULL,
                completed_at = statement_timestamp(), error = :error, reservation = NULL
            FROM held WHERE turns.session_id = :session_id AND turns.id = held.id
            RETURNING turns.id
        ), released AS (
            SELECT reservation, {used} FROM held
        ), {GIVING_BACK}
        SELECT ended.id, released.* FROM ended, released
    """


# A call that was stopped midway is paid for, but its usage is not reported: the whole reservation counts as used.
_ALL_USED = (
    "CAST(reservation ->> 'turns' AS bigint) AS turns, CAST(reservation ->> 'tokens' AS bigint) AS tokens,"
    " CAST(reservation ->> 'usd' AS numeric) AS usd"
)
_OPEN = f"status IN {OPEN_STATUSES_SQL}"
_OURS = "tenant_id = :tenant_id"
_CANCEL = sql(_ending("cancelled", _OURS, f"{_OPEN} AND id = :turn_id", _ALL_USED))
_COMPLETE = sql(_ending("completed", "true", "status = 'running' AND id = :turn_id", _ALL_USED))
_CANCEL_IN_SESSION = sql(_ending("cancelled", _OURS, _OPEN, _ALL_USED))
_LOST = "status = 'running' AND lease_expires_at < statement_timestamp()"
_NOTHING_USED = "0 AS turns, 0 AS tokens, 0 AS usd"
# Every post that meets an open turn runs this, so it waits for the session's row only if there is a turn to end.
_HAS_LOST = f"EXISTS (SELECT FROM turns WHERE session_id = :session_id AND {_LOST})"
_LOSE = sql(_ending("failed", _HAS_LOST, _LOST, _NOTHING_USED))
_LOSE_UNACKNOWLEDGED = sql(
    _ending("failed", "true", "status = 'running' AND fence = 1 AND id = :turn_id", _NOTHING_USED)
)
_SESSIONS_WITH_LOST = sql(f"""
    SELECT DISTINCT session_id FROM turns WHERE {_LOST} AND session_id > :after_id ORDER BY session_id LIMIT :limit
    """)

_CANCELLED = TurnCancelled("The turn was cancelled; the message is kept.").stored()
_WORKER_LOST = TurnLost(
    "The process that ran this turn stopped before it was done. The message is kept; the model is not asked again by "
    "itself."
).stored()


async def cancel_turn(tx: Transaction, session: SessionRef, turn_id: TurnId) -> bool:
    """Cancels an open turn of the tenant's session; false when it had ended before, or is not there. The process that
    runs it can no longer write to it."""
    return bool(await _end(tx, _CANCEL, **of_session(session), turn_id=turn_id, error=_CANCELLED))


async def complete_answered_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> None:
    """Completes a running turn whose tool calls all have outputs: these are its end, the model is not called again."""
    await _end(tx, _COMPLETE, session_id=session_id, turn_id=turn_id, error=None)


async def cancel_open_turns(tx: Transaction, session: SessionRef) -> list[TurnId]:
    """Cancels the open turns of the tenant's session, as `cancel_turn` does; returns their ids."""
    return await _end(tx, _CANCEL_IN_SESSION, **of_session(session), error=_CANCELLED)


async def fail_lost_turns(tx: Transaction, session_id: SessionId) -> int:
    """Fails the session's running turns whose lease has expired; returns how many there were."""
    return len(await _end(tx, _LOSE, error=_WORKER_LOST, session_id=session_id))


async def fail_unacknowledged_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> int:
    """Fails a new turn, if it is stored: the process that claimed it got no answer to its commit and does not run it. A
    later round of a turn is left, as another request may have claimed it instead. Returns how many turns it ended. The
    caller has locked the session, else a commit that is going on is not seen."""
    return len(await _end(tx, _LOSE_UNACKNOWLEDGED, session_id=session_id, turn_id=turn_id, error=_WORKER_LOST))


async def _end(tx: Transaction, ending: Statement, **parameters: object) -> list[TurnId]:
    """Ends a session's open turn (there is at most one) and returns its id. Needs a transaction, because a second
    statement settles what the tenant had reserved for the turn."""
    rows = await tx.fetch(ending, **parameters)
    for row in rows:
        if row["reservation"] is not None:
            await give_back_of_tenant(tx, {name: value for name, value in row.items() if name != "id"})
    return [TurnId(row["id"]) for row in rows]


async def sessions_with_lost_turns(tx: Transaction, after_id: UUID, limit: int) -> list[SessionId]:
    """Sessions with an id above `after_id` in which a turn's lease has expired, in the order of their ids."""
    rows = await tx.fetch(_SESSIONS_WITH_LOST, after_id=after_id, limit=limit)
    return [SessionId(row["session_id"]) for row in rows]


_NEWEST = sql("""
    SELECT s.last_message_seq, s.last_turn_seq, s.past_version, t.id AS turn_id, t.status, t.request_sha256
    FROM sessions s LEFT JOIN LATERAL (
        SELECT id, status, coalesce((
            SELECT r.request_sha256 FROM responses r WHERE r.session_id = turns.session_id AND r.turn_id = turns.id
            ORDER BY r.reply_seq DESC LIMIT 1), request_sha256) AS request_sha256
        FROM turns
        WHERE session_id = s.id AND status <> 'rejected' ORDER BY seq DESC LIMIT 1
    ) t ON true WHERE s.id = :session_id AND s.tenant_id = :tenant_id
    """)

# First by the size as it is stored, which is known without reading what is stored apart from the row.
_TAIL = sql(f"""
    SELECT {AS_STORED} FROM (
        SELECT m.*, sum(octet_length(CAST(m.content AS text))) OVER (ORDER BY m.seq DESC) AS through_bytes FROM (
            SELECT m.*, sum(pg_column_size(m.content)) OVER (ORDER BY m.seq DESC) AS through_stored_bytes FROM (
                SELECT m.* FROM messages m
                WHERE m.session_id = :session_id AND NOT m.withdrawn AND {NOT_REJECTED}
                ORDER BY m.seq DESC LIMIT :limit
            ) m
        ) m WHERE coalesce(m.through_stored_bytes, 0) <= :most_bytes
    ) m WHERE coalesce(m.through_bytes, 0) <= :most_bytes ORDER BY m.seq DESC
    """)

# `seq` of the new rows counts from 1; the session's counters are raised under its lock.
_NEW_TURNS = {
    "seq": "s.turns_before + x.seq",
    "completed_at": "CASE WHEN x.status <> 'awaiting_tools' THEN clock.at END",
}
_TURNS = insert_in_session(tables.turns, "turns", "s", _NEW_TURNS, without=("fence",))
_NEW_MESSAGES = {"seq": "s.messages_before + x.seq"}
_MESSAGES = insert_in_session(tables.messages, "messages", "s", _NEW_MESSAGES, without=("withdrawn",))
_APPEND = sql(f"""
    WITH s AS (
        UPDATE sessions
        SET last_turn_seq = last_turn_seq + :turn_count, last_message_seq = last_message_seq + :message_count,
            updated_at = statement_timestamp()
        WHERE id = :session_id AND tenant_id = :tenant_id
        RETURNING id, last_turn_seq - :turn_count AS turns_before, last_message_seq - :message_count AS messages_before
    ), t AS (
        {_TURNS}
    ), m AS (
        {_MESSAGES}
    )
    SELECT id FROM s
    """)


@frozen
class Newest:
    """The state of a session: the last assigned numbers, the version of its past, and its newest turn that was not
    rejected, if any, with the hash of its last response's request, or of the request that posted it if it has none."""

    last_message_seq: int
    last_turn_seq: int
    past_version: int
    turn_id: TurnId | None
    status: TurnStatus | None
    request_sha256: str | None


async def newest_of(tx: Transaction, session: SessionRef, *, lock: bool = False) -> Newest | None:
    """The state of the tenant's session, or None. `lock` locks the session's row until the transaction ends."""
    if lock:  # separately, because a statement that waits for a lock reads everything else as it was before the wait
        await lock_session(tx, session)
    row = await tx.fetchrow(_NEWEST, **of_session(session))
    if row is None:
        return None
    return record_of(Newest, row, status=TurnStatus(row["status"]) if row["status"] else None)


async def newest_messages(tx: Transaction, session_id: SessionId, limit: int, most_bytes: int) -> list[Message]:
    """The newest messages in time order, without withdrawn ones and those of rejected turns: at most `limit`, whose
    contents have at most `most_bytes` together. Yields to other tasks."""
    rows = await tx.fetch(_TAIL, session_id=session_id, limit=limit, most_bytes=most_bytes)
    rows.reverse()
    return await messages_from_rows(rows)


async def append_history(tx: Transaction, session: SessionRef, history: Sequence[NewHistory]) -> None:
    """Adds turns at the session's end under its lock. Raises `NotFound`, and `UniqueViolated` when one of them is open
    and the session already has an open turn."""
    for part in history:
        existing(await tx.fetchrow(_APPEND, **of_session(session), **values_of(part, "last_turn_id")), "session")
