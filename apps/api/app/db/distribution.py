"""Where the rows of each table are placed on Citus, and the command that distributes them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import asyncpg

from app.db.database import Transaction
from app.db.schema import ADVISORY_LOCK, SchemaState, schema_state
from app.db.sql import sql
from app.db.tables import metadata
from app.domain.errors import OperatorError
from app.domain.frozen import frozen


class Spread(StrEnum):
    BY_SESSION = "distributed by session"
    BY_TENANT = "distributed by tenant"
    REFERENCE = "reference table, whole on every node"
    COORDINATOR = "stays on the coordinator"


@frozen
class Placement:
    spread: Spread
    why: str


_BY_SESSION = Placement(Spread.BY_SESSION, "all of a session is on one node: a turn's transactions touch no other")
_ELSEWHERE: Final[Mapping[str, Placement]] = {
    "limits": Placement(Spread.REFERENCE, "a claim reads it beside its session; only operators write it"),
    "tenant_usage": Placement(
        Spread.BY_TENANT,
        "every turn of a limited tenant writes it: tenants wait for themselves alone, on one node each",
    ),
    "api_keys": Placement(Spread.COORDINATOR, "read on its own, and kept by every process for seconds"),
    "calibrations": Placement(Spread.COORDINATOR, "merged on its own, once in two seconds by every process"),
    "learned_windows": Placement(
        Spread.COORDINATOR, "a row for a window that a provider stated; read by all as a whole"
    ),
}
PLACEMENTS: Final[Mapping[str, Placement]] = {
    # Referenced tables first: a foreign key is created on the nodes together with the table that has it.
    table.name: _ELSEWHERE.get(table.name, _BY_SESSION)
    for table in metadata.sorted_tables
}
"""The placement of every table, in the order in which they are distributed."""


class DistributionRefused(OperatorError):
    """Nothing was distributed; the message says why."""


_HAS_CITUS = sql("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')")
# Reference and distributed tables change in one transaction, so Citus must work on one node at a time, not on all.
_ALONE = sql(f"""
    SELECT pg_advisory_xact_lock({ADVISORY_LOCK}), set_config('citus.multi_shard_modify_mode', 'sequential', true)
    """)
_DISTRIBUTED = sql("SELECT CAST(logicalrelid AS text) AS name FROM pg_dist_partition")
_SPREAD = {
    Spread.BY_SESSION: sql("SELECT create_distributed_table(:name, 'session_id', colocate_with => 'sessions')"),
    Spread.BY_TENANT: sql("SELECT create_distributed_table(:name, 'tenant_id', colocate_with => 'none')"),
    Spread.REFERENCE: sql("SELECT create_reference_table(:name)"),
}
_SPREAD_SESSIONS = sql("SELECT create_distributed_table(:name, 'id', colocate_with => 'none')")
# The rows have been copied to their nodes; the local copies are no longer needed.
_DROP_LOCAL_ROWS = sql("SELECT truncate_local_data_after_distributing_table(:name)")


async def distribute(tx: Transaction) -> list[str]:
    """Distributes every table that is not distributed yet, with its rows; returns the names of these tables. Writers of
    a table wait meanwhile. Raises `DistributionRefused`."""
    if not await tx.fetchval(_HAS_CITUS):
        raise DistributionRefused("the database has no Citus: CREATE EXTENSION citus, and add the nodes, first")
    await tx.fetch(_ALONE)
    if (state := await schema_state(tx)) is not SchemaState.CURRENT:
        raise DistributionRefused(
            f"the database's schema is {state}: run `plimsoll migrate` and `plimsoll distribute` of the same version"
        )
    there = {row["name"] for row in await tx.fetch(_DISTRIBUTED)}
    new = [
        name
        for name, placement in PLACEMENTS.items()
        if placement.spread is not Spread.COORDINATOR and name not in there
    ]
    try:
        for name in new:
            await tx.fetch(_SPREAD_SESSIONS if name == "sessions" else _SPREAD[PLACEMENTS[name].spread], name=name)
        for name in reversed(new):
            await tx.fetch(_DROP_LOCAL_ROWS, name=name)
    except (asyncpg.PostgresSyntaxError, asyncpg.FeatureNotSupportedError, asyncpg.InsufficientPrivilegeError) as error:
        raise DistributionRefused(f"Citus refuses it, and all was rolled back: {error}") from error
    return new
