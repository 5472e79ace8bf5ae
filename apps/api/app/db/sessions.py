"""Statements on `sessions`, also to find one by the messages that a client resends or by the client's name for it, and
on `pins`. Every statement but `set_lifetime` names the tenant, so a session of another tenant is never found.

Rows are locked in this order, so that writers of a session can not deadlock:

1. The session's row, by every transaction that writes to the session, in its first statement that locks. Transactions
   that decide on stored data or end a turn take it `FOR NO KEY UPDATE` (an UPDATE does the same). Those that only add
   rows on which no decision depends (counts, vectors) take it `FOR KEY SHARE`. Those that erase take it `FOR UPDATE`.
2. The turn's row, and other rows of the session.
3. The tenant's usage rows, by span; then the session's. Nothing is waited for after them.

The `FOR KEY SHARE` of a foreign key is no substitute for step 1. It comes at the end of a statement, and if the row was
changed between its read and its lock, it waits for the next writer of the row, whatever lock that writer holds.

No transaction waits for rows of two sessions: those that erase several or renew a lease skip locked rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import sqlalchemy as sa

from app.db.database import Fetched, PageBounds, Transaction
from app.db.sql import (
    ANSWERED,
    CLOCK,
    FAILED,
    OPEN_STATUSES_SQL,
    UNANSWERED,
    binds,
    in_any_case,
    in_any_case_as_json,
    insert_from,
    insert_row,
    json_rows,
    of_session,
    paged,
    sql,
)
from app.db.tables import pins, sessions
from app.domain.frozen import frozen, names_of, values_of
from app.domain.responses import Lifetime
from app.domain.types import Pin, Session, SessionId, SessionRef, SessionState, TenantId, TurnId

_COLUMNS = ", ".join(names_of(Session))
STATE_COLUMNS = names_of(SessionState)
_OURS = "id = :session_id AND tenant_id = :tenant_id"
CHANGEABLE = ("model_alias", "mode", "agent_role", "room_goal", "instructions", "policy", "metadata", "limits")
"""Fields of a session that a request may set."""
_SET = binds(*CHANGEABLE)

_NEW = insert_row(sessions, {"id": ":session_id", **binds("tenant_id", "cache_key"), **_SET})
_INSERT = sql(f"{_NEW} RETURNING {_COLUMNS}")
_GET = sql(f"SELECT {_COLUMNS} FROM sessions WHERE {_OURS}")
_GET_LOCKED = sql(f"SELECT {_COLUMNS} FROM sessions WHERE {_OURS} FOR NO KEY UPDATE")
_EXISTS = sql(f"SELECT id FROM sessions WHERE {_OURS}")
_LOCK = sql(f"SELECT id FROM sessions WHERE {_OURS} FOR NO KEY UPDATE")
_LOCK_TO_ERASE = sql(f"SELECT id FROM sessions WHERE {_OURS} FOR UPDATE")
_STATE = sql(f"SELECT {', '.join(STATE_COLUMNS)} FROM sessions WHERE {_OURS}")
_UPDATE = sql(f"""
    UPDATE sessions SET {", ".join(f"{name} = {value}" for name, value in _SET.items())},
        updated_at = statement_timestamp()
    WHERE {_OURS} RETURNING {_COLUMNS}
    """)
_SIZED = ("room_goal", "instructions", "policy", "metadata")
OF_TENANT = "tenant_id = ANY(ARRAY[CAST(:tenant_id AS text)])"
NEWEST_OF_TENANT = "tenant_id, id DESC"
"""The SQL condition and order of a tenant's sessions, newest first. Only the index of tenants has this order. With
`tenant_id = …` it would be that of ids alone, in which a planner that knows of few tenants reads everybody's sessions
until it has found enough of this one's."""
# With two bounds a planner that knows of few tenants expects so few rows that it sorts all of them instead.
_FROM_BOUND = {
    False: "id > :bound ORDER BY tenant_id DESC, id",
    True: f"id < :bound ORDER BY {NEWEST_OF_TENANT}",
}
_PAGES = {
    newest: paged(f"SELECT {_COLUMNS} FROM sessions WHERE {OF_TENANT} AND {from_bound} LIMIT :limit", _SIZED)
    for newest, from_bound in _FROM_BOUND.items()
}

