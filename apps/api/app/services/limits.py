"""Limits: those that the operator sets, and what a model call may use under them. That is reserved before the call and
settled after it: for a turn's call in the turn's two transactions, for a summary's in transactions of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from app.db import limits as store
from app.db.claims import Claim
from app.db.database import Database, Transaction
from app.domain.errors import DatabaseUnavailable, InvalidRequest, LimitExceeded, ProviderError, RetryLater
from app.domain.frozen import frozen, replace
from app.domain.limits import ANOTHER_CALL, LIMITS, CallUse, check_limits
from app.domain.prices import usd_of_rows
from app.domain.types import Completion, JsonObject, SessionId, TenantId, Usage
from app.services.runtime import Runtime, retried

if TYPE_CHECKING:  # as in `runtime.py`
    from app.providers.registry import Model

_LARGEST = Decimal(10**9)
_USD_DIGITS = 10


@frozen
class TenantLimit:
    """A limit and its use, which includes what running turns have reserved. `resets_at` is None for a total."""

    tenant_id: TenantId
    name: str
    value: Decimal
    used: Decimal
    resets_at: datetime | None


async def set_limits(database: Database, tenant_id: TenantId, values: Mapping[str, Decimal]) -> None:
    """Sets these limits from now on; the tenant's other limits are kept. Raises `InvalidRequest`."""
    if not tenant_id.strip() or not tenant_id.isprintable():
        raise InvalidRequest("A tenant has a name of printable characters.", ("tenant",))
    for name, value in values.items():
        digits = _USD_DIGITS if LIMITS[name][0] == "usd" else 0
        if not (value.is_finite() and 0 <= value <= _LARGEST and value == round(value, digits)):
            raise InvalidRequest(
                f"{name} is a number from 0 to {_LARGEST:,}; only dollars have fractions, of {_USD_DIGITS} digits.",
                (name,),
            )
    await database.run(store.set_limits, tenant_id, values)


async def clear_limits(database: Database, tenant_id: TenantId) -> int:
    """Deletes all limits of the tenant and sets what was counted for them to 0; returns how many limits there were."""
    async with database.begin() as tx:
        return await store.clear_limits(tx, tenant_id)


async def list_limits(database: Database, tenant_id: TenantId | None) -> list[TenantLimit]:
    """The limits of a tenant, or of all tenants, ordered by tenant and name."""
    rows = await database.run(store.list_limits, tenant_id)
    found: list[TenantLimit] = []
    for row in rows:
        unit = LIMITS[row["name"]][0]
        used = Decimal(row[unit] or 0) + (0 if unit == "turns" else Decimal(row[f"reserved_{unit}"] or 0))
        found.append(TenantLimit(TenantId(row["tenant_id"]), row["name"], row["value"], used, row["ends_at"]))
    return found


async def reserve_call(tx: Transaction, claim: Claim, worst: CallUse) -> JsonObject:
    """Reserves what the call may use under the claim's limits; returns the reservation as the turn stores it. Raises
    `LimitExceeded`; the caller must then roll the transaction back."""
    counted, reservation = await store.reserve(tx, claim.session, claim.turn_id, claim.limits, worst)
    check_limits(claim.limits, counted, worst, "this turn")
    return reservation


def all_of(reservation: JsonObject) -> CallUse:
    """All that was reserved: what counts as used if the provider did not report the usage of its answer."""
    return CallUse(reservation["turns"], reservation["tokens"], Decimal(str(reservation["usd"])))


class Repeats:
    """Further attempts of a call after one that used tokens: its `reservation` covers one. What each may use is counted
    as used before it, and is not counted once more when the call is settled."""

    def __init__(self, rt: Runtime, session_id: SessionId, reservation: JsonObject) -> None:
        self.reservation = reservation
        self._rt = rt
        self._session_id = session_id
        self._most = replace(all_of(reservation), turns=0)
        self._counted = 0

    async def are_allowed(self) -> bool:
        """Whether the limits, if there are any, allow one more attempt, which they then count."""
        try:
            counted = await _count_use(self._rt, self._session_id, self._most, ANOTHER_CALL)
        except (LimitExceeded, RetryLater):
            return False
        self._counted += counted is not None  # without limits by now nothing is
        return True

    def beyond_counted(self, used: CallUse) -> CallUse:
        """What all attempts used, without what is counted already; its figures may be below zero."""
        tokens, usd = self._counted * self._most.tokens, self._counted * self._most.usd
        return CallUse(used.turns, used.tokens - tokens, used.usd - usd)


async def within_limits(
    rt: Runtime,
    session_id: SessionId,
    most: CallUse,
    call: Callable[[], Awaitable[Completion]],
    used: Callable[[], CallUse],
    *,
    what: str = ANOTHER_CALL,
) -> Completion:
    """Makes a call other than the turn's first. Before it, the most that it may use is counted; after it, what `used`
    then says was reported of it, also if it failed. The most stays counted if no usage of the answer was reported, or
    the process dies in between. Raises `LimitExceeded`, before any model is called, and `ProviderError`."""
    reservation = await _count_use(rt, session_id, most, what)
    try:
        completion = await call()
    except ProviderError:
        await _give_back(rt, session_id, reservation, most, used())
        raise
    await _give_back(rt, session_id, reservation, most, used() if completion.usage else most)
    return completion


@retried
async def _count_use(rt: Runtime, session_id: SessionId, worst: CallUse, what: str) -> JsonObject | None:
    async with rt.database.begin() as tx:
        counted = await store.count_use(tx, session_id, worst)
        if counted is None:
            return None
        limits, sums, reservation = counted
        check_limits(limits, sums, worst, what)
    return reservation


async def _give_back(
    rt: Runtime, session_id: SessionId, reservation: JsonObject | None, worst: CallUse, used: CallUse
) -> None:
    if reservation is None:
        return
    with suppress(DatabaseUnavailable):  # the most stays counted; the answer must not be lost for that
        async with rt.database.begin() as tx:
            await store.give_back(tx, session_id, reservation, worst, used)


def most_of(model: Model, prompt_tokens: int, output_tokens: int, turns: int = 0) -> CallUse:
    """The most that a call counts whose prompt and answer have at most these tokens, as the provider counts them.
    Writing the whole prompt to the provider's cache is included if that has a price of its own. Without a known price
    the cost is 0. `turns` is 1 if a client requested the call itself: then it counts as a turn."""
    written_tokens = prompt_tokens if model.reports_cache_writes else 0
    usage = Usage(prompt_tokens, output_tokens, cache_write_prompt_tokens=written_tokens)
    return CallUse(turns, prompt_tokens + output_tokens, model.cost_of(usage) or Decimal(0))


def use_of(usages: Sequence[JsonObject], turns: int = 0) -> CallUse:
    """What the calls of these usage rows count; a call that used nothing is no turn."""
    tokens = sum(used["prompt_tokens"] + used["completion_tokens"] for used in usages)
    return CallUse(turns if usages else 0, tokens, usd_of_rows(usages) or Decimal(0))
