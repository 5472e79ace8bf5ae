"""The tables can be distributed by session: every key below `sessions` is led by `session_id`, every table has a place,
and no statement has what Citus refuses. `tests/db/test_citus.py` distributes them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any, cast

import asyncpg
import pytest
import sqlalchemy as sa

import app.db
from app.db.database import Database
from app.db.distribution import PLACEMENTS, DistributionRefused, Spread
from app.db.sql import Statement
from app.db.tables import metadata
from tests.pooling import behind_pooler
from torture.databases import citus_servers, distribute_at

_OF_NO_SESSION = {"sessions", "api_keys", "calibrations", "learned_windows", "limits", "tenant_usage"}
_BELOW = [table for table in metadata.sorted_tables if "session_id" in table.columns]


def test_a_table_without_a_session_is_one_that_belongs_to_none() -> None:
    without = {table.name for table in metadata.sorted_tables} - {table.name for table in _BELOW}
    assert without <= _OF_NO_SESSION


@pytest.mark.parametrize("table", _BELOW, ids=lambda table: table.name)
def test_every_key_of_a_table_below_sessions_is_led_by_the_session(table: sa.Table) -> None:
    keys = [
        [column.name for column in constraint.columns]
        for constraint in table.constraints
        if isinstance(constraint, (sa.PrimaryKeyConstraint, sa.UniqueConstraint, sa.ForeignKeyConstraint))
    ]
    keys += [[column.name for column in index.columns] for index in table.indexes if index.unique]
    assert len(keys) >= 2
    assert all(columns[0] == "session_id" for columns in keys), keys
    for constraint in table.foreign_key_constraints:
        assert constraint.elements[0].column.name == (
            "id" if constraint.referred_table.name == "sessions" else "session_id"
        )


def test_every_table_has_a_place_that_its_key_allows() -> None:
    assert PLACEMENTS.keys() == metadata.tables.keys()
    for name, placement in PLACEMENTS.items():
        table = metadata.tables[name]
        keys = {column.name for column in table.primary_key}
        if placement.spread is Spread.BY_SESSION:
            assert name == "sessions" or "session_id" in keys, name
        elif placement.spread is Spread.BY_TENANT:
            assert "tenant_id" in keys, name
        else:
            assert name in _OF_NO_SESSION, name


def test_no_statement_has_a_volatile_clock_or_sets_one_where_citus_refuses_it() -> None:
    assert not [statement.text for statement in all_statements() if "clock_timestamp" in statement.text]


async def test_the_server_finds_the_type_of_every_parameter_by_itself(database_url: str) -> None:
    connection = await cast(Any, asyncpg).connect(database_url)
    untyped: dict[str, str] = {}
    for statement in all_statements():
        try:
            await connection.prepare(statement.text)
        except asyncpg.PostgresError as error:
            untyped[statement.text] = str(error)
    await connection.close()
    assert not untyped


def all_statements() -> list[Statement]:
    """Of the service, each once."""
    found = {
        statement.text: statement
        for module in pkgutil.iter_modules(app.db.__path__)
        if module.name != "distribution"
        for statement in _statements(vars(importlib.import_module(f"app.db.{module.name}")).values())
    }
    assert len(found) > 100
    return list(found.values())


def _statements(values: Iterable[object]) -> Iterable[Statement]:
    for value in values:
        if isinstance(value, Statement):
            yield value
        elif isinstance(value, Mapping):
            yield from _statements(cast("Mapping[str, object]", value).values())


@pytest.mark.skipif(behind_pooler(), reason="a pooler keeps no settings of a session")
async def test_a_connection_finds_its_plan_mode_by_itself(database_url: str) -> None:
    database = Database(database_url, pool_size=1)
    async with database.autocommit() as tx:
        mode = await tx.fetchval(Statement("SHOW plan_cache_mode", ()))
    await database.aclose()
    assert mode == ("auto" if citus_servers() else "force_generic_plan")


@pytest.mark.skipif(citus_servers() is not None, reason="this server has Citus")
async def test_a_server_without_citus_says_what_is_missing(database_url: str) -> None:
    with pytest.raises(DistributionRefused, match="no Citus"):
        await distribute_at(database_url)
