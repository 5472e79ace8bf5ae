"""`/v1/conversations`: sessions in OpenAI's form."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import PageOfItems, openai_refusals
from app.api.response_json import conversation_json, list_json
from app.api.schemas import items as schemas
from app.domain.errors import existing
from app.domain.responses import read_conversation_id
from app.domain.types import JsonObject, SessionRef
from app.services import sessions
from app.services.openai import conversations
from app.services.openai.conversations import get_item, of_conversation, page_of_items

_WRITE = (400, 401, 404, 408, 409, 413, 415, 429, 503)
_NOTHING = schemas.ConversationIn()


class ConversationRoute(DirectRoute):
    """Errors about the session name the conversation."""

    async def _handle(self, call: Call) -> Response:
        with of_conversation():
            return await super()._handle(call)


router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=ConversationRoute)


@router.post("", response_model=schemas.ConversationOut, responses=openai_refusals(*_WRITE))
async def create_conversation(call: Call, body: schemas.ConversationIn = _NOTHING) -> JsonObject:
    """Creates a conversation: a session of the default model, with these items as its history."""
    items = call.raw_body["items"] if body.items else ()
    session = await conversations.create_conversation(call.rt, call.tenant_id, body.metadata or {}, items)
    call.note(session_id=str(session.id))
    return conversation_json(session)


@router.get("/{conversation_id}", response_model=schemas.ConversationOut)
async def get_conversation(call: Call, conversation_id: str) -> JsonObject:
    """A conversation."""
    return conversation_json(await sessions.get_session(call.rt, _session(call, conversation_id)))


@router.post("/{conversation_id}", response_model=schemas.ConversationOut, responses=openai_refusals(*_WRITE))
async def change_conversation(call: Call, conversation_id: str, body: schemas.ConversationPatch) -> JsonObject:
    """Replaces a conversation's metadata."""
    session, metadata = _session(call, conversation_id), body.metadata or {}
    return conversation_json(await sessions.change_session(call.rt, session, {"metadata": metadata}))


@router.delete("/{conversation_id}", response_model=schemas.DeletedOut)
async def delete_conversation(call: Call, conversation_id: str) -> JsonObject:
    """Permanently deletes a conversation with its items, responses, turns and audits."""
    await sessions.delete_session(call.rt, _session(call, conversation_id))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post("/{conversation_id}/items", response_model=schemas.ItemListOut, responses=openai_refusals(*_WRITE))
async def create_conversation_items(call: Call, conversation_id: str, body: schemas.ItemsIn) -> JsonObject:  # noqa: ARG001 - used as received
    """Appends items to the conversation without calling a model."""
    items = await conversations.add_items(call.rt, _session(call, conversation_id), call.raw_body["items"])
    return list_json(items, has_more=False)


@router.get("/{conversation_id}/items", response_model=schemas.ItemListOut)
async def list_conversation_items(call: Call, conversation_id: str, wanted: PageOfItems) -> JsonObject:
    """The conversation's items."""
    session = _session(call, conversation_id)
    await sessions.get_session(call.rt, session)
    return list_json(*await page_of_items(call.rt, session, wanted))


@router.get("/{conversation_id}/items/{item_id}", response_model=schemas.ItemOut)
async def get_conversation_item(call: Call, conversation_id: str, item_id: str) -> JsonObject:
    """An item."""
    session = _session(call, conversation_id)
    await sessions.get_session(call.rt, session)
    return (await get_item(call.rt, session, item_id))[1]


@router.delete("/{conversation_id}/items/{item_id}", response_model=schemas.ConversationOut)
async def delete_conversation_item(call: Call, conversation_id: str, item_id: str) -> JsonObject:
    """Removes an item from the conversation and from later prompts; a call and its output are removed together."""
    return conversation_json(await conversations.withdraw_item(call.rt, _session(call, conversation_id), item_id))


def _session(call: Call, conversation_id: str) -> SessionRef:
    session_id = existing(read_conversation_id(conversation_id), "conversation")
    call.note(session_id=str(session_id))
    return call.session_ref(session_id)
