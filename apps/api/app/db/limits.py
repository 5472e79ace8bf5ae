"""Limits and what was used of them, in one row per tenant (or session) and span. A turn's call is reserved in the
transaction that claims the turn and settled in the one that ends it. A summary's call is counted as used before it is
made, and the rest is given back after it, so that nothing has to be cleaned up if the process dies in between."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from app.db import tables
from app.db.database import Transaction, record_of
from app.db.driver import Record
from app.db.sessions import locked_session
from app.db.sql import CLOCK, Statement, insert_row, sql
from app.domain.frozen import values_of
from app.domain.limits import CallUse, Limits, Scope, Used, spans_of
from app.domain.types import JsonObject, SessionId, SessionRef, TenantId, TurnId

TENANT_LIMITS = """(SELECT jsonb_object_agg(l.name, l.value) FROM limits l WHERE l.tenant_id = sessions.tenant_id)
    AS tenant_limits"""
"""An expression for RETURNING of a statement on `sessions`; it is null for a tenant without limits."""

# Not `CASE span WHEN …`, which Citus rewrites wrongly for its nodes.
_STARTS_AT = """CASE WHEN x.span = 'minute' THEN date_trunc('minute', clock.at, 'UTC')
    WHEN x.span = 'day' THEN date_trunc('day', clock.at, 'UTC')
    WHEN x.span = 'month' THEN date_trunc('month', clock.at, 'UTC') ELSE to_timestamp(0) END"""
_ENDS_AT = """CASE WHEN {0}.span = 'minute' THEN {0}.starts_at + interval '1 minute'
    WHEN {0}.span = 'day' THEN {0}.starts_at + interval '24 hours'
    WHEN {0}.span = 'month' THEN (({0}.starts_at AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC' END"""
_SUMS = ("turns", "tokens", "usd", "reserved_tokens", "reserved_usd")

_USAGE: Mapping[Scope, tuple[sa.Table, str]] = {
    "tenant": (tables.tenant_usage, "tenant_id"),
    "session": (tables.session_usage, "session_id"),
}


def _locked(scope: Scope) -> str:
    """A CTE `locked_usage` with the rows of `:spans`, locked in the order of spans."""
    table, key = _USAGE[scope]
    return f"""
        locked_usage AS (
            SELECT u.span FROM {table.name} u WHERE u.{key} = :key AND u.span = ANY(:spans)
            ORDER BY u.span FOR NO KEY UPDATE
        )
    """


def _adding(scope: Scope) -> Statement:
    """A statement that adds a call to the given spans and returns the sums before; spans without a row are missing."""
    table, key = _USAGE[scope]
    # If a newer span began while this statement waited for the row, the newer one counts. One that is further ahead
    # began by a clock that was set back since.
    counts = "CASE WHEN u.starts_at BETWEEN p.starts_at AND p.latest THEN u.{0} ELSE {1} END"
    added = ", ".join(f"{name} = {counts.format(name, 0)} + :{name}" for name in _SUMS)
    return sql(f"""
        WITH w AS (
            SELECT x.span, {_STARTS_AT} AS starts_at, clock.at + interval '1 minute' AS latest
            FROM {CLOCK}, unnest(CAST(:spans AS text[])) AS x(span)
        ), {_locked(scope)}, counted AS (
            UPDATE {table.name} u SET {added}, starts_at = {counts.format("starts_at", "p.starts_at")}
            FROM w p, locked_usage WHERE u.{key} = :key AND u.span = p.span AND u.span = locked_usage.span
            RETURNING u.span, u.starts_at, {", ".join(f"u.{name} - :{name} AS {name}" for name in _SUMS)}
        )
        SELECT counted.*, {_ENDS_AT.format("counted")} AS ends_at,
            CAST(ceil(extract(epoch FROM {_ENDS_AT.format("counted")} - clock.at)) AS bigint) AS retry_after_s
        FROM counted, {CLOCK} ORDER BY span
        """)


def _opening(scope: Scope) -> Statement:
    """A statement that inserts the rows of spans in which nothing was ever counted; concurrent inserts wait for it."""
    table, key = _USAGE[scope]
    nothing = {"span": "x.span", "starts_at": "to_timestamp(0)", **dict.fromkeys(_SUMS, "0")}
    source = "unnest(CAST(:spans AS text[])) AS x(span) ORDER BY x.span ON CONFLICT DO NOTHING"
    return sql(insert_row(table, {key: ":key", **nothing}, source))


_ADD = {scope: _adding(scope) for scope in _USAGE}
_OPEN = {scope: _opening(scope) for scope in _USAGE}
_HOLD = sql("UPDATE turns SET reservation = :reservation WHERE session_id = :session_id AND id = :turn_id")

_LIMITS_OF_SESSION = sql(f"""
    SELECT tenant_id, limits, {TENANT_LIMITS} FROM sessions
    WHERE id = :session_id FOR NO KEY UPDATE
    """)

_NEW_LIMITS = insert_row(
    tables.limits,
    {"tenant_id": ":tenant_id", "name": "x.key", "value": "CAST(x.value AS numeric)"},
    "jsonb_each_text(:limits) AS x",
)
_SET = sql(f"""
    {_NEW_LIMITS}
    ON CONFLICT (tenant_id, name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
    """)
_CLEAR = sql("DELETE FROM limits WHERE tenant_id = :tenant_id")
# What running turns have reserved is kept: each gives its part back when it ends, also if there are new limits by then.
_FORGET_USE = sql("""
    WITH in_order AS (
        SELECT span FROM tenant_usage WHERE tenant_id = :tenant_id ORDER BY span FOR NO KEY UPDATE
    )
    UPDATE tenant_usage SET turns = 0, tokens = 0, usd = 0 FROM in_order
    WHERE tenant_usage.tenant_id = :tenant_id AND tenant_usage.span = in_order.span
    """)
_LIST = sql(f"""
    SELECT l.tenant_id, l.name, l.value, u.span, {_ENDS_AT.format("u")} AS ends_at,
        {", ".join(f"u.{name}" for name in _SUMS)}
    FROM limits l LEFT JOIN tenant_usage u ON u.tenant_id = l.tenant_id
        AND u.span = regexp_replace(l.name, '^.*_', '')
        AND coalesce({_ENDS_AT.format("u")} > (SELECT at FROM {CLOCK}), true)
    WHERE CAST(:tenant_id AS text) IS NULL OR l.tenant_id = :tenant_id
    ORDER BY l.tenant_id, l.name
    """)


def _giving_back(scope: Scope, parameter: str) -> str:
    """CTEs that settle the reservation of a CTE `released` in one table. A span that has ended is not changed. No sum
    gets below zero: what is given back may have been counted before the limits were cleared."""
    table, key = _USAGE[scope]
    return f"""
        parts AS (
            SELECT x.span, x.starts_at,
                CAST(reservation ->> 'turns' AS bigint) - released.turns AS turns, released.tokens, released.usd,
                CAST(reservation ->> 'tokens' AS bigint) AS reserved_tokens,
                CAST(reservation ->> 'usd' AS numeric) AS reserved_usd
            FROM released, jsonb_to_recordset(reservation -> 'windows')
                AS x(scope text, span text, starts_at timestamptz)
            WHERE x.scope = '{scope}'
        ), settled AS (
            UPDATE {table.name} u SET turns = greatest(0, u.turns - p.turns),
                tokens = greatest(0, u.tokens + p.tokens), usd = greatest(0, u.usd + p.usd),
                reserved_tokens = u.reserved_tokens - p.reserved_tokens, reserved_usd = u.reserved_usd - p.reserved_usd
            FROM parts p WHERE u.{key} = :{parameter} AND u.span = p.span AND u.starts_at = p.starts_at
        )
    """


GIVING_BACK = _giving_back("session", "session_id")
"""CTEs that replace what a session had reserved, according to a CTE `released`, by what was really used.

`released` has `reservation`, and the `turns`, `tokens` and `usd` that were used. In distributed tables the tenant's
part is on another node: `give_back_of_tenant` settles it in the same transaction.
"""


def released(source: str) -> str:
    """The CTE `released` with what a call had reserved and what it used; it has a row if `source` has one."""
    return f"""
        released AS (
            SELECT CAST(:reservation AS jsonb) AS reservation, CAST(:turns AS bigint) AS turns,
                CAST(:tokens AS bigint) AS tokens, CAST(:usd AS numeric) AS usd
            FROM {source}
        )
    """


def _once_locked(locks: str) -> str:
    return released(f"(SELECT count(*) FROM {locks}) AS locked_first")


_GIVE_BACK = sql(f"WITH {locked_session()}, {_once_locked('locked')}, {GIVING_BACK} SELECT 1")
_GIVE_BACK_OF_TENANT = sql(f"""
    WITH {_locked("tenant")}, {_once_locked("locked_usage")}, {_giving_back("tenant", "key")} SELECT 1
    """)


async def reserve(
    tx: Transaction, session: SessionRef, turn_id: TurnId, limits: Mapping[Scope, Limits], worst: CallUse
) -> tuple[list[Used], JsonObject]:
    """Reserves a call before it is made. Returns the sums without it, and the reservation stored with the turn. The
    caller rolls back if a limit is exceeded. The tenant's other calls wait until the transaction ends."""
    reserved = {"turns": worst.turns, "reserved_tokens": worst.tokens, "reserved_usd": worst.usd}
    used, reservation = await _count(tx, {"tenant": session.tenant_id, "session": session.id}, limits, reserved)
    await tx.execute(_HOLD, session_id=session.id, turn_id=turn_id, reservation=reservation)
    return used, reservation


async def _count(
    tx: Transaction, keys: Mapping[Scope, object], limits: Mapping[Scope, Limits], added: Mapping[str, object]
) -> tuple[list[Used], JsonObject]:
    """Adds to the spans of every limit, the tenant's first. Returns the sums before, and a reservation to give back."""
    added = {**dict.fromkeys(_SUMS, 0), **added}
    found: list[Used] = []
    for scope, values in limits.items():
        spans, key = spans_of(values), keys[scope]
        rows = await tx.fetch(_ADD[scope], key=key, spans=spans, **added)
        new = [span for span in spans if span not in {row["span"] for row in rows}]
        if new:
            await tx.execute(_OPEN[scope], key=key, spans=new)
            rows += await tx.fetch(_ADD[scope], key=key, spans=new, **added)
        found += [record_of(Used, row, scope=scope) for row in rows]
    windows = [
        {"scope": used.scope, "key": keys[used.scope], "span": used.span, "starts_at": used.starts_at} for used in found
    ]
    held = {"turns": added["turns"], "tokens": added["reserved_tokens"], "usd": added["reserved_usd"]}
    return found, {**held, "windows": windows}


async def count_use(
    tx: Transaction, session_id: SessionId, worst: CallUse
) -> tuple[Mapping[Scope, Limits], list[Used], JsonObject] | None:
    """Counts a call that is not a turn's own as used, before it is made; None if no limits apply. Returns the limits,
    the sums without the call, and the reservation for `give_back`. The caller rolls back if a limit is exceeded."""
    row = await tx.fetchrow(_LIMITS_OF_SESSION, session_id=session_id)
    if row is None or not (limits := limits_of(row)):
        return None
    keys: Mapping[Scope, object] = {"tenant": row["tenant_id"], "session": session_id}
    return limits, *await _count(tx, keys, limits, values_of(worst))


async def give_back(
    tx: Transaction, session_id: SessionId, reservation: JsonObject, counted: CallUse, used: CallUse
) -> None:
    """Replaces what was `counted` for a call by what it used."""
    amounts = {"turns": used.turns, "tokens": used.tokens - counted.tokens, "usd": used.usd - counted.usd}
    await tx.execute(_GIVE_BACK, session_id=session_id, reservation=reservation, **amounts)
    await give_back_of_tenant(tx, {"reservation": reservation, **amounts})


async def give_back_of_tenant(tx: Transaction, released: Mapping[str, Any]) -> None:
    """Settles what the tenant had reserved, from a row of `released` (see `GIVING_BACK`); nothing without a limit."""
    windows = [window for window in released["reservation"]["windows"] if window["scope"] == "tenant"]
    if windows:
        spans = [window["span"] for window in windows]
        await tx.execute(_GIVE_BACK_OF_TENANT, key=windows[0]["key"], spans=spans, **released)


def limits_of(row: Record) -> dict[Scope, Limits]:
    """Limits by scope, from a row with a session's `limits` and `tenant_limits`; a scope without any is left out. They
    have their exact decimal values, not the nearest binary fractions."""
    stored: Mapping[Scope, JsonObject | None] = {"tenant": row["tenant_limits"], "session": row["limits"]}
    return {
        scope: {name: Decimal(str(value)) for name, value in limits.items()}
        for scope, limits in stored.items()
        if limits
    }


async def set_limits(tx: Transaction, tenant_id: TenantId, limits: Limits) -> None:
    """Sets these limits and leaves the tenant's others unchanged."""
    await tx.execute(_SET, tenant_id=tenant_id, limits={name: str(value) for name, value in limits.items()})


async def clear_limits(tx: Transaction, tenant_id: TenantId) -> int:
    """Deletes the tenant's limits and sets what was counted for them to 0; returns how many limits there were."""
    cleared = await tx.execute(_CLEAR, tenant_id=tenant_id)
    await tx.execute(_FORGET_USE, tenant_id=tenant_id)
    return cleared


async def list_limits(tx: Transaction, tenant_id: TenantId | None) -> list[Record]:
    """Limits of one tenant or of all, with the counts of their current spans (null where nothing was counted)."""
    return await tx.fetch(_LIST, tenant_id=tenant_id)
