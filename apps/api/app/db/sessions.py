"""Statements on `sessions`, by what a client finds its own again (the messages that it resends, or its own name for
it), and on `pins`. Every one names the tenant: another's session is no session.

The order in which rows are locked, which is what keeps writers of a session from waiting for each other in a circle.

1. The session's row, by whoever writes anything of the session, in its transaction's first statement that locks. Those
   who decide on what is stored, or end a turn, take it `FOR NO KEY UPDATE` (an UPDATE of it does the same); who only
   adds rows that no decision depends on (pins, counts) takes it `FOR KEY SHARE`; who erases takes it `FOR UPDATE`.
2. The turn's row, and other rows of the session.
3. The tenant's usage rows, by span; then the session's. Nothing is waited for after them.

A foreign key's own `FOR KEY SHARE` is no substitute for the first step: it comes at the end of a statement, and where
the row was changed between its look and its lock it waits for whoever changes it next, whatever lock that one holds.

Nobody waits for rows of two sessions: who erases several, and who renews a lease, skips those that are locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args
from uuid import UUID

from app.db.database import Record, Transaction, record_of
from app.db.sql import binds, in_both_orders, insert_row, of_session, sql
from app.db.tables import pins, sessions
from app.domain.stored import names_of, values_of
from app.domain.types import Pin, Session, SessionId, SessionRef, SessionState, TenantId, TurnId

_COLUMNS = ", ".join(names_of(Session))
STATE_COLUMNS = names_of(SessionState)
_OURS = "id = :session_id AND tenant_id = :tenant_id"
CHANGEABLE = ("model_alias", "mode", "agent_role", "room_goal", "instructions", "policy", "metadata", "limits")
"""Fields of a session that a request may set."""
_SET = binds(*CHANGEABLE)

_NEW = insert_row(sessions, {"id": ":session_id", **binds("tenant_id"), **_SET})
_INSERT = sql(f"{_NEW} RETURNING {_COLUMNS}")
_GET = sql(f"SELECT {_COLUMNS} FROM sessions WHERE {_OURS}")
_GET_LOCKED = sql(f"SELECT {_COLUMNS} FROM sessions WHERE {_OURS} FOR NO KEY UPDATE")
_EXISTS = sql(f"SELECT id FROM sessions WHERE {_OURS}")
_COUNTED = ("last_turn_seq", "last_message_seq", *(name for name in STATE_COLUMNS if name not in names_of(Session)))
_PROMPT_VIEW = sql(f"SELECT {_COLUMNS}, {', '.join(_COUNTED)} FROM sessions WHERE {_OURS}")
_UPDATE = sql(f"""
    UPDATE sessions SET {", ".join(f"{name} = {value}" for name, value in _SET.items())},
        updated_at = statement_timestamp()
    WHERE {_OURS} RETURNING {_COLUMNS}
    """)
_PAGES = in_both_orders(f"""
    SELECT {_COLUMNS} FROM sessions WHERE tenant_id = :tenant_id AND id {{beyond}} :position
    ORDER BY id {{order}} LIMIT :limit
    """)
_LIST_OF = sql(f"""
    SELECT {_COLUMNS} FROM sessions WHERE tenant_id = :tenant_id AND id = ANY(:session_ids)
    ORDER BY id DESC
    """)

NamedBy: TypeAlias = Literal["idempotency_key", "external_id"]
"""What finds a session beside its id: the key of the request that made it, or a client's own name for it."""
_NAMED_BY: tuple[NamedBy, ...] = get_args(NamedBy)
# Held to the end of the transaction, so that of two requests with one key, or one name, the second finds what the first
# made. No unique index does it: sessions can be distributed by their id alone.
_LOCK_NAME = {
    column: sql(f"SELECT pg_advisory_xact_lock(hashtextextended(CAST(:tenant_id || ' ' || :name AS text), {seed}))")
    for seed, column in enumerate(_NAMED_BY)
}
_BY_NAME = {
    column: sql(f"SELECT id FROM sessions WHERE tenant_id = :tenant_id AND {column} = :name ORDER BY id LIMIT 1")
    for column in _NAMED_BY
}
_NAME = {column: sql(f"UPDATE sessions SET {column} = :name, erase_after = NULL WHERE {_OURS}") for column in _NAMED_BY}

_ERASE_LATER = sql("""
    UPDATE sessions SET erase_after = statement_timestamp() + make_interval(secs => :seconds)
    WHERE id = :session_id
    """)


FIRST_INPUT_CHARS = 200
"""Of the first message, as a title for people: the first that was answered and is more than a greeting, if one of a
session's first five is."""

FIRST_INPUT = f"""
    SELECT left(t.user_input, {FIRST_INPUT_CHARS}) AS first_input FROM turns t
    WHERE t.session_id = s.id AND t.seq <= 5
    ORDER BY t.status = 'completed' AND length(t.user_input) > 15 DESC, t.seq LIMIT 1
"""

