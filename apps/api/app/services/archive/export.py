"""A session as one JSON document, read batch by batch from one snapshot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from app.archive.document import SECTIONS
from app.db.archive import exported_rows, exported_session
from app.db.forks import fork_point
from app.domain.errors import NotFound
from app.domain.types import SessionId, TenantId
from app.services.runtime import Runtime


async def export_session(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> AsyncGenerator[tuple[str, Any]]:
    """The parts of the document in their order: the `session`, then batches of rows under their section's name.

    A turn that has not ended is left out: it is no past yet. Holds a connection from the first part to the last, so
    whoever sends it to a client keeps it aside first. Raises `NotFound`, and as
    `HeavyWork.slot`.
    """
    async with rt.heavy.slot(tenant_id) as database, database.begin(snapshot=True) as tx:
        session = await exported_session(tx, tenant_id, session_id)
        if session is None:
            raise NotFound("session")
        point = await fork_point(tx, session_id, None)
        yield "session", session
        for section in SECTIONS:
            async for rows in exported_rows(tx, session_id, section, point):
                yield section, rows
