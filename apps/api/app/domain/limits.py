"""Limits of a tenant or a session: what may be used in a span of time, and which limit a call exceeds.

Spans are calendar spans in UTC: a minute, a day, a month, or all time since the limit was set (`total`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import inf
from typing import Literal, TypeAlias

from app.domain.frozen import frozen

Scope: TypeAlias = Literal["tenant", "session"]
LimitUnit: TypeAlias = Literal["turns", "tokens", "usd"]
LimitSpan: TypeAlias = Literal["minute", "day", "month", "total"]
Limits: TypeAlias = Mapping[str, Decimal]
"""Values by name; a name is one of `LIMITS`."""

LIMITS: Mapping[str, tuple[LimitUnit, LimitSpan]] = {
    "turns_per_minute": ("turns", "minute"),
    "turns_per_day": ("turns", "day"),
    "turns_total": ("turns", "total"),
    "tokens_per_minute": ("tokens", "minute"),
    "tokens_per_day": ("tokens", "day"),
    "tokens_total": ("tokens", "total"),
    "usd_per_day": ("usd", "day"),
    "usd_per_month": ("usd", "month"),
    "usd_total": ("usd", "total"),
}


@frozen
class WorstCase:
    """The most that one model call may use, reserved before it. `turns` is 0 for a later round of a turn."""

    turns: int
    tokens: int
    usd: Decimal


@frozen
class Used:
    """The use of a span so far. `reserved_*` is for calls that are running; turns are counted when they begin."""

    scope: Scope
    span: LimitSpan
    starts_at: datetime
    ends_at: datetime | None
    retry_after_s: int | None
    turns: int
    tokens: int
    usd: Decimal
    reserved_tokens: int
    reserved_usd: Decimal

    def settled(self, unit: LimitUnit) -> Decimal:
        return Decimal({"turns": self.turns, "tokens": self.tokens, "usd": self.usd}[unit])

    def reserved(self, unit: LimitUnit) -> Decimal:
        return Decimal({"turns": 0, "tokens": self.reserved_tokens, "usd": self.reserved_usd}[unit])


@frozen
class Exceeded:
    """A limit that a call exceeds. `used` is without the call, `reserved` is for other running calls, and `needed` is
    for the call itself. `waits_for_others` is true if the call would fit without the reservations of others.
    """

    scope: Scope
    name: str
    value: Decimal
    used: Decimal
    reserved: Decimal
    needed: Decimal
    resets_at: datetime | None
    retry_after_s: int | None

    @property
    def waits_for_others(self) -> bool:
        """Whether the call may fit before the span ends."""
        return self.used + self.needed <= self.value


def spans_of(limits: Limits) -> list[LimitSpan]:
    """The spans that have to be counted for these limits."""
    return sorted({LIMITS[name][1] for name in limits})


def exceeded(limits: Mapping[Scope, Limits], counted: Iterable[Used], worst: WorstCase) -> Exceeded | None:
    """The limit that `worst` would exceed, by counts without it; of several the one that resets last.

    A limit that is exactly reached is not exceeded.
    """
    by_span = {(used.scope, used.span): used for used in counted}
    needed: Mapping[LimitUnit, Decimal] = {
        "turns": Decimal(worst.turns),
        "tokens": Decimal(worst.tokens),
        "usd": worst.usd,
    }
    over: list[Exceeded] = []
    for scope, values in limits.items():
        for name, value in values.items():
            unit, span = LIMITS[name]
            used, own = by_span[scope, span], needed[unit]
            settled, reserved = used.settled(unit), used.reserved(unit)
            if settled + reserved + own > value:
                over.append(Exceeded(scope, name, value, settled, reserved, own, used.ends_at, used.retry_after_s))
    return max(over, key=lambda found: inf if found.retry_after_s is None else found.retry_after_s, default=None)