NamedBy: TypeAlias = Literal["idempotency_key", "external_id"]
"""How a session is found other than by id: by the key of the request that made it, or by a client's name for it."""
_NAMED_BY: tuple[NamedBy, ...] = get_args(NamedBy)
# Held until the transaction ends, so that of two requests with the same key or name the second finds the session of the
# first. A unique index can not ensure this, because sessions can only be distributed by their id.
_LOCK_NAME = {
    column: sql(f"SELECT pg_advisory_xact_lock(hashtextextended(CAST(:tenant_id || ' ' || :name AS text), {seed}))")
    for seed, column in enumerate(_NAMED_BY)
}
_BY_NAME = {
    column: sql(f"SELECT id FROM sessions WHERE tenant_id = :tenant_id AND {column} = :name ORDER BY id LIMIT 1")
    for column in _NAMED_BY
}
_NAME = {column: sql(f"UPDATE sessions SET {column} = :name WHERE {_OURS}") for column in _NAMED_BY}

_SET_LIFETIME = {
    lifetime: sql(f"UPDATE sessions SET erase_after = {erase_after} WHERE id = :session_id")
    for lifetime, erase_after in (
        (Lifetime.UNTIL_DELETED, "NULL"),
        (Lifetime.WITH_RESPONSES, "'infinity'"),
        (Lifetime.FOR_ANSWER, "statement_timestamp() + interval '1 hour'"),
    )
}

_FOR_ANSWER = "erase_after < 'infinity'"
_IS_FOR_ANSWER = sql(f"SELECT id FROM sessions WHERE {_OURS} AND {_FOR_ANSWER}")

FIRST_INPUT_CHARS = 200
"""Longest title of a session, in characters: the beginning of the first of its first five inputs that was answered and
is more than a greeting, or else of the first of them."""

_SEARCHED_GOAL_CHARS = 10_000

FIRST_INPUT = f"""
    SELECT left(t.user_input, {FIRST_INPUT_CHARS}) AS first_input FROM turns t
    WHERE t.session_id = s.id AND t.seq <= 5 AND t.user_input <> ''
    ORDER BY t.status = 'completed' AND length(left(t.user_input, 16)) > 15 DESC, t.seq LIMIT 1
"""

_HORIZON = sql(f"""
    SELECT id FROM sessions WHERE {OF_TENANT} AND id < :before ORDER BY {NEWEST_OF_TENANT} OFFSET :most LIMIT 1
    """)

# Of a long text only the part is read that is searched: a goal may have megabytes, and a tenant thousands of forks.
_SEARCH = paged(
    f"""
    SELECT {", ".join(f"s.{name}" for name in names_of(Session))}
    FROM sessions s LEFT JOIN LATERAL ({FIRST_INPUT}) first ON true
    WHERE s.{OF_TENANT} AND s.id < :before
        AND s.id >= :horizon
        AND (concat_ws(' ', s.id, left(s.room_goal, {_SEARCHED_GOAL_CHARS}), s.mode, s.agent_role,
            s.model_alias, s.metadata, first.first_input) ~ :pattern OR CAST(s.metadata AS text) ~ :pattern_of_json)
    ORDER BY {NEWEST_OF_TENANT} LIMIT :limit
    """,
    _SIZED,
)

ON_ITS_NODE = "sessions WHERE sessions.id = :session_id"
"""The end of an INSERT … SELECT whose `session_id` is `sessions.id`. It tells Citus that all of the statement runs on
the session's node. Without it, or with a volatile default, Citus collects the rows and spreads them over all nodes."""


def insert_in_session(
    table: sa.Table, parameter: str, source: str, values: Mapping[str, str], *, without: Collection[str] = ()
) -> str:
    """The text of an INSERT of a parameter's rows into the session, with the database's time: for each row of `source`,
    a FROM item, all of them. `values` and `without` are as in `insert_from`."""
    own = {"session_id": "sessions.id", "created_at": "clock.at"}
    own = {name: value for name, value in own.items() if name in table.columns}
    rows = f"{source}, {CLOCK}, {json_rows(table, parameter)}, {ON_ITS_NODE}"
    return insert_from(table, rows, {**own, **values}, without=without)


def locked_session(condition: str = "true") -> str:
    """A CTE `locked` that locks the row of `:session_id` until the transaction ends and has its id as `locked_id`, and
    its `past_version`; it has no row where `condition` is false. A statement that joins it to what it writes locks
    nothing before it."""
    return f"""
        locked AS (
            SELECT id AS locked_id, past_version FROM sessions
            WHERE id = :session_id AND {condition} FOR NO KEY UPDATE
        )
    """


async def insert_session(tx: Transaction, session: SessionRef, values: Mapping[str, object]) -> Session:
    """Stores a new session with a value for each of `CHANGEABLE`, and a `cache_key` if it has one. Returns it with the
    database's timestamps."""
    given = {name: values[name] for name in CHANGEABLE}
    row = await tx.fetch_one(_INSERT, **of_session(session), **given, cache_key=values.get("cache_key"))
    return Session(**row)