_HORIZON = sql("""
    SELECT id FROM sessions WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC OFFSET :most LIMIT 1
    """)

_SEARCH = sql(f"""
    SELECT s.id FROM sessions s LEFT JOIN LATERAL ({FIRST_INPUT}) first ON true
    WHERE s.tenant_id = :tenant_id AND s.id < :before
        AND (CAST(:horizon AS uuid) IS NULL OR s.id >= :horizon)
        AND strpos(lower(concat_ws(' ', s.id, s.room_goal, s.mode, s.agent_role, s.model_alias, s.metadata,
            first.first_input)), lower(:words)) > 0
    ORDER BY s.id DESC LIMIT :limit
    """)

ON_ITS_NODE = "sessions WHERE sessions.id = :session_id"
"""For the end of an INSERT … SELECT whose `session_id` is `sessions.id`: by it Citus knows that all of it is on the
session's node. Without it, or with a default that is volatile, rows are collected and spread over all nodes."""


def locked_session(condition: str = "true") -> str:
    """A CTE `locked` with the session's id as `locked_id`: the row of `:session_id`, held to the transaction's end.

    A statement that joins it to what it writes locks nothing before it. It has no row where `condition` does not hold.
    """
    return f"""
        locked AS (
            SELECT id AS locked_id FROM sessions
            WHERE id = :session_id AND {condition} FOR NO KEY UPDATE
        )
    """


async def insert_session(tx: Transaction, session: SessionRef, values: Mapping[str, object]) -> Session:
    """Stores a new session with a value for each of `CHANGEABLE`, and gives it back with the database's instants."""
    row = await tx.fetchrow(_INSERT, **of_session(session), **{name: values[name] for name in CHANGEABLE})
    return Session(**cast(Record, row))  # an INSERT … RETURNING gives its row or raises


async def get_session(tx: Transaction, session: SessionRef, *, lock: bool = False) -> Session | None:
    """The tenant's session, or None. `lock` holds the row until the transaction ends."""
    return await tx.fetch_record(Session, _GET_LOCKED if lock else _GET, **of_session(session))


async def session_exists(tx: Transaction, session: SessionRef) -> bool:
    return await tx.fetchrow(_EXISTS, **of_session(session)) is not None


async def get_prompt_view(tx: Transaction, session: SessionRef) -> Record | None:
    """The session's row with the counters that a prompt depends on, without a lock."""
    return await tx.fetchrow(_PROMPT_VIEW, **of_session(session))


def state_of(row: Record) -> SessionState:
    """What a prompt depends on, of a row that has the columns of `STATE_COLUMNS`."""
    return record_of(SessionState, row)


async def named_session(
    tx: Transaction, tenant_id: TenantId, by: NamedBy, name: str, *, lock: bool
) -> SessionId | None:
    """The tenant's session of this name, or None. With `lock` nobody else who locks it looks the name up, or gives it,
    until the transaction ends."""
    if lock:
        await tx.fetchrow(_LOCK_NAME[by], tenant_id=tenant_id, name=name)
    return await tx.fetchval(_BY_NAME[by], tenant_id=tenant_id, name=name)


async def name_session(tx: Transaction, session: SessionRef, by: NamedBy, name: str) -> None:
    """Gives the session a name, under which it is found, and keeps it."""
    await tx.execute(_NAME[by], **of_session(session), name=name)


async def list_sessions(
    tx: Transaction, tenant_id: TenantId, position: UUID, limit: int, *, newest_first: bool
) -> list[Session]:
    """The tenant's sessions with an id below `position`, newest first; or those above it, oldest first."""
    return await tx.fetch_records(Session, _PAGES[newest_first], tenant_id=tenant_id, position=position, limit=limit)


async def sessions_of(tx: Transaction, tenant_id: TenantId, session_ids: Sequence[SessionId]) -> list[Session]:
    """Those of the sessions that are the tenant's, newest first."""
    return await tx.fetch_records(Session, _LIST_OF, tenant_id=tenant_id, session_ids=list(session_ids))


async def update_session(tx: Transaction, tenant_id: TenantId, session: Session) -> Session | None:
    """Writes the session's changeable fields; None when it is gone."""
    new = {name: getattr(session, name) for name in CHANGEABLE}
    return await tx.fetch_record(Session, _UPDATE, session_id=session.id, tenant_id=tenant_id, **new)


async def erase_later(tx: Transaction, session_id: SessionId, seconds: float) -> None:
    """Has the session erased after so long, should nobody have done it before."""
    await tx.execute(_ERASE_LATER, session_id=session_id, seconds=seconds)


async def search_sessions(
    tx: Transaction, tenant_id: TenantId, words: str, *, before: UUID, limit: int, most_looked_through: int
) -> tuple[list[SessionId], UUID | None]:
    """Ids of the tenant's sessions that have the words in their id, goal, labels, metadata or first message.

    Newest first, of the `most_looked_through` newest with an id below `before`; the second value is where to go on
    looking, None when all have been looked through.
    """
    horizon = await tx.fetchval(_HORIZON, tenant_id=tenant_id, before=before, most=most_looked_through - 1)
    rows = await tx.fetch(_SEARCH, tenant_id=tenant_id, before=before, horizon=horizon, words=words, limit=limit)
    return [SessionId(row["id"]) for row in rows], horizon


