"""On a Citus cluster (`make test-citus`): tables that are spread, migrations on them, locks that are not waited for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from app.db.database import Database
from app.db.distribution import PLACEMENTS, Spread
from app.db.migrate import downgrade, upgrade
from app.db.sql import Statement
from app.domain.errors import SessionBusy
from app.domain.types import SessionId, TurnStatus
from tests.db.test_distribution import all_statements
from tests.services.service import service
from torture.databases import citus_servers, distribute_at, execute, new_name

SERVERS = citus_servers()
pytestmark = pytest.mark.skipif(SERVERS is None, reason="no Citus cluster (`make test-citus`)")
_FIRST = "2026_11_22_first_tables"
_WITH_LIMITS = "2026_11_22_limits"
SESSION = SessionId(UUID("01900000-0000-7000-8000-000000000001"))
_OLD_ROWS = (
    """
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata, last_turn_seq, last_message_seq)
    VALUES ('01900000-0000-7000-8000-000000000001', 'default', 'offline', '{}', '{}', 1, 2)
    """,
    """
    INSERT INTO turns (id, session_id, seq, status, user_input, assistant_output, model_alias, request_sha256)
    SELECT id, id, 1, 'completed', 'Of an earlier release', 'Noted.', model_alias, '' FROM sessions
    """,
    """
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT id, session_id, id, 1, 'user', to_jsonb(user_input), 5, 'o200k_base' FROM turns
    """,
    """
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT CAST('01900000-0000-7000-8000-000000000002' AS uuid), session_id, id, 2, 'assistant',
        to_jsonb(assistant_output), 5, 'o200k_base' FROM turns
    """,
)
_NEEDED = {"session_id", "session_ids", "tenant_id", "source", "target", "before", "horizon", "key", "spans", "pattern"}
_SCALARS: dict[str, object] = {
    "uuid": SESSION,
    "text": "default",
    "varchar": "default",
    "bytea": b"x",
    "jsonb": "[]",
    "bool": True,
    "timestamptz": datetime.now(UTC),
    **dict.fromkeys(("int4", "int8", "numeric", "float4", "float8"), 1),
}
_VALUES = _SCALARS | {f"{kind}[]": [value] for kind, value in _SCALARS.items()}
_KIND = {
    Spread.BY_SESSION: "distributed",
    Spread.BY_TENANT: "distributed",
    Spread.REFERENCE: "reference",
}


@pytest_asyncio.fixture
async def undistributed() -> AsyncGenerator[str]:
    """A migrated database that knows its nodes."""
    assert SERVERS is not None
    url = await SERVERS.make(new_name())
    await upgrade(url)
    yield url


async def _rows(url: str, sql: str) -> list[dict[str, Any]]:
    connection = await cast(Any, asyncpg).connect(url)
    try:
        return [dict(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def test_every_table_is_distributed_as_its_placement_says_and_a_second_run_changes_nothing(
    undistributed: str,
) -> None:
    spread = [name for name, placement in PLACEMENTS.items() if placement.spread is not Spread.COORDINATOR]
    assert await distribute_at(undistributed) == spread
    await upgrade(undistributed)
    assert await distribute_at(undistributed) == []
    found = {
        row["name"]: (row["citus_table_type"], row["distribution_column"], row["colocation_id"])
        for row in await _rows(undistributed, "SELECT CAST(table_name AS text) AS name, * FROM citus_tables")
    }
    assert {name: kind for name, (kind, _, _) in found.items()} == {
        name: _KIND[PLACEMENTS[name].spread] for name in spread
    }
    by_session = [name for name in spread if PLACEMENTS[name].spread is Spread.BY_SESSION]
    assert len({found[name][2] for name in by_session}) == 1, "sessions and what is below them are on one node"


async def test_what_is_stored_stays_through_distribution_and_migrations_down_and_up(undistributed: str) -> None:
    async with service(undistributed) as at:
        session = await at.session()
        await at.turn(session.id, "Before there were nodes")
    await distribute_at(undistributed)
    async with service(undistributed) as at:
        await at.turn(session.id, "On its node")
    await downgrade(undistributed, _FIRST)
    await upgrade(undistributed)
    made_anew = ["limits", "session_usage", "tenant_usage", "responses", "message_vectors"]
    assert sorted(await distribute_at(undistributed)) == sorted(made_anew), "what a migration makes is distributed next"
    async with service(undistributed) as at:
        outcome = await at.turn(session.id, "After the migrations")
    assert (outcome.turn.seq, outcome.turn.status) == (3, TurnStatus.COMPLETED)
    kept = await _rows(undistributed, "SELECT user_input FROM turns ORDER BY seq")
    assert [row["user_input"] for row in kept] == ["Before there were nodes", "On its node", "After the migrations"]


@pytest.mark.parametrize("revision", [_FIRST, _WITH_LIMITS])
async def test_tables_that_an_earlier_release_distributed_are_migrated_with_their_rows(revision: str) -> None:
    assert SERVERS is not None
    url = await SERVERS.make(new_name())
    await upgrade(url)
    await downgrade(url, revision)
    await _distribute_by_hand(url)
    await execute(url, *_OLD_ROWS)
    await upgrade(url)
    await distribute_at(url)
    async with service(url) as at:
        outcome = await at.turn(SESSION, "And after the upgrade?")
    assert (outcome.turn.seq, outcome.turn.status) == (2, TurnStatus.COMPLETED)
    assert outcome.context["regions"]["history"] > 0, "what was stored then is in the prompt"
    await downgrade(url, revision)
    kept = await _rows(url, "SELECT seq, user_input FROM turns ORDER BY seq")
    assert [tuple(row.values()) for row in kept] == [(1, "Of an earlier release"), (2, "And after the upgrade?")]


async def _distribute_by_hand(url: str) -> None:
    """Every table that is there as its release placed it, those that are gone by now by session."""
    there = {
        row["name"] for row in await _rows(url, "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'")
    }
    known = [name for name in PLACEMENTS if name in there]
    for name in [*known, *sorted(there - PLACEMENTS.keys() - {"alembic_version"})]:
        spread = PLACEMENTS[name].spread if name in PLACEMENTS else Spread.BY_SESSION
        column = {Spread.BY_SESSION: "id" if name == "sessions" else "session_id", Spread.BY_TENANT: "tenant_id"}
        if spread is Spread.REFERENCE:
            await execute(url, f"SELECT create_reference_table('{name}')")
        elif spread in column:
            await execute(url, f"SELECT create_distributed_table('{name}', '{column[spread]}')")


@pytest.mark.parametrize("optional", ["given", "null"])
async def test_every_statement_is_one_that_a_cluster_runs(database_url: str, optional: str) -> None:
    connection = await cast(Any, asyncpg).connect(database_url)
    await connection.execute(";".join(_OLD_ROWS))
    refused: dict[str, str] = {}
    for statement in all_statements():
        kinds = [parameter.name for parameter in (await connection.prepare(statement.text)).get_parameters()]
        needed = [optional == "given" or name in _NEEDED for name in statement.names]
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.fetch(
                statement.text, *(_VALUES[kind] if give else None for kind, give in zip(kinds, needed, strict=True))
            )
        except (asyncpg.FeatureNotSupportedError, asyncpg.InternalServerError, asyncpg.DataError) as error:
            if "violates" not in str(error) and "non-object" not in str(error):
                refused[statement.text] = str(error)
        except asyncpg.IntegrityConstraintViolationError:
            pass
        finally:
            await transaction.rollback()
    await connection.close()
    assert not refused


async def test_a_row_that_is_locked_on_its_node_is_waited_for_no_longer_than_the_setting_says(
    database_url: str,
) -> None:
    lock = Statement("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", ("session_id",))
    async with service(database_url) as at:
        session = await at.session()
    holder, waiter = Database(database_url, pool_size=1), Database(database_url, pool_size=1, lock_timeout_s=0.2)
    async with holder.begin() as held:
        await held.fetch(lock, session_id=session.id)
        with pytest.raises(SessionBusy):
            async with waiter.begin(locking=session.id) as tx:
                await tx.fetch(lock, session_id=session.id)
    await holder.aclose()
    await waiter.aclose()
