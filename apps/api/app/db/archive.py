"""Whole sessions: copies a past up to a turn to a fork inside the database, with one statement for each table (which
summaries it takes: docs/decisions/0009-copied-pasts.md); reads a session's rows for an export and inserts those of an
import. Columns come from `db/tables.py`."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from app.db import tables
from app.db.audits import BLOCKS_OF_TURNS
from app.db.database import Transaction, record_of
from app.db.driver import Record
from app.db.sessions import CHANGEABLE
from app.db.sql import OPEN_STATUSES_SQL, Statement, binds, by_seq, insert_from, json_rows, paged, sql
from app.db.turns import WHOLE_REQUEST
from app.domain.frozen import frozen, names_of, replace, values_of
from app.domain.stored import Counters, NewRows
from app.domain.types import Content, JsonObject, SessionId, SessionRef, TurnId, TurnStatus

# The last turn of the fork, and the turn after it: what preceded that turn is the fork's past. An open turn may precede
# ended ones: it was tried again after the next one was rejected, and its new messages have numbers beyond that one's.
_POINT = sql(f"""
    SELECT coalesce(point.seq, 0) AS through_seq, point.id AS through_id, later.id AS next_id,
        later.created_at AS next_created_at,
        (SELECT s.past_version FROM sessions s WHERE s.id = :session_id) AS past_version,
        (SELECT coalesce(max(m.seq), 0) FROM messages m WHERE m.session_id = :session_id AND m.turn_id IN (
            SELECT t.id FROM turns t WHERE t.session_id = :session_id AND t.seq <= point.seq
                AND t.seq >= coalesce((SELECT max(e.seq) FROM turns e WHERE e.session_id = :session_id
                    AND e.seq <= point.seq AND e.status <> 'rejected'), 1))) AS last_message_seq
    FROM (SELECT CAST(:through_seq AS bigint) AS seq) wanted
    LEFT JOIN turns point ON point.session_id = :session_id AND point.seq = (
        SELECT max(t.seq) FROM turns t WHERE t.session_id = :session_id
            AND (wanted.seq IS NULL OR t.seq <= wanted.seq) AND t.seq < coalesce((
                SELECT o.seq FROM turns o
                WHERE o.session_id = :session_id AND o.status IN {OPEN_STATUSES_SQL}), t.seq + 1))
    LEFT JOIN turns later ON later.session_id = :session_id AND later.seq = coalesce(point.seq, 0) + 1
    """)

_LAST_TURN = sql(f"""
    SELECT t.id, t.seq, t.status, {WHOLE_REQUEST}, users.*,
        (SELECT a.model_alias FROM turn_context_audit a WHERE a.session_id = t.session_id AND a.turn_id = t.id
         ORDER BY a.round, a.attempt LIMIT 1) AS requested_alias
    FROM turns t CROSS JOIN LATERAL (
        SELECT jsonb_agg(m.content ORDER BY m.seq) AS contents, jsonb_agg(m.name ORDER BY m.seq) AS names,
            max(m.said_at) AS said_at
        FROM messages m
        WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'user' AND NOT m.withdrawn
    ) users
    WHERE t.session_id = :session_id ORDER BY t.seq DESC LIMIT 1
    """)

# Rows are looked up in a hash of the later ones, as in `messages.NOT_REJECTED`; a join could be planned as a scan of
# one table for each row of the other while they are not analyzed yet.
_PAST_TURN = "x.turn_id IN (SELECT t.id FROM turns t WHERE t.session_id = :source AND t.seq > :through_seq) IS NOT TRUE"
_PAST_MESSAGE = """x.message_id IN (
    SELECT m.id FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    WHERE m.session_id = :source AND t.seq > :through_seq) IS NOT TRUE"""
# A summary that was made for the turn after the past was made from the past alone: no summarizer sees a running turn.
# An emergency summary is different: it was made because that turn's prompt was refused, so it depends on the turn.
_PAST_SUMMARY = """x.to_message_seq <= :last_message_seq
    AND (CAST(:next_id AS uuid) IS NULL OR x.created_at <= :next_created_at
         OR x.created_by_turn_id = :next_id AND x.origin <> 'emergency')"""
_LINE = sql(f"""
    SELECT x.id, x.previous_summary_id, x.status, {_PAST_SUMMARY} AS past FROM session_summaries x
    WHERE x.session_id = :source
    """)
_OF_PAST_SUMMARIES: Final = {
    "previous_summary_id": f"""(SELECT p.id FROM session_summaries p WHERE p.session_id = x.session_id
        AND p.id = x.previous_summary_id AND {_PAST_SUMMARY.replace("x.", "p.")})""",
    "created_by_turn_id": "nullif(x.created_by_turn_id, :next_id)",
    "status": "CASE WHEN x.id = :active_id THEN 'active' ELSE x.status END",
}
"""The columns of summaries that are not the same in every past."""

# The count as it was then, from what had restarted it by then: a summary that a turn tried, or that was requested.
_COUNT_AFTER_SEQ = """
    CASE WHEN x.summary_count_after_seq <= :through_seq THEN x.summary_count_after_seq
         WHEN EXISTS (SELECT 1 FROM session_summaries s WHERE s.session_id = :source
             AND s.origin <> 'emergency' AND s.created_by_turn_id = :next_id) THEN :through_seq
         ELSE greatest(0,
            (SELECT t.seq - 1 FROM turns t
             WHERE t.session_id = :source AND t.seq <= :through_seq
                AND EXISTS (SELECT 1 FROM turn_steps st
                    WHERE st.session_id = :source AND st.turn_id = t.id AND st.kind = 'summarize')
             ORDER BY t.seq DESC LIMIT 1),
            (SELECT t.seq FROM turns t
             WHERE t.session_id = :source AND t.seq <= :through_seq
                AND t.created_at < (SELECT max(s.created_at) FROM session_summaries s
                    WHERE s.session_id = :source AND s.created_by_turn_id IS NULL
                        AND s.to_message_seq <= :last_message_seq
                        AND (CAST(:next_created_at AS timestamptz) IS NULL OR s.created_at <= :next_created_at))
             ORDER BY t.seq DESC LIMIT 1)) END"""
_FORKED_SESSION = sql(
    insert_from(
        tables.sessions,
        "sessions x WHERE x.id = :source",
        {
            "id": ":target",
            "forked_from": ":forked_from",
            "cache_key": "coalesce(x.cache_key, CAST(x.id AS text))",  # its prompts begin as those of its source
            "last_turn_seq": ":through_seq",
            "last_message_seq": ":last_message_seq",
            "summary_count_after_seq": _COUNT_AFTER_SEQ,
        },
        without=(
            *("idempotency_key", "external_id", "created_at", "updated_at", "erase_after"),
            *("summary_lease_id", "summary_lease_expires_at"),
        ),
    )
)


def _copy(table: sa.Table, condition: str, **changed: str) -> Statement:
    """Copies the rows `x` of `:source` that meet the condition to `:target`, with their ids. `changed` has the
    expressions of columns that are not copied as they are."""
    source = f"{table.name} x WHERE x.session_id = :source AND {condition}"
    return sql(insert_from(table, source, {"session_id": ":target", **changed}))


COPIES: Final[Mapping[str, Statement]] = {
    "sessions": _FORKED_SESSION,
    # An idempotency key is valid only for the session in which it was posted. A list of messages is answered in a fork
    # only if that was made for such a list.
    "turns": _copy(
        tables.turns,
        "x.seq <= :through_seq",
        idempotency_key="NULL",
        reservation="NULL",
        conversation_sha256="CASE WHEN :is_branch THEN x.conversation_sha256 END",
    ),
    "turn_steps": _copy(tables.turn_steps, _PAST_TURN),
    "messages": _copy(tables.messages, _PAST_TURN),
    "message_token_counts": _copy(tables.message_token_counts, _PAST_MESSAGE),
    "message_vectors": _copy(tables.message_vectors, "x.message_seq <= :last_message_seq"),
    "turn_context_audit": _copy(tables.turn_context_audit, _PAST_TURN),
    "prompt_blocks": _copy(tables.prompt_blocks, f"x.sha256 IN ({BLOCKS_OF_TURNS})"),
    "session_summaries": _copy(tables.session_summaries, _PAST_SUMMARY, **_OF_PAST_SUMMARIES),
    "pins": _copy(tables.pins, "true"),
}
"""The statements that make a fork, by table, in the order of foreign keys. Usage and responses are not copied."""


@frozen
class ForkPoint:
    """Where a past ends: `through_id` is None when it is empty, `next_id` the turn after it, where there is one.
    `active_id` is the summary that is active there."""

    through_seq: int
    through_id: TurnId | None
    last_message_seq: int
    next_id: TurnId | None
    next_created_at: datetime | None
    past_version: int
    active_id: UUID | None

    def values(self, source: SessionId, names: Iterable[str]) -> dict[str, object]:
        """Of the parameters of a statement those that the past of `source` determines."""
        values = {"source": source, **values_of(self)}
        return {name: values[name] for name in names if name in values}


@frozen
class LastTurn:
    """What is needed to run a session's newest turn again. `contents` are those of its user messages, usually one, and
    `names` their speakers; `said_at` is their time, if the client gave it."""

    id: TurnId
    seq: int
    status: TurnStatus
    contents: Sequence[Content]
    names: Sequence[str | None]
    said_at: datetime | None
    request: JsonObject | None
    requested_alias: str | None


async def fork_point(tx: Transaction, session_id: SessionId, through_seq: int | None) -> ForkPoint:
    """The last turn through `through_seq` that has ended, as have all before it."""
    point = ForkPoint(**await tx.fetch_one(_POINT, session_id=session_id, through_seq=through_seq), active_id=None)
    line = await tx.fetch(_LINE, **point.values(session_id, _LINE.names))
    return replace(point, active_id=_active(line))


async def last_turn(tx: Transaction, session_id: SessionId) -> LastTurn | None:
    """The newest turn, None in an empty session."""
    row = await tx.fetchrow(_LAST_TURN, session_id=session_id)
    if row is None:
        return None
    return record_of(
        LastTurn, row, status=TurnStatus(row["status"]), contents=row["contents"] or (), names=row["names"] or ()
    )


async def copy_past(
    tx: Transaction, source: SessionId, target: SessionId, point: ForkPoint, *, is_branch: bool
) -> None:
    """Makes the session `target` with the past of `source` through the point; with `is_branch` a client's list of
    messages can be recognized as its past. Needs a transaction with a snapshot."""
    of_fork = {
        "target": target,
        "forked_from": {"session_id": source, "turn_id": point.through_id},
        "is_branch": is_branch,
    }
    for statement in COPIES.values():
        of_target = {name: value for name, value in of_fork.items() if name in statement.names}
        await tx.execute(statement, **of_target, **point.values(source, statement.names))


def _active(summaries: Sequence[Record]) -> UUID | None:
    """The newest summary that belongs to the past, among the active one and its predecessors; None if none does."""
    by_id = {row["id"]: row for row in summaries}
    row = next((row for row in summaries if row["status"] == "active"), None)
    while row is not None and not row["past"]:
        row = by_id.get(row["previous_summary_id"])
    return None if row is None else row["id"]


_PAGE_ROWS: Final = 100
"""Most rows that are read at once, which blocks the event loop for a few milliseconds."""


@frozen
class _Section:
    """A list of rows of a document, sorted by `keys` of rows `x`, messages as in `_MESSAGE_ORDER`; rows of turns `t`
    end with the point of the export. `before_all` is a value of the first key before that of any row. An export leaves
    out the columns `unused`, and those that are `made_anew` by an import."""

    table: sa.Table
    keys: tuple[str, ...]
    before_all: object = 0
    made_anew: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        left_out = {"session_id", *self.made_anew, *self.unused}
        # As text: SQLAlchemy's own kind of it is no key of JSON.
        return tuple(str(column.name) for column in self.table.columns if column.name not in left_out)


# How a turn was claimed, and under which key, is of no use elsewhere.
_OF_CLAIMS: Final = ("idempotency_key", "fence", "lease_expires_at", "reservation", "conversation_sha256")
_SECTIONS: Final[Mapping[str, _Section]] = {
    "pins": _Section(tables.pins, ("x.name",), before_all=""),
    "blocks": _Section(tables.prompt_blocks, ("x.sha256",), before_all="", unused=("created_at",)),
    "turns": _Section(tables.turns, ("t.seq",), made_anew=("request_sha256",), unused=_OF_CLAIMS),
    # Terms are packed again from the content.
    "messages": _Section(tables.messages, (), made_anew=("terms",)),
    "steps": _Section(tables.turn_steps, ("t.seq", "x.seq")),
    # The last message's number is known by `to_message_id`.
    "summaries": _Section(tables.session_summaries, ("x.id",), before_all=UUID(int=0), made_anew=("to_message_seq",)),
    "audits": _Section(tables.turn_context_audit, ("t.seq", "x.round", "x.attempt")),
}
COLUMNS: Final = {name: section.columns for name, section in _SECTIONS.items()}
"""The columns of each section's rows that an export has."""
_SESSION_COLUMNS = ", ".join(("id", *(name for name in CHANGEABLE if name != "limits"), "created_at", "updated_at"))