# Of several sessions with the same past (forks), the one that has been sent the same request, where this is a retry;
# then the one that it is the whole past of; then the oldest.
_BY_LIST = sql("""
    SELECT t.session_id, t.id AS turn_id, s.last_turn_seq, since.turns = 0 AS is_last, since.is_repeated
    FROM turns t JOIN sessions s ON s.id = t.session_id CROSS JOIN LATERAL (
        SELECT count(*) AS turns,
            coalesce(bool_or(n.request_sha256 = :request_sha256), false) AS is_repeated
        FROM turns n
        WHERE n.session_id = t.session_id AND n.seq > t.seq AND n.status IN ('running', 'awaiting_tools', 'completed')
    ) since
    WHERE t.conversation_sha256 = ANY(:digests) AND s.tenant_id = :tenant_id
        AND t.status IN ('completed', 'awaiting_tools')
    ORDER BY array_position(:digests, t.conversation_sha256), is_repeated DESC, is_last DESC,
        t.session_id
    LIMIT 1
    """)


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """The newest turn that a list of messages goes on from. `is_last` is false where its session has gone on already;
    `is_repeated` is true where it went on with the request that is repeated."""

    session_id: SessionId
    turn_id: TurnId
    last_turn_seq: int
    is_last: bool
    is_repeated: bool


async def turn_of_list(
    tx: Transaction, tenant_id: TenantId, digests: Sequence[bytes], request_sha256: str | None
) -> KnownTurn | None:
    """The tenant's turn that ends with the first of these digests that any has, or None. `request_sha256` is the hash
    of a request that may be a retry."""
    return await tx.fetch_record(
        KnownTurn, _BY_LIST, tenant_id=tenant_id, digests=list(digests), request_sha256=request_sha256
    )


_PIN_COLUMNS = ", ".join(f"pins.{name}" for name in names_of(Pin))

# The row is made from the session's own row, so a session of another tenant yields none.
_NEW_PIN = insert_row(
    pins,
    {"session_id": "s.id", **binds("name", "content", "relevance", "source")},
    "sessions s WHERE s.id = :session_id AND s.tenant_id = :tenant_id FOR KEY SHARE",
)
_PUT_PIN = sql(f"""
    {_NEW_PIN}
    ON CONFLICT (session_id, name) DO UPDATE SET content = excluded.content, relevance = excluded.relevance,
        source = excluded.source, updated_at = excluded.updated_at
    RETURNING {_PIN_COLUMNS}
    """)
_OUR_PINS = """
    pins.session_id IN (SELECT id FROM sessions WHERE id = :session_id AND tenant_id = :tenant_id)
"""
_OTHER_PINS = sql(f"""
    SELECT count(*) AS pins, CAST(coalesce(sum(octet_length(content)), 0) AS bigint) AS bytes
    FROM pins WHERE {_OUR_PINS} AND name <> :name
    """)
_GET_PIN = sql(f"SELECT {_PIN_COLUMNS} FROM pins WHERE {_OUR_PINS} AND name = :name")
_LIST_PINS = sql(f"SELECT {_PIN_COLUMNS} FROM pins WHERE {_OUR_PINS} AND name > :after ORDER BY name LIMIT :limit")
_DELETE_PIN = sql(f"DELETE FROM pins WHERE {_OUR_PINS} AND name = :name")


async def put_pin(tx: Transaction, session: SessionRef, pin: Pin) -> Pin | None:
    """Stores the pin or replaces the one of its name; None when the tenant has no such session."""
    return await tx.fetch_record(Pin, _PUT_PIN, **of_session(session), **values_of(pin))


async def other_pins(tx: Transaction, session: SessionRef, name: str) -> tuple[int, int]:
    """How many pins a session has beside this one, and the bytes of their contents; none of another tenant's."""
    row = await tx.fetchrow(_OTHER_PINS, **of_session(session), name=name)
    return (row["pins"], row["bytes"]) if row else (0, 0)


async def get_pin(tx: Transaction, session: SessionRef, name: str) -> Pin | None:
    return await tx.fetch_record(Pin, _GET_PIN, **of_session(session), name=name)


async def list_pins(tx: Transaction, session: SessionRef, *, after: str, limit: int) -> list[Pin]:
    """The session's pins by name, from the first one above `after`."""
    return await tx.fetch_records(Pin, _LIST_PINS, **of_session(session), after=after, limit=limit)


async def delete_pin(tx: Transaction, session: SessionRef, name: str) -> bool:
    """Takes the pin away. False when there was none."""
    return await tx.execute(_DELETE_PIN, **of_session(session), name=name) > 0
