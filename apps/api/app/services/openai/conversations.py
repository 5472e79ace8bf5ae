"""Conversations: sessions as OpenAI's clients know them. Their messages are items, listed, added and withdrawn."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from app.db import turns as store
from app.db.database import PageBounds
from app.db.messages import (
    messages_in_runs,
    messages_of_turn,
    numbered_messages,
    page_of_item_messages,
    withdraw_messages,
)
from app.domain.errors import InvalidRequest, NotFound, TurnInProgress, located
from app.domain.incoming import IncomingList
from app.domain.responses import Lifetime, read_item_id
from app.domain.types import JsonObject, Message, Session, SessionRef, TenantId, TurnId, TurnStatus
from app.openai.items import joined_directions, message_items, read_items, references_of
from app.openai.new_messages import past_step
from app.services import sessions
from app.services.archive.transfer import draft_history
from app.services.openai.chat import ChatRequest, store_list
from app.services.paging import PageRequest
from app.services.runtime import Runtime
from app.services.turn.additions import Keeping
from app.services.turn.types import TurnOptions

_IN_PROGRESS = "The conversation already runs a response."
MOST_NEW_ITEMS = 20
"""Most items that one request adds, by OpenAI's reference."""

MOST_REFERENCES = 4_096
"""Most item references of one list: reading their ids takes about 10 ms of the event loop."""


async def create_conversation(
    rt: Runtime, tenant_id: TenantId, metadata: JsonObject, items: Sequence[Mapping[str, Any]]
) -> Session:
    """A new session of the default model with these items as its past. Raises `InvalidRequest` before it is stored."""
    read = await _read(rt, tenant_id, items)
    with located("body", "items"):
        step = past_step(read.messages, waiting=False)
    instructions = joined_directions(None, read.directions)
    fields = sessions.with_defaults(rt, {"metadata": metadata, "instructions": instructions})
    history = await draft_history(rt, fields["model_alias"], step.past)
    async with rt.database.begin() as tx:
        session = await sessions.insert_checked(rt, tx, tenant_id, fields)
        await store.append_history(tx, SessionRef(tenant_id, session.id), history)
    return session


@contextmanager
def of_conversation() -> Generator[None]:
    """Makes errors that are raised in the block name the conversation in place of its session."""
    try:
        yield
    except NotFound as error:
        raise NotFound("conversation" if error.noun == "session" else error.noun) from None
    except TurnInProgress:
        raise TurnInProgress(_IN_PROGRESS) from None


