"""The messages of a session as items: pages of them, single ones, and those that a request refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.db.items import numbered_messages, page_of_item_messages
from app.domain.errors import InvalidRequest, NotFound
from app.domain.openai_ids import read_item_id
from app.domain.types import JsonObject, Message, SessionId, TenantId
from app.openai.items import message_items
from app.services.runtime import Runtime


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Items in list order, and whether more follow."""

    items: list[JsonObject]
    has_more: bool


async def page_of_items(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    *,
    first_seq: int = 0,
    last_seq: int = 2**62,
    after: str | None,
    limit: int,
    newest_first: bool,
) -> ItemPage:
    """The items of messages of these numbers, behind the item `after`. Raises `InvalidRequest` for one of elsewhere.

    The caller has checked that the tenant has the session.
    """
    at = None if after is None else read_item_id(after)
    if after is not None and (at is None or at[0] != session_id):
        raise InvalidRequest("This is no item of this list.", ("query", "after"))
    if at is not None:
        first_seq, last_seq = (first_seq, min(last_seq, at[1])) if newest_first else (max(first_seq, at[1]), last_seq)
    async with rt.database.autocommit() as tx:
        messages = await page_of_item_messages(
            tx,
            tenant_id,
            session_id,
            first_seq=first_seq,
            last_seq=last_seq,
            newest_first=newest_first,
            limit=limit + 2,
        )
    items: list[JsonObject] = []
    for message in messages:
        of_message = message_items(session_id, message)
        if newest_first:
            of_message.reverse()
        if at is not None and message.seq == at[1]:
            ids = [item["id"] for item in of_message]
            of_message = of_message[ids.index(after) + 1 :] if after in ids else []
        items += of_message
    return ItemPage(items[:limit], len(items) > limit)


async def get_item(rt: Runtime, tenant_id: TenantId, session_id: SessionId, item_id: str) -> tuple[Message, JsonObject]:
    """An item of the session, and the message it is of. Raises `NotFound`."""
    found = await referenced(rt, tenant_id, (item_id,))
    message = found.get(item_id)
    at = read_item_id(item_id)
    if message is not None and at is not None and at[0] == session_id:
        for item in message_items(session_id, message):
            if item["id"] == item_id:
                return message, item
    raise NotFound("item")


async def referenced(rt: Runtime, tenant_id: TenantId, item_ids: Iterable[str]) -> Mapping[str, Message]:
    """The messages that ids of the tenant's items name; an id that names none is left out."""
    by_session: dict[SessionId, dict[str, int]] = {}
    for item_id in item_ids:
        at = read_item_id(item_id)
        if at is not None:
            by_session.setdefault(at[0], {})[item_id] = at[1]
    found: dict[str, Message] = {}
    for session_id, wanted in by_session.items():
        async with rt.database.autocommit() as tx:
            messages = await numbered_messages(tx, tenant_id, session_id, sorted(set(wanted.values())))
        found |= {item_id: messages[seq] for item_id, seq in wanted.items() if seq in messages}
    return found
