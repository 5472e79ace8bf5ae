"""Stored responses: read, cancelled, erased, and what went into them."""

from __future__ import annotations

from contextlib import suppress

from app.db.responses import (
    StoredResponse,
    erase_response,
    erase_session_without_responses,
    get_response,
)
from app.db.responses import response_of_request as read_of_request
from app.domain.errors import NotFound, TurnInProgress, TurnNotOpen
from app.domain.openai_ids import ResponseRef
from app.domain.types import TenantId, TurnStatus
from app.services.openai.items import ItemPage, page_of_items
from app.services.runtime import Runtime
from app.services.turn.claim import RETRY_AFTER_S, TurnOutcome
from app.services.turn.take import cancel_turn


async def stored_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> StoredResponse:
    """The tenant's response. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        found = await get_response(tx, tenant_id, ref)
    if found is None:
        raise NotFound("response")
    return found


async def response_of_outcome(
    rt: Runtime, tenant_id: TenantId, outcome: TurnOutcome, request_sha256: str
) -> StoredResponse:
    """What a request was answered with before, where its outcome is no news. Raises `NotFound` when it was erased."""
    turn = outcome.turn
    async with rt.database.autocommit() as tx:
        found = await read_of_request(tx, tenant_id, turn.session_id, turn.id, request_sha256)
    if found is None:
        raise NotFound("response")
    return found


async def input_items(
    rt: Runtime, tenant_id: TenantId, ref: ResponseRef, *, after: str | None, limit: int, newest_first: bool
) -> ItemPage:
    """What a response was asked with. Raises `NotFound`, and `InvalidRequest` for an `after` of elsewhere."""
    found = await stored_response(rt, tenant_id, ref)
    return await page_of_items(
        rt,
        tenant_id,
        ref.session_id,
        first_seq=found.first_seq,
        last_seq=ref.reply_seq - 1,
        after=after,
        limit=limit,
        newest_first=newest_first,
    )


async def cancel_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> StoredResponse:
    """Ends a response that runs; one that has ended stays as it is. Raises `NotFound`."""
    found = await stored_response(rt, tenant_id, ref)
    if not is_running(found):
        return found
    with suppress(TurnNotOpen):  # it ended by itself meanwhile
        await cancel_turn(rt, tenant_id, ref.session_id, found.turn_id)
    return await stored_response(rt, tenant_id, ref)


async def delete_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> None:
    """Erases a response: nobody can fetch it or go on from it any more.

    When it was the last of its session, and no conversation of the client's, all of the session is erased; until then
    what was said is the past of others. Raises `NotFound`, and `TurnInProgress` while it runs.
    """
    async with rt.database.begin() as tx:
        found = await get_response(tx, tenant_id, ref)
        if found is None:
            raise NotFound("response")
        if is_running(found):
            raise TurnInProgress("The response is still in progress; cancel it first.", RETRY_AFTER_S)
        await erase_response(tx, ref)
        if found.form.get("conversation") is None:
            await erase_session_without_responses(tx, tenant_id, ref.session_id, found.turn_seq)


def is_running(found: StoredResponse) -> bool:
    """Whether its model is being asked."""
    return found.reply is None and found.is_last_of_turn and found.turn_status is TurnStatus.RUNNING
