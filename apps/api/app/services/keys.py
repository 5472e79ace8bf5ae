"""API keys: made once, shown once, stored as a hash; and the tenant that a request comes from."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import cast
from uuid import UUID

from app.db import api_keys as store
from app.db.api_keys import ApiKey
from app.db.database import Database
from app.domain.errors import InvalidRequest, Unauthenticated, existing
from app.domain.types import TenantId

KEY_PREFIX = "plk_"
OPEN_TENANT = TenantId("default")
"""The tenant of all requests while no key exists."""

_SECRET_BYTES = 32
_GIVEN_SECRET = re.compile(re.escape(KEY_PREFIX) + r"[\w-]{32,200}", re.ASCII)
_SHOWN_CHARACTERS = 12
_LONGEST_NAME = 200
_REMEMBERED_KEYS = 10_000
_NO_SECRET_SHA256 = hashlib.sha256(b"").hexdigest()


async def create_key(
    database: Database,
    new_id: Callable[[], UUID],
    tenant_id: TenantId,
    name: str,
    show: Callable[[str], object] = lambda _: None,
) -> tuple[ApiKey, str]:
    """Makes a key of the tenant. The second value is the secret, which cannot be retrieved again. If `show`, which gets
    it before the key is committed, raises, there is no key."""
    secret = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    key = await store_key(database, new_id, tenant_id, name, secret, show)
    return cast(ApiKey, key), secret  # not None, as no other key has a new secret


async def store_key(
    database: Database,
    new_id: Callable[[], UUID],
    tenant_id: TenantId,
    name: str,
    secret: str,
    show: Callable[[str], object] = lambda _: None,
) -> ApiKey | None:
    """Stores the hash of a secret that was made elsewhere. Returns None and changes nothing if a key with it exists,
    revoked or not. `show` is as in `create_key`."""
    for field, value in (("tenant", tenant_id), ("name", name)):
        if not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
            raise InvalidRequest(f"The {field} of a key is 1 to {_LONGEST_NAME} printable characters.", (field,))
    if not _GIVEN_SECRET.fullmatch(secret):
        raise InvalidRequest(
            f"The secret of a key is {KEY_PREFIX} and 32 to 200 letters, digits, hyphens or underscores.", ("secret",)
        )
    async with database.begin() as tx:
        prefix, digest = secret[:_SHOWN_CHARACTERS], _sha256(secret.encode())
        key = await store.insert_key(
            tx, key_id=new_id(), tenant_id=tenant_id, name=name, prefix=prefix, secret_sha256=digest
        )
        show(secret)
        return key


async def list_keys(database: Database) -> list[ApiKey]:
    """All keys, including revoked ones, oldest first."""
    return await database.run(store.list_keys)


async def revoke_key(database: Database, key_id: UUID) -> ApiKey:
    """Revokes a key; every worker refuses it within seconds. Raises `NotFound`."""
    return existing(await database.run(store.revoke_key, key_id), "key")


async def any_key_exists(database: Database) -> bool:
    """Whether a key was ever made, including revoked ones. From then on every request needs one."""
    return (await database.run(store.tenant_of_key, _NO_SECRET_SHA256))[1]


class Authenticator:
    """The tenant of a request's key. The database's answer is cached for `ttl_s`: a turn needs no statement for it."""

    def __init__(self, database: Database, monotonic: Callable[[], float], ttl_s: float = 5.0) -> None:
        self._database = database
        self._monotonic = monotonic
        self._ttl_s = ttl_s
        self._known: dict[str, tuple[TenantId, float]] = {}  # and until when it is valid
        self._open_until = 0.0

    async def tenant_of(self, authorization: bytes | None) -> TenantId:
        """The tenant of an `Authorization` header, given as raw bytes. Raises `Unauthenticated` if a key is needed and
        the header has no valid one, `DatabaseUnavailable`."""
        now = self._monotonic()
        if now < self._open_until:
            return OPEN_TENANT
        secret = _bearer(authorization)
        digest = _NO_SECRET_SHA256 if secret is None else _sha256(secret)
        tenant_id, until = self._known.get(digest, (OPEN_TENANT, 0.0))
        if now < until:
            return tenant_id
        return await self._look_up(digest, now, presented=secret is not None)

    async def _look_up(self, digest: str, now: float, *, presented: bool) -> TenantId:
        self._known.pop(digest, None)
        tenant_id, any_key_exists = await self._database.run(store.tenant_of_key, digest)
        if not any_key_exists:
            self._open_until = now + self._ttl_s
            return OPEN_TENANT
        if tenant_id is None:
            raise Unauthenticated(
                "This API key is unknown or revoked." if presented else "Send an API key: Authorization: Bearer plk_…"
            )
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        self._known[digest] = (tenant_id, now + self._ttl_s)
        return tenant_id


def _bearer(authorization: bytes | None) -> bytes | None:
    scheme, _, secret = (authorization or b"").strip().partition(b" ")
    return secret.strip() or None if scheme.lower() == b"bearer" else None


def _sha256(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
