"""Limits and what was used of them.

A turn's call is reserved in the transaction that claims the turn and settled in the one that ends it. A summary's call
is counted as used before it is made, and what it did not use is given back after it: nobody has to look for what a
process left that died in between. One row a tenant (or session) and span, which starts anew when its span does; rows
are locked as `db/sessions.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast

from app.db.database import Record, Transaction
from app.db.sessions import locked_session
from app.db.sql import sql
from app.domain.limits import Limits, Scope, Used, WorstCase, spans_of
from app.domain.types import JsonObject, SessionId, TenantId, TurnId

TENANT_LIMITS = """(SELECT jsonb_object_agg(l.name, l.value) FROM limits l WHERE l.tenant_id = sessions.tenant_id)
    AS tenant_limits"""
"""For RETURNING of a statement on `sessions`: null for a tenant without limits."""

_STARTS_AT = """CASE x.span
    WHEN 'minute' THEN date_trunc('minute', clock.at, 'UTC') WHEN 'day' THEN date_trunc('day', clock.at, 'UTC')
    WHEN 'month' THEN date_trunc('month', clock.at, 'UTC') ELSE to_timestamp(0) END"""
_ENDS_AT = """CASE {0}.span
    WHEN 'minute' THEN {0}.starts_at + interval '1 minute' WHEN 'day' THEN {0}.starts_at + interval '1 day'
    WHEN 'month' THEN (({0}.starts_at AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC' END"""
# A span that began while we waited for the row is the one that counts.
_IS_CURRENT = "{0}.starts_at >= excluded.starts_at"


def _counting(table: str, key: str, scope: str, value: str) -> str:
    """An upsert that adds the call to every span of the scope, and gives the sums."""
    added = ", ".join(
        f"{column} = CASE WHEN {_IS_CURRENT.format(table)} THEN {table}.{column} ELSE 0 END + excluded.{column}"
        for column in ("turns", "tokens", "usd", "reserved_tokens", "reserved_usd")
    )
    return f"""
        INSERT INTO {table} ({key}, span, starts_at, turns, tokens, usd, reserved_tokens, reserved_usd)
        SELECT {value}, w.span, w.starts_at, CAST(:turns AS bigint), CAST(:tokens AS bigint), CAST(:usd AS numeric),
            CAST(:reserved_tokens AS bigint), CAST(:reserved_usd AS numeric)
        FROM w WHERE w.scope = '{scope}' ORDER BY w.span
        ON CONFLICT ({key}, span) DO UPDATE SET {added},
            starts_at = greatest({table}.starts_at, excluded.starts_at)
        RETURNING '{scope}' AS scope, CAST({key} AS text) AS key, span, starts_at, turns, tokens, usd,
            reserved_tokens, reserved_usd
    """


_COUNT = f"""
    WITH clock AS (SELECT clock_timestamp() AS at), w AS (
        SELECT x.scope, x.span, {_STARTS_AT} AS starts_at
        FROM clock, jsonb_to_recordset(CAST(:windows AS jsonb)) AS x(scope text, span text)
    ), tenant AS ({_counting("tenant_usage", "tenant_id", "tenant", ":tenant_id")}),
    session AS ({_counting("session_usage", "session_id", "session", "CAST(:session_id AS uuid)")}),
    counted AS (SELECT * FROM tenant UNION ALL SELECT * FROM session)
"""

_COUNTED = f"""counted.*, {_ENDS_AT.format("counted")} AS ends_at,
    CAST(ceil(extract(epoch FROM {_ENDS_AT.format("counted")} - clock.at)) AS bigint) AS retry_after_s"""
_WINDOWS = """(SELECT jsonb_agg(jsonb_build_object('scope', scope, 'key', key, 'span', span, 'starts_at', starts_at))
    FROM counted)"""

_RESERVE = sql(f"""
    {_COUNT}, reservation AS (
        UPDATE turns SET reservation = jsonb_build_object(
            'turns', CAST(:turns AS bigint), 'tokens', CAST(:reserved_tokens AS bigint),
            'usd', CAST(:reserved_usd AS numeric), 'windows', {_WINDOWS})
        WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:turn_id AS uuid)
        RETURNING turns.reservation
    )
    SELECT {_COUNTED}, reservation.reservation FROM counted, clock, reservation
    """)

# What is given back of it has nothing reserved, only turns.
_COUNT_USE = sql(f"""
    {_COUNT}
    SELECT {_COUNTED}, jsonb_build_object('turns', CAST(:turns AS bigint), 'tokens', 0, 'usd', 0,
        'windows', {_WINDOWS}) AS reservation
    FROM counted, clock
    """)

_LIMITS_OF_SESSION = sql(f"""
    SELECT tenant_id, limits, {TENANT_LIMITS} FROM sessions
    WHERE id = CAST(:session_id AS uuid) FOR NO KEY UPDATE
    """)

_SET = sql("""
    INSERT INTO limits (tenant_id, name, value)
    SELECT :tenant_id, x.key, CAST(x.value AS numeric) FROM jsonb_each_text(CAST(:limits AS jsonb)) AS x
    ON CONFLICT (tenant_id, name) DO UPDATE SET value = excluded.value, updated_at = clock_timestamp()
    """)
_CLEAR = sql("""
    WITH l AS (DELETE FROM limits WHERE tenant_id = :tenant_id RETURNING name), in_order AS (
        SELECT span FROM tenant_usage WHERE tenant_id = :tenant_id ORDER BY span FOR UPDATE
    ), u AS (
        DELETE FROM tenant_usage USING in_order
        WHERE tenant_id = :tenant_id AND tenant_usage.span = in_order.span
    )
    SELECT count(*) FROM l
    """)
_LIST = sql(f"""
    SELECT l.tenant_id, l.name, l.value, u.span, {_ENDS_AT.format("u")} AS ends_at, u.turns, u.tokens, u.usd,
        u.reserved_tokens, u.reserved_usd
    FROM limits l LEFT JOIN tenant_usage u ON u.tenant_id = l.tenant_id
        AND u.span = regexp_replace(l.name, '^.*_', '')
        AND coalesce({_ENDS_AT.format("u")} > clock_timestamp(), true)
    WHERE CAST(:tenant_id AS text) IS NULL OR l.tenant_id = CAST(:tenant_id AS text)
    ORDER BY l.tenant_id, l.name
    """)


def giving_back(released: str) -> str:
    """CTEs that settle the reservations of a CTE `released`, with what was really used in their place.

    `released` has `reservation`, and `turns`, `tokens` and `usd` that were used. A span that is over is left alone.
    """
    changes = """turns = u.turns - p.turns, tokens = u.tokens + p.tokens, usd = u.usd + p.usd,
        reserved_tokens = u.reserved_tokens - p.reserved_tokens, reserved_usd = u.reserved_usd - p.reserved_usd"""
    same = "u.span = p.span AND u.starts_at = p.starts_at"
    return f"""
        parts AS (
            SELECT x.scope, x.key, x.span, x.starts_at,
                CAST(sum(CAST({released}.reservation ->> 'turns' AS bigint) - {released}.turns) AS bigint) AS turns,
                CAST(sum({released}.tokens) AS bigint) AS tokens, sum({released}.usd) AS usd,
                CAST(sum(CAST({released}.reservation ->> 'tokens' AS bigint)) AS bigint) AS reserved_tokens,
                sum(CAST({released}.reservation ->> 'usd' AS numeric)) AS reserved_usd
            FROM {released}, jsonb_to_recordset({released}.reservation -> 'windows')
                AS x(scope text, key text, span text, starts_at timestamptz)
            GROUP BY x.scope, x.key, x.span, x.starts_at
        ), in_order AS (
            SELECT u.span FROM tenant_usage u JOIN parts p ON p.scope = 'tenant' AND u.tenant_id = p.key AND {same}
            ORDER BY u.span FOR NO KEY UPDATE OF u
        ), of_tenant AS (
            UPDATE tenant_usage u SET {changes} FROM parts p, (SELECT count(*) FROM in_order) AS locked_first
            WHERE p.scope = 'tenant' AND u.tenant_id = p.key AND {same}
        ), of_session AS (
            UPDATE session_usage u SET {changes} FROM parts p
            WHERE p.scope = 'session' AND u.session_id = CAST(p.key AS uuid) AND {same}
        )
    """


_GIVE_BACK = sql(f"""
    WITH {locked_session()}, released AS (
        SELECT CAST(:reservation AS jsonb) AS reservation, CAST(:turns AS bigint) AS turns,
            CAST(:tokens AS bigint) AS tokens, CAST(:usd AS numeric) AS usd
        FROM (SELECT count(*) FROM locked) AS locked_first
    ), {giving_back("released")}
    SELECT 1
    """)


def limits_from_json(stored: JsonObject | None) -> Limits:
    """Values as they were written, not the nearest binary fractions."""
    return {name: Decimal(str(value)) for name, value in (stored or {}).items()}


async def reserve(
    tx: Transaction,
    tenant_id: TenantId,
    session_id: SessionId,
    turn_id: TurnId,
    limits: Mapping[Scope, Limits],
    asked: WorstCase,
) -> tuple[list[Used], JsonObject]:
    """Counts the call before it is made; the sums with it, and the reservation as the turn now holds it.

    Whoever finds the sums over a limit rolls back. Until the transaction ends, others of the tenant wait here.
    """
    rows = await tx.fetch(
        _RESERVE,
        windows=_windows(limits),
        tenant_id=tenant_id,
        session_id=session_id,
        turn_id=turn_id,
        turns=asked.turns,
        tokens=0,
        usd=Decimal(0),
        reserved_tokens=asked.tokens,
        reserved_usd=asked.usd,
    )
    return [_used(row) for row in rows], rows[0]["reservation"]


@dataclass(frozen=True, slots=True)
class Counted:
    """A call that was counted as used: the limits it is held to, the sums with it, and what `give_back` takes."""

    limits: Mapping[Scope, Limits]
    sums: list[Used]
    reservation: JsonObject


async def count_use(tx: Transaction, session_id: SessionId, asked: WorstCase) -> Counted | None:
    """Counts a call outside of a turn's own before it is made; None where there is no limit to count for.

    Whoever finds the sums over a limit rolls back. In them the call stands as reserved, as `exceeded` takes them.
    """
    row = await tx.fetchrow(_LIMITS_OF_SESSION, session_id=session_id)
    limits = limits_of(row) if row is not None else {}
    if row is None or not limits:
        return None
    rows = await tx.fetch(
        _COUNT_USE,
        windows=_windows(limits),
        tenant_id=row["tenant_id"],
        session_id=session_id,
        turns=asked.turns,
        tokens=asked.tokens,
        usd=asked.usd,
        reserved_tokens=0,
        reserved_usd=Decimal(0),
    )
    sums = [
        replace(
            used,
            tokens=used.tokens - asked.tokens,
            usd=used.usd - asked.usd,
            reserved_tokens=used.reserved_tokens + asked.tokens,
            reserved_usd=used.reserved_usd + asked.usd,
        )
        for used in map(_used, rows)
    ]
    return Counted(limits, sums, rows[0]["reservation"])


async def give_back(
    tx: Transaction, session_id: SessionId, reservation: JsonObject, counted: WorstCase, used: WorstCase
) -> None:
    """Puts what a call used in the place of what was `counted` for it."""
    await tx.execute(
        _GIVE_BACK,
        session_id=session_id,
        reservation=reservation,
        turns=used.turns,
        tokens=used.tokens - counted.tokens,
        usd=used.usd - counted.usd,
    )


def limits_of(row: Record) -> dict[Scope, Limits]:
    """By scope, from a row with a session's `limits` and its `tenant_limits`; a scope without any is left out."""
    found: dict[Scope, Limits] = {}
    if row["tenant_limits"]:
        found["tenant"] = limits_from_json(row["tenant_limits"])
    if row["limits"]:
        found["session"] = limits_from_json(row["limits"])
    return found


async def set_limits(tx: Transaction, tenant_id: TenantId, limits: Limits) -> None:
    """Sets these and leaves the tenant's others as they are."""
    await tx.execute(_SET, tenant_id=tenant_id, limits={name: str(value) for name, value in limits.items()})


async def clear_limits(tx: Transaction, tenant_id: TenantId) -> int:
    """Takes all of the tenant's limits away, with what was counted for them; how many there were."""
    return cast(int, await tx.fetchval(_CLEAR, tenant_id=tenant_id))


async def list_limits(tx: Transaction, tenant_id: TenantId | None) -> list[Record]:
    """Limits with the counts of their running spans (null where nothing was counted), of one tenant or of all."""
    return await tx.fetch(_LIST, tenant_id=tenant_id)


def _windows(limits: Mapping[Scope, Limits]) -> list[Any]:
    return [{"scope": scope, "span": span} for scope, values in limits.items() for span in spans_of(values)]


def _used(row: Record) -> Used:
    return Used(
        scope=row["scope"],
        span=row["span"],
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        retry_after_s=row["retry_after_s"],
        turns=row["turns"],
        tokens=row["tokens"],
        usd=row["usd"],
        reserved_tokens=row["reserved_tokens"],
        reserved_usd=row["reserved_usd"],
    )