_EXPORTED_SESSION = sql(f"""
    SELECT {_SESSION_COLUMNS}, {_COUNT_AFTER_SEQ} AS summary_count_after_seq FROM sessions x
    WHERE id = :source AND tenant_id = :tenant_id
    """)


def _exported_after(section: _Section) -> Statement:
    """The statement for the rows of a section that follow those with the key `key_0`, …; each row has its key."""
    keys, table = section.keys, section.table.name
    after = f"({', '.join(keys)}) > ({', '.join([f':key_{at}' for at in range(len(keys))])})"
    columns = [WHOLE_REQUEST if column == "request" else f"x.{column}" for column in section.columns]
    rows = f"{table} x WHERE x.session_id = :source"
    if section.table is tables.session_summaries:
        columns = [f"{_OF_PAST_SUMMARIES.get(column, f'x.{column}')} AS {column}" for column in section.columns]
        rows += f" AND {_PAST_SUMMARY}"
    if section.table is tables.turns:
        rows = """turns t JOIN turns x ON x.session_id = t.session_id AND x.id = t.id
            WHERE t.session_id = :source AND t.seq >= :key_0 AND t.seq <= :through_seq"""
    rows += f" AND {after} ORDER BY {', '.join(keys)}"
    if len(keys) > 1:
        rows = _of_turns(table, keys[1:])
    text = f"""
        SELECT {", ".join(columns)}, {", ".join([f"{key} AS key_{at}" for at, key in enumerate(keys)])} FROM {rows}
        LIMIT :limit
        """
    return paged(text, section.columns)


