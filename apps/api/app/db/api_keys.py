"""Statements on `api_keys`. Only the SHA-256 of a secret is ever stored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from app.db.database import Transaction
from app.db.sql import binds, insert_row, sql
from app.db.tables import api_keys
from app.domain.frozen import frozen, names_of
from app.domain.types import TenantId


@frozen
class ApiKey:
    """A key as operators see it; the secret itself is stored nowhere."""

    id: UUID
    tenant_id: TenantId
    name: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None


_COLUMNS = ", ".join(names_of(ApiKey))
_GIVEN = binds("id", "tenant_id", "name", "prefix", "secret_sha256")
_INSERT = sql(f"{insert_row(api_keys, _GIVEN)} ON CONFLICT (secret_sha256) DO NOTHING RETURNING {_COLUMNS}")
_LIST = sql(f"SELECT {_COLUMNS} FROM api_keys ORDER BY id")
_REVOKE = sql(f"""
    UPDATE api_keys SET revoked_at = coalesce(revoked_at, statement_timestamp()) WHERE id = :key_id
    RETURNING {_COLUMNS}
    """)
_LOOK_UP = sql("""
    SELECT anything.is_there, found.tenant_id
    FROM (SELECT EXISTS (SELECT FROM api_keys) AS is_there) anything
    LEFT JOIN api_keys found ON found.secret_sha256 = :secret_sha256 AND found.revoked_at IS NULL
    """)


async def insert_key(
    tx: Transaction, *, key_id: UUID, tenant_id: TenantId, name: str, prefix: str, secret_sha256: str
) -> ApiKey | None:
    """Stores a key; None when a key with this secret is stored already, revoked or not."""
    return await tx.fetch_record(
        ApiKey, _INSERT, id=key_id, tenant_id=tenant_id, name=name, prefix=prefix, secret_sha256=secret_sha256
    )


async def list_keys(tx: Transaction) -> list[ApiKey]:
    return await tx.fetch_records(ApiKey, _LIST)


async def revoke_key(tx: Transaction, key_id: UUID) -> ApiKey | None:
    """Revokes a key; one that is revoked already keeps its time. None when there is no such key."""
    return await tx.fetch_record(ApiKey, _REVOKE, key_id=key_id)


async def tenant_of_key(tx: Transaction, secret_sha256: str) -> tuple[TenantId | None, bool]:
    """The tenant with this secret, None for an unknown or revoked one; and whether any key was ever made. Revoked ones
    count: revoking the last key must not give access without a key."""
    row = await tx.fetch_one(_LOOK_UP, secret_sha256=secret_sha256)
    return row["tenant_id"], row["is_there"]