async def get_session(tx: Transaction, session: SessionRef, *, lock: bool = False) -> Session | None:
    """The tenant's session, or None. `lock` locks the row until the transaction ends."""
    return await tx.fetch_record(Session, _GET_LOCKED if lock else _GET, **of_session(session))


async def lock_session(tx: Transaction, session: SessionRef, *, to_erase: bool = False) -> bool:
    """Locks the row of the tenant's session until the transaction ends, with `to_erase` against those too that only add
    rows; false when there is no session."""
    return await tx.execute(_LOCK_TO_ERASE if to_erase else _LOCK, **of_session(session)) > 0


async def session_exists(tx: Transaction, session: SessionRef) -> bool:
    return await tx.fetchrow(_EXISTS, **of_session(session)) is not None


async def get_state(tx: Transaction, session: SessionRef) -> SessionState | None:
    """The state of the tenant's session, read without a lock."""
    return await tx.fetch_record(SessionState, _STATE, **of_session(session))


async def named_session(
    tx: Transaction, tenant_id: TenantId, by: NamedBy, name: str, *, lock: bool
) -> SessionId | None:
    """The tenant's session with this name, or None. With `lock` no other transaction that locks the name can look it up
    or assign it until this one ends."""
    if lock:
        await tx.fetchrow(_LOCK_NAME[by], tenant_id=tenant_id, name=name)
    return await tx.fetchval(_BY_NAME[by], tenant_id=tenant_id, name=name)


async def name_session(tx: Transaction, session: SessionRef, by: NamedBy, name: str) -> None:
    await tx.execute(_NAME[by], **of_session(session), name=name)


async def list_sessions(tx: Transaction, tenant_id: TenantId, bounds: PageBounds[UUID]) -> Fetched[Session]:
    """The tenant's sessions from the bound on at which the order begins. The other bound is not looked at."""
    bound = bounds.before if bounds.newest_first else bounds.after
    return await tx.fetch_page(Session, _PAGES[bounds.newest_first], bounds.limit, tenant_id=tenant_id, bound=bound)


async def update_session(tx: Transaction, tenant_id: TenantId, session: Session) -> Session | None:
    """Writes the session's changeable fields; None when it no longer exists."""
    new = {name: getattr(session, name) for name in CHANGEABLE}
    return await tx.fetch_record(Session, _UPDATE, session_id=session.id, tenant_id=tenant_id, **new)


async def set_lifetime(tx: Transaction, session_id: SessionId, lifetime: Lifetime) -> None:
    """Decides when the session is erased: one `FOR_ANSWER` after an hour, if the process that answers has died."""
    await tx.execute(_SET_LIFETIME[lifetime], session_id=session_id)


async def is_for_answer(tx: Transaction, session: SessionRef) -> bool:
    """Whether the tenant's session exists and is kept for an answer only."""
    return await tx.fetchrow(_IS_FOR_ANSWER, **of_session(session)) is not None


async def search_sessions(
    tx: Transaction, tenant_id: TenantId, words: str, *, before: UUID, limit: int, most_looked_through: int
) -> tuple[Fetched[Session], UUID | None]:
    """The tenant's sessions that have the words in their id, goal (its beginning), labels, metadata or first message,
    newest first, among the `most_looked_through` newest with an id below `before`. The second value is where to
    continue the search, None when all sessions have been searched."""
    horizon = await tx.fetchval(_HORIZON, tenant_id=tenant_id, before=before, most=most_looked_through - 1)
    within = {"tenant_id": tenant_id, "before": before, "horizon": horizon or UUID(int=0)}
    patterns = {"pattern": in_any_case(words), "pattern_of_json": in_any_case_as_json(words)}
    return await tx.fetch_page(Session, _SEARCH, limit, **within, **patterns), horizon