def _of_turns(table: str, keys: Sequence[str]) -> str:
    """FROM items: the rows `x` of turns `t` from `:key_0` on, of that turn only those after `:key_1`, …, turn by turn
    in the order of `keys`. With an order of all of them each page could sort all that follows in the session."""
    after = ", ".join([f"CASE WHEN t.seq = :key_0 THEN :key_{at} ELSE 0 END" for at in range(1, len(keys) + 1)])
    names = ", ".join(keys)
    return f"""(
            SELECT id, seq FROM turns WHERE session_id = :source AND seq >= :key_0 AND seq <= :through_seq ORDER BY seq
        ) AS t CROSS JOIN LATERAL (
            SELECT x.* FROM {table} x
            WHERE x.session_id = :source AND x.turn_id = t.id AND ({names}) > ({after})
            ORDER BY {names} LIMIT :limit) AS x"""


_EXPORTED = {name: _exported_after(section) for name, section in _SECTIONS.items() if section.keys}
# A turn may have a hundred thousand messages: a page by `_exported_after` would read all of those of its turn.
_MESSAGE_ORDER = sql("""
    SELECT coalesce(string_agg(int8send(x.seq), '' ORDER BY t.seq, x.seq), '')
    FROM turns t JOIN messages x ON x.session_id = t.session_id AND x.turn_id = t.id
    WHERE t.session_id = :session_id AND t.seq <= :through_seq
    """)
