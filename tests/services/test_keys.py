"""API keys and the authenticator, on real Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from app.db.database import Database
from app.domain.errors import DatabaseUnavailable, InvalidRequest, NotFound, Unauthenticated
from app.domain.types import TenantId
from app.services import keys
from app.services.keys import Authenticator
from tests.pooling import own_database

ANNA = TenantId("anna")


class Clock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    opened = own_database(database_url, pool_size=2)
    yield opened
    await opened.aclose()


def bearer(secret: str) -> bytes:
    return f"Bearer {secret}".encode()


async def test_a_secret_is_shown_once_and_only_its_hash_is_stored(database: Database) -> None:
    key, secret = await keys.create_key(database, uuid7, ANNA, "laptop")
    assert secret.startswith("plk_")
    assert len(secret) >= 4 + 43
    assert secret.startswith(key.prefix)
    assert len(key.prefix) == 12
    (listed,) = await keys.list_keys(database)
    assert listed == key
    assert secret not in repr(listed)


async def test_while_no_key_exists_everybody_is_the_default_tenant(database: Database) -> None:
    assert not await keys.any_key_exists(database)
    authenticator = Authenticator(database, Clock())
    assert await authenticator.tenant_of(None) == keys.OPEN_TENANT
    assert await authenticator.tenant_of(b"Bearer anything") == keys.OPEN_TENANT


async def test_a_key_identifies_its_tenant_and_any_other_header_is_refused(database: Database) -> None:
    _, secret = await keys.create_key(database, uuid7, ANNA, "laptop")
    authenticator = Authenticator(database, Clock())
    assert await authenticator.tenant_of(bearer(secret)) == ANNA
    for wrong in (None, b"", b"Bearer", b"Bearer \xff\xfe", bearer(secret + "x"), bearer(secret[:-1]), secret.encode()):
        with pytest.raises(Unauthenticated):
            await authenticator.tenant_of(wrong)


async def test_a_known_key_needs_no_statement_until_its_cache_entry_expires(database: Database) -> None:
    key, secret = await keys.create_key(database, uuid7, ANNA, "laptop")
    clock = Clock()
    authenticator = Authenticator(database, clock, ttl_s=5)
    assert await authenticator.tenant_of(bearer(secret)) == ANNA
    await keys.revoke_key(database, key.id)
    clock.seconds += 4.9
    assert await authenticator.tenant_of(bearer(secret)) == ANNA  # nobody was asked
    clock.seconds += 0.2
    with pytest.raises(Unauthenticated):
        await authenticator.tenant_of(bearer(secret))


async def test_no_key_is_accepted_while_the_database_is_unavailable(database: Database) -> None:
    authenticator = Authenticator(Database("postgresql://nobody@127.0.0.1:1/nothing", pool_size=1), Clock())
    with pytest.raises(DatabaseUnavailable):
        await authenticator.tenant_of(b"Bearer plk_x")


async def test_a_revoked_key_is_refused_within_seconds_and_does_not_open_the_door(database: Database) -> None:
    key, secret = await keys.create_key(database, uuid7, ANNA, "laptop")
    clock = Clock()
    authenticator = Authenticator(database, clock, ttl_s=5)
    assert await authenticator.tenant_of(bearer(secret)) == ANNA
    revoked = await keys.revoke_key(database, key.id)
    assert revoked.revoked_at is not None
    assert await keys.revoke_key(database, key.id) == revoked
    clock.seconds += 5.1
    for header in (bearer(secret), None):
        with pytest.raises(Unauthenticated):
            await authenticator.tenant_of(header)
    assert await keys.any_key_exists(database)


async def test_revoking_what_is_not_there_says_so(database: Database) -> None:
    with pytest.raises(NotFound):
        await keys.revoke_key(database, uuid4())


@pytest.mark.parametrize(("tenant", "name"), [("", "a"), ("a", ""), ("a\n", "a"), ("a", "a\x00"), ("a" * 201, "a")])
async def test_a_key_needs_names_that_can_be_printed(database: Database, tenant: str, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await keys.create_key(database, uuid7, TenantId(tenant), name)
    assert await keys.list_keys(database) == []


async def test_a_secret_made_elsewhere_is_stored_once_and_stays_revoked(database: Database) -> None:
    secret = "plk_" + "a1" * 16
    key = await keys.store_key(database, uuid7, ANNA, "chart", secret)
    assert key is not None
    assert await Authenticator(database, Clock()).tenant_of(bearer(secret)) == ANNA
    await keys.revoke_key(database, key.id)
    assert await keys.store_key(database, uuid7, ANNA, "chart", secret) is None
    (stored,) = await keys.list_keys(database)
    assert stored.revoked_at is not None


@pytest.mark.parametrize("secret", ["", "plk_", "plk_" + "a" * 31, "a" * 40, "plk_" + "ä" * 40, "plk_" + "a" * 201])
async def test_a_secret_that_is_easily_guessed_or_no_key_is_not_stored(database: Database, secret: str) -> None:
    with pytest.raises(InvalidRequest):
        await keys.store_key(database, uuid7, ANNA, "chart", secret)
    assert await keys.list_keys(database) == []