async def add_items(rt: Runtime, session: SessionRef, items: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Stores items at the conversation's end, and returns them as they are stored. Outputs answer the calls that wait
    for them; other items end a turn that waits. Raises `NotFound`, `InvalidRequest`, and `TurnInProgress` while a
    response runs."""
    conversation = await sessions.get_session(rt, session)
    read = await _read(rt, session.tenant_id, items)
    added = ChatRequest(
        read.messages,
        TurnOptions(),
        conversation.model_alias,
        request_sha256="",
        all_new=True,
        directions=read.directions,
        within="items",
        all_past=True,
        keeping=Keeping(Lifetime.UNTIL_DELETED),  # no longer erased with its last response, if it was made for one
    )
    last_seq = (await store_list(rt, session, added)).last_message_seq
    # After outputs a number is reserved for the reply that is not made.
    reserved = 1 if read.messages and read.messages[0].role == "tool" else 0
    first_seq = last_seq - len(read.messages) - reserved + 1
    async with rt.database.autocommit() as tx:
        stored = await messages_in_runs(tx, session.id, [(first_seq, last_seq)])
        await sessions.check_session(tx, session)  # erased meanwhile, it has no messages
    return [item for seq in sorted(stored) for item in message_items(session.id, stored[seq])]


async def withdraw_item(rt: Runtime, session: SessionRef, item_id: str) -> Session:
    """Removes an item's message, a call with its output, from the conversation, from every later prompt and from what
    is listed of its turn. Raises `NotFound`, and `TurnInProgress` while its turn runs."""
    conversation = await sessions.get_session(rt, session)
    message, _ = await get_item(rt, session, item_id)
    async with rt.database.begin() as tx:
        await store.newest_of(tx, session, lock=True)
        found = await store.get_turn(tx, session, TurnId(message.turn_id))
        turn = await sessions.existing_in(tx, session, found, "item")
        if turn.status is TurnStatus.RUNNING:
            raise TurnInProgress(_IN_PROGRESS)
        if turn.status is TurnStatus.AWAITING_TOOLS:
            await store.cancel_turn(tx, session, turn.id)
        of_turn = await messages_of_turn(tx, session.id, turn.id)
        await withdraw_messages(tx, session.id, of_turn, _group_of(message, of_turn))
    return conversation


def _group_of(message: Message, of_turn: Sequence[Message]) -> list[int]:
    """The numbers of the messages that must be removed together: one message, or calls and the outputs that directly
    follow them. Ids of calls do not tell: several rounds of a turn may have the same. Raises `NotFound` if another
    request has removed the message."""
    group: list[int] = []
    for other in of_turn:
        if other.role != "tool":
            if message.seq in group:
                break
            group = []
        group.append(other.seq)
    if message.seq not in group:
        raise NotFound("item")
    return group


async def _read(rt: Runtime, tenant_id: TenantId, items: Sequence[Mapping[str, Any]]) -> IncomingList:
    messages = await referenced(rt, tenant_id, references_of(items))
    with located("body", "items"):
        read = read_items(items, messages)
        if read.compaction is not None:
            raise InvalidRequest(
                "A conversation holds all of its items: a compaction goes into the input of a response."
            )
    return read


async def page_of_items(
    rt: Runtime, session: SessionRef, wanted: PageRequest, *, first_seq: int = 0, last_seq: int = 2**62
) -> tuple[list[JsonObject], bool]:
    """The items of the messages with these numbers, after the item that `cursor` names; and whether more follow. Raises
    `InvalidRequest` for an item of another session. The caller has checked that the session belongs to the tenant."""
    limit, after, newest_first = wanted.limit, wanted.cursor, wanted.newest_first
    at = None if after is None else read_item_id(after)
    if after is not None and (at is None or at[0] != session.id):
        raise InvalidRequest("This is not an item of this list.", ("query", "after"))
    if at is not None:
        first_seq, last_seq = (first_seq, min(last_seq, at[1])) if newest_first else (max(first_seq, at[1]), last_seq)
    bounds = PageBounds(first_seq - 1, last_seq + 1, limit + 1, newest_first)
    messages = await rt.database.run(page_of_item_messages, session, bounds)
    items: list[JsonObject] = []
    for message in messages.rows:
        of_message = message_items(session.id, message)
        if newest_first:
            of_message.reverse()
        if at is not None and message.seq == at[1]:
            ids = [item["id"] for item in of_message]
            of_message = of_message[ids.index(after) + 1 :] if after in ids else []
        items += of_message
    return items[:limit], messages.has_more or len(items) > limit


async def get_item(rt: Runtime, session: SessionRef, item_id: str) -> tuple[Message, JsonObject]:
    """An item of the session, and the message that it is part of. Raises `NotFound`."""
    for message in (await referenced(rt, session.tenant_id, (item_id,))).values():
        for item in message_items(session.id, message):
            if item["id"] == item_id:
                return message, item
    raise NotFound("item")


async def referenced(rt: Runtime, tenant_id: TenantId, item_ids: Sequence[str]) -> Mapping[str, Message]:
    """The tenant's messages by the item ids that name them; an id that names none is left out. Raises `InvalidRequest`
    for more than `MOST_REFERENCES` ids."""
    if len(item_ids) > MOST_REFERENCES:
        raise InvalidRequest(f"A list has at most {MOST_REFERENCES} item references.")
    places = {item_id: at for item_id in item_ids if (at := read_item_id(item_id)) is not None}
    if not places:
        return {}
    messages = await rt.database.run(numbered_messages, tenant_id, {*places.values()})
    return {item_id: messages[at] for item_id, at in places.items() if at in messages}