_MESSAGES = paged(
    f"""
    SELECT {", ".join([f"x.{column}" for column in COLUMNS["messages"]])} FROM {by_seq("messages", "x")}
    ORDER BY array_position(:seqs, x.seq) LIMIT :limit
    """,
    COLUMNS["messages"],
)


async def exported_session(tx: Transaction, session: SessionRef, point: ForkPoint) -> JsonObject | None:
    """The session's own members in an export; None when the tenant has no such session."""
    of_point = point.values(session.id, _EXPORTED_SESSION.names)
    return await tx.fetch_record(JsonObject, _EXPORTED_SESSION, tenant_id=session.tenant_id, **of_point)


async def exported_rows(
    tx: Transaction, session_id: SessionId, section: str, point: ForkPoint
) -> AsyncGenerator[list[JsonObject]]:
    """A section's rows through the point, in the order a document has them, in pages of bounded size."""
    pages = _pages(tx, session_id, section, point) if _SECTIONS[section].keys else _messages(tx, session_id, point)
    async for rows in pages:
        yield [{name: row[name] for name in COLUMNS[section]} for row in rows]


async def _pages(
    tx: Transaction, session_id: SessionId, section: str, point: ForkPoint
) -> AsyncGenerator[list[JsonObject]]:
    statement = _EXPORTED[section]
    of_point = point.values(session_id, statement.names)
    after: JsonObject = {f"key_{at}": _SECTIONS[section].before_all for at in range(len(_SECTIONS[section].keys))}
    more = True
    while more:
        page = await tx.fetch_page(JsonObject, statement, _PAGE_ROWS, **of_point, **after)
        yield page.rows
        more = page.has_more
        after = {name: page.rows[-1][name] for name in after} if more else after


