"""Limits as the operator sets them: what each tenant may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from app.db import limits as store
from app.db.database import Database
from app.domain.errors import InvalidRequest
from app.domain.limits import LIMITS
from app.domain.types import TenantId

_LARGEST = Decimal(10**9)


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """A limit and what is used of it, with what running turns have reserved; `resets_at` is None for a total."""

    tenant_id: TenantId
    name: str
    value: Decimal
    used: Decimal
    resets_at: datetime | None


async def set_limits(database: Database, tenant_id: TenantId, values: Mapping[str, Decimal]) -> None:
    """Sets these limits, from now on; the tenant's others stay. Raises `InvalidRequest`."""
    if not tenant_id.strip():
        raise InvalidRequest("A tenant has a name.", ("tenant",))
    for name, value in values.items():
        whole = LIMITS[name][0] == "usd" or value == value.to_integral_value()
        if not (value.is_finite() and 0 <= value <= _LARGEST and whole):
            raise InvalidRequest(f"{name} is a number from 0 to {_LARGEST:,}, whole where it is no money.", (name,))
    async with database.autocommit() as tx:
        await store.set_limits(tx, tenant_id, values)


async def clear_limits(database: Database, tenant_id: TenantId) -> int:
    """Takes all of the tenant's limits away and forgets what was counted for them; how many there were."""
    async with database.autocommit() as tx:
        return await store.clear_limits(tx, tenant_id)


async def list_limits(database: Database, tenant_id: TenantId | None) -> list[TenantLimit]:
    """Limits of a tenant, or of all, by tenant and name."""
    async with database.autocommit() as tx:
        rows = await store.list_limits(tx, tenant_id)
    found: list[TenantLimit] = []
    for row in rows:
        unit = LIMITS[row["name"]][0]
        used = Decimal(row[unit] or 0) + (0 if unit == "turns" else Decimal(row[f"reserved_{unit}"] or 0))
        found.append(TenantLimit(TenantId(row["tenant_id"]), row["name"], row["value"], used, row["ends_at"]))
    return found
