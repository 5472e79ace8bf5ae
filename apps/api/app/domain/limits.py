"""Limits of a tenant or a session: what may be used in a span of time, and which limit a call exceeds.

Spans are calendar spans in UTC: a minute, a day, a month, or all time since the limit was set (`total`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import inf
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from app.domain.errors import LimitExceeded
from app.domain.frozen import frozen

Scope: TypeAlias = Literal["tenant", "session"]
LimitUnit: TypeAlias = Literal["turns", "tokens", "usd"]
LimitSpan: TypeAlias = Literal["minute", "day", "month", "total"]
Limits: TypeAlias = Mapping[str, Decimal]
"""Values by name; a name is one of `LIMITS`."""

ANOTHER_CALL: Final = "another call of this turn"
_WHILE_OTHERS_RUN_S: Final = 1

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
class CallUse:
    """What one model call counts under limits: the most that it may use, reserved before it, or what it used. `turns`
    is 0 for a later round of a turn."""

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
        return Decimal(getattr(self, unit))

    def reserved(self, unit: LimitUnit) -> Decimal:
        return Decimal(0 if unit == "turns" else getattr(self, f"reserved_{unit}"))


def spans_of(limits: Limits) -> list[LimitSpan]:
    return sorted({LIMITS[name][1] for name in limits})


def check_limits(limits: Mapping[Scope, Limits], counted: Iterable[Used], worst: CallUse, what: str) -> None:
    """Raises `LimitExceeded` for the limit that `worst` would exceed, by counts without it; of several the one that
    takes the longest. A limit that is exactly reached, or of which the call uses nothing, is not exceeded. `what` names
    the call in the error."""
    by_span = {(used.scope, used.span): used for used in counted}
    over: list[tuple[float, tuple[str, Decimal, Used, Decimal, bool]]] = []
    for scope, values in limits.items():
        for name, value in values.items():
            unit, span = LIMITS[name]
            used, needed = by_span[scope, span], Decimal(getattr(worst, unit))
            if needed and used.settled(unit) + used.reserved(unit) + needed > value:
                waits_for_others = used.settled(unit) + needed <= value  # fits without what running calls have reserved
                after_s = _WHILE_OTHERS_RUN_S if waits_for_others else used.retry_after_s
                over.append((inf if after_s is None else after_s, (name, value, used, needed, waits_for_others)))
    if over:  # only then is an error made: one in the list would refer to this frame, which refers to the list
        raise _refusal(*max(over, key=itemgetter(0))[1], what)


def _refusal(
    name: str, value: Decimal, counted: Used, needed: Decimal, waits_for_others: bool, what: str
) -> LimitExceeded:
    used, reserved = counted.settled(LIMITS[name][0]), counted.reserved(LIMITS[name][0])
    resets_at = f"{counted.ends_at:%Y-%m-%dT%H:%M:%SZ}" if counted.ends_at else None
    whose = "tenant" if counted.scope == "tenant" else "session"
    running = " Turns that run now hold the rest of it." if waits_for_others else ""
    when = f" It resets at {resets_at}." if resets_at else ""
    nothing = "" if what == ANOTHER_CALL else " Nothing was stored or sent to the model."
    return LimitExceeded(
        f"The {whose}'s limit {name} is {value.normalize():f}, and {what} would exceed it.{running}{when}{nothing}",
        {
            "scope": counted.scope,
            "name": name,
            "value": _number(value),
            "used": _number(used),
            "reserved": _number(reserved),
            "asked": _number(needed),
            "resets_at": resets_at,
        },
        _WHILE_OTHERS_RUN_S if waits_for_others else counted.retry_after_s,
    )


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