async def _messages(tx: Transaction, session_id: SessionId, point: ForkPoint) -> AsyncGenerator[list[JsonObject]]:
    seqs: bytes = await tx.fetchval(_MESSAGE_ORDER, session_id=session_id, through_seq=point.through_seq)
    at, more = 0, True
    while more:
        wanted = [seq for (seq,) in struct.iter_unpack(">q", seqs[at : at + 8 * _PAGE_ROWS])]
        page = await tx.fetch_page(JsonObject, _MESSAGES, _PAGE_ROWS, session_id=session_id, seqs=wanted)
        yield page.rows
        at += 8 * len(page.rows)
        more = bool(page.rows) and at < len(seqs)


# A pin or a summary of a later time would keep the session from being purged, and a turn would be a change of then.
_NOT_LATER = {name: f"least(x.{name}, statement_timestamp())" for name in ("created_at", "updated_at")}


def _insert(section: _Section) -> Statement:
    times = {name: time for name, time in _NOT_LATER.items() if name in section.columns}
    rows = json_rows(section.table, "rows")
    return sql(insert_from(section.table, rows, {"session_id": ":session_id", **times}, without=section.unused))


_INSERTS = {name: _insert(section) for name, section in _SECTIONS.items()}

_SET = ", ".join(f"{name} = {value}" for name, value in binds(*names_of(Counters)).items())
_COUNTERS = sql(f"UPDATE sessions SET {_SET} WHERE id = :session_id")


async def insert_rows(tx: Transaction, session_id: SessionId, new: NewRows) -> None:
    """Stores rows of a section in a session that was just made; turns come first."""
    await tx.execute(_INSERTS[new.section], session_id=session_id, rows=new.rows)


async def set_counters(tx: Transaction, session_id: SessionId, counters: Counters) -> None:
    """Sets where the numbers of a session that was just filled continue."""
    await tx.execute(_COUNTERS, session_id=session_id, **values_of(counters))
