"""Messages as they are stored: all of a session's, or those that somebody cites."""

from __future__ import annotations

from uuid import UUID

from app.db.messages import messages_by_id, page_of_messages
from app.db.sessions import session_exists
from app.domain.errors import NotFound
from app.domain.types import JsonObject, SessionId, TenantId
from app.services.paging import Page, after_seq, page_of
from app.services.runtime import Runtime


async def list_messages(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, limit: int, cursor: str | None
) -> Page[JsonObject]:
    """The session's messages in time order. Raises `NotFound`, `InvalidRequest` for a cursor that is none."""
    scope = f"messages:{session_id}"
    after = after_seq(scope, cursor) or 0
    async with rt.database.autocommit() as tx:
        if not await session_exists(tx, tenant_id, session_id):
            raise NotFound("session")
        rows = await page_of_messages(tx, session_id, after, limit + 1)
    return page_of(scope, rows, limit, lambda row: row, lambda row: row["seq"])


async def get_messages(rt: Runtime, tenant_id: TenantId, session_id: SessionId, ids: list[UUID]) -> Page[JsonObject]:
    """Those of the messages that are the session's, in time order, on one page. Raises `NotFound` for the session."""
    async with rt.database.autocommit() as tx:
        if not await session_exists(tx, tenant_id, session_id):
            raise NotFound("session")
        return Page(await messages_by_id(tx, session_id, ids), None)
