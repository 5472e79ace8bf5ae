"""Statements on `api_keys`. Only the SHA-256 of a secret is ever stored."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from app.db.database import Record, Transaction, record_of
from app.db.sql import compile_sql
from app.db.tables import api_keys
from app.domain.types import TenantId


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as operators see it; the secret itself is nowhere."""

    id: UUID
    tenant_id: TenantId
    name: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """What the store says about a presented secret. `tenant_id` is None for an unknown or revoked one."""

    any_key_exists: bool
    tenant_id: TenantId | None
    secret_sha256: str | None


_COLUMNS = tuple(api_keys.c[each.name] for each in fields(ApiKey))
_GIVEN = ("id", "tenant_id", "name", "prefix", "secret_sha256")
_INSERT = compile_sql(
    insert(api_keys)
    .values({name: sa.bindparam(f"new_{name}") for name in _GIVEN})
    .on_conflict_do_nothing(index_elements=[api_keys.c.secret_sha256])
    .returning(*_COLUMNS)
)
_LIST = compile_sql(sa.select(*_COLUMNS).order_by(api_keys.c.id))
_REVOKE = compile_sql(
    sa.update(api_keys)
    .where(api_keys.c.id == sa.bindparam("key_id"))
    .values(revoked_at=sa.func.coalesce(api_keys.c.revoked_at, sa.text("statement_timestamp()")))
    .returning(*_COLUMNS)
)
_ANY = sa.select(api_keys.c.id).exists()
_FOUND = (
    sa.select(api_keys.c.tenant_id, api_keys.c.secret_sha256)
    .where(api_keys.c.secret_sha256 == sa.bindparam("secret_sha256"), api_keys.c.revoked_at.is_(None))
    .subquery()
)
_ONE_ROW = sa.select(sa.select(_ANY).scalar_subquery().label("any_key")).subquery()
_LOOK_UP = compile_sql(
    sa.select(_ONE_ROW.c.any_key, _FOUND.c.tenant_id, _FOUND.c.secret_sha256).select_from(
        _ONE_ROW.outerjoin(_FOUND, sa.true())
    )
)
_EXISTS = compile_sql(sa.select(_ANY))


async def insert_key(
    tx: Transaction, *, key_id: UUID, tenant_id: TenantId, name: str, prefix: str, secret_sha256: str
) -> ApiKey | None:
    """None when a key with this secret is stored already, revoked or not."""
    row = await tx.fetchrow(
        _INSERT,
        new_id=key_id,
        new_tenant_id=tenant_id,
        new_name=name,
        new_prefix=prefix,
        new_secret_sha256=secret_sha256,
    )
    return None if row is None else record_of(ApiKey, row)


async def list_keys(tx: Transaction) -> list[ApiKey]:
    """All keys, revoked ones too, oldest first."""
    return [record_of(ApiKey, row) for row in await tx.fetch(_LIST)]


async def revoke_key(tx: Transaction, key_id: UUID) -> ApiKey | None:
    """Revokes a key; one that is revoked already keeps its instant. None when there is no such key."""
    row = await tx.fetchrow(_REVOKE, key_id=key_id)
    return None if row is None else record_of(ApiKey, row)


async def find_key(tx: Transaction, secret_sha256: str) -> KeyLookup:
    """Who presented this secret, and whether any key exists at all, in one statement."""
    row = cast(Record, await tx.fetchrow(_LOOK_UP, secret_sha256=secret_sha256))  # the outer join has a row
    return KeyLookup(row["any_key"], row["tenant_id"], row["secret_sha256"])


async def any_key_exists(tx: Transaction) -> bool:
    """Whether a key was ever made. A revoked one counts: revoking the last key must lock the door, not open it."""
    return bool(await tx.fetchval(_EXISTS))