_MOST_ALIKE = 256
"""Newest sessions among which that of a list is chosen: very many may begin with "Hi" and the same reply."""
_LATER = f"""
    SELECT FROM turns n
    WHERE n.session_id = t.session_id AND n.seq > t.seq AND n.status NOT IN {UNANSWERED}
"""
# What is read of each session is in the list of results, and so only of the newest: a join may read all sessions.
_BY_NEWEST_REPLY, _BY_OLDER_REPLY = (
    sql(f"""
    SELECT session_id, turn_id, last_message_seq, is_unanswered, is_repeated, place,
        is_last AND (
            is_open OR is_unanswered OR count(*) FILTER (WHERE is_last) OVER (PARTITION BY place) = 1) AS is_last
    FROM (
        SELECT t.session_id, t.id AS turn_id, t.status IN {OPEN_STATUSES_SQL} AS is_open, (
                SELECT s.last_message_seq FROM sessions s
                WHERE s.id = t.session_id AND s.tenant_id = :tenant_id AND (s.{_FOR_ANSWER}) IS NOT TRUE
            ) AS last_message_seq,
            NOT EXISTS ({_LATER}) AS is_last, EXISTS (
                SELECT FROM turns n
                WHERE n.session_id = t.session_id AND n.seq > t.seq AND n.status IN {FAILED}
            ) AS is_unanswered,
            {place} AS place,
            CAST(:request_sha256 AS text) IS NOT NULL
                AND EXISTS (
                    {_LATER} AND n.request_sha256 = :request_sha256
                        AND CASE WHEN CAST(:idempotency_key AS text) IS NULL
                            THEN n.seq = (SELECT s.last_turn_seq FROM sessions s WHERE s.id = t.session_id)
                            ELSE n.idempotency_key = :idempotency_key END) AS is_repeated
        FROM turns t WHERE t.conversation_sha256 = {digest} AND t.status IN {ANSWERED}
        ORDER BY {order} t.session_id DESC LIMIT {_MOST_ALIKE}
    ) AS alike
    WHERE last_message_seq IS NOT NULL
    ORDER BY place, is_repeated DESC, (alike.is_last AND is_unanswered) DESC,
        CASE WHEN alike.is_last THEN session_id END DESC NULLS LAST, session_id LIMIT 1
    """)
    for digest, place, order in (
        (":digest", "0", ""),
        ("ANY(:digests)", "array_position(:digests, t.conversation_sha256)", "place,"),
    )
)


@frozen
class KnownTurn:
    """The newest turn that a list of messages continues, and the `place` of its digest among those of the list.
    `is_last` is false where its session already has later turns with answers. It is false too where several sessions
    have none, because any of them may be another client's, who said "Hi" too; but not if the turn waits for tools, or
    with `is_unanswered`: a later one failed or was cancelled, and whether the list has its message tells whose it is.
    `is_repeated` is true where the last later turn, or for a request with a key the one with that key, came from the
    same request."""

    session_id: SessionId
    turn_id: TurnId
    last_message_seq: int
    is_last: bool
    is_unanswered: bool
    is_repeated: bool
    place: int


async def turn_of_list(
    tx: Transaction,
    tenant_id: TenantId,
    digests: Sequence[bytes],
    request_sha256: str | None,
    idempotency_key: str | None = None,
) -> KnownTurn | None:
    """The tenant's turn with the first of these digests that any has. `request_sha256` is that of a possible retry. Of
    several sessions with the same past: first one that already got this request, of which this is a retry; then the
    newest in which only messages without an answer follow this past; then the newest in which nothing does; then the
    oldest."""
    newest, *older = digests
    of_request = {"tenant_id": tenant_id, "request_sha256": request_sha256, "idempotency_key": idempotency_key}
    found = await tx.fetch_record(KnownTurn, _BY_NEWEST_REPLY, digest=newest, **of_request)
    if found is None and older:
        found = await tx.fetch_record(KnownTurn, _BY_OLDER_REPLY, digests=older, **of_request)
    return found


_PIN_COLUMNS = ", ".join(f"pins.{name}" for name in names_of(Pin))

# The row is made from the session's own row, so a session of another tenant yields none.
_NEW_PIN = insert_row(
    pins,
    {"session_id": "s.id", **binds("name", "content", "relevance", "source")},
    "sessions s WHERE s.id = :session_id AND s.tenant_id = :tenant_id",
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
    """Stores the pin or replaces the one with its name; None when the tenant has no such session. The caller has locked
    the session, so the pins that it counted are all."""
    return await tx.fetch_record(Pin, _PUT_PIN, **of_session(session), **values_of(pin))


async def other_pins(tx: Transaction, session: SessionRef, name: str) -> tuple[int, int]:
    """The number of a session's other pins and the bytes of their contents; zeros for another tenant's session."""
    row = await tx.fetch_one(_OTHER_PINS, **of_session(session), name=name)
    return row["pins"], row["bytes"]


async def get_pin(tx: Transaction, session: SessionRef, name: str) -> Pin | None:
    return await tx.fetch_record(Pin, _GET_PIN, **of_session(session), name=name)


async def list_pins(tx: Transaction, session: SessionRef, *, after: str, limit: int) -> list[Pin]:
    """The session's pins in the order of their names, from the first name above `after`."""
    return await tx.fetch_records(Pin, _LIST_PINS, **of_session(session), after=after, limit=limit)


async def delete_pin(tx: Transaction, session: SessionRef, name: str) -> bool:
    """Deletes the pin; false when there was none."""
    return await tx.execute(_DELETE_PIN, **of_session(session), name=name) > 0
