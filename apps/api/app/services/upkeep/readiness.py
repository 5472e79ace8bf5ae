"""Whether this process can serve: the database answers and takes writes, and its schema is this version's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.db.migrate import SchemaState, schema_state
from app.domain.errors import DatabaseUnavailable
from app.services.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Readiness:
    """`migrations` is None when the database does not answer."""

    database: Literal["ok", "read_only", "unavailable"]
    migrations: SchemaState | None

    @property
    def ready(self) -> bool:
        """Whether a balancer should send requests here."""
        return self.database == "ok" and self.migrations is SchemaState.CURRENT


async def readiness(rt: Runtime) -> Readiness:
    """Asks the database. Never raises for its absence."""
    try:
        read_only = await rt.database.is_read_only()
        async with rt.database.autocommit() as tx:
            return Readiness("read_only" if read_only else "ok", await schema_state(tx))
    except DatabaseUnavailable:
        return Readiness("unavailable", None)
