"""The session of a chat client's request: named in it, recognized by the messages that it resends, or new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

from app.db import sessions as store
from app.db.database import PageBounds
from app.db.messages import messages_of_turn, newest_calls
from app.db.turns import newest_of, page_of_turns, turn_numbers, turns_begun_by
from app.domain.errors import InvalidRequest, NotFound, RetryLater, existing
from app.domain.frozen import frozen, replace
from app.domain.responses import Lifetime
from app.domain.types import (
    FAILED_STATUSES,
    JsonObject,
    Session,
    SessionId,
    SessionRef,
    TenantId,
    TurnStatus,
)
from app.openai.items import joined_directions
from app.openai.known_lists import are_part, with_reply
from app.openai.new_messages import Anchor, compared
from app.services.archive.transfer import fork_session, fork_within
from app.services.openai.chat import ChatRequest, compared_messages, complete_chat, divided
from app.services.runtime import Runtime, retried
from app.services.sessions import check_options, check_session, erase_if, insert_checked, with_defaults
from app.services.turn.additions import Keeping, answered_in, keep_session
from app.services.turn.types import Listener, TurnOutcome

_RETRIED_WITHIN = timedelta(hours=1)
"""How long after a session began a retry of its first request is answered in it. Clients wait for up to ten minutes
before they try again, and try again a few times."""
_MOST_BEGUN = 20
"""Most sessions, the newest ones, that began with a request equal to a retry."""


@frozen
class Target:
    """Where a request is answered, and the request as it is answered there: with a `keeping` if the session is made for
    it. A new one is stored with the request's turn; a fork before, for the answer only until the turn keeps it."""

    session: SessionRef
    request: ChatRequest

    @property
    def is_kept(self) -> bool:
        """Whether the session is kept after the answer."""
        return self.request.keeping is None or self.request.is_kept

    @property
    def is_single(self) -> bool:
        """Whether the session may have no other request: it is erased after the answer, or was made for a list with
        answers that is no session's, as the next list of that client may be. A client that sets a policy is obeyed."""
        request = self.request
        is_new = request.keeping is not None and request.keeping.source is None and request.compaction is None
        brings_answers = is_new and any(message.role == "assistant" for message in request.messages)
        return not self.is_kept or (brings_answers and not request.options.policy)


async def open_session(rt: Runtime, tenant_id: TenantId, named: SessionId | str | None, request: ChatRequest) -> Target:
    """Finds or makes the session of a request: the one that it names, by its id or by the client's own name (it is
    created if there is none of that name, and kept until it is deleted); else that of its compaction; else the one that
    was made for its key; else the one whose messages it continues; else the one that was made for the request of which
    it is a retry; else a new one. Raises `NotFound`, `InvalidRequest` before anything is stored, and as `fork_session`.
    """
    check_options(rt, request.model_alias, request.options.provider_options, "body")
    if isinstance(named, str):
        return Target(SessionRef(tenant_id, await _named(rt, tenant_id, named, request)), request)
    if named is not None:
        session = SessionRef(tenant_id, named)
        check_compaction(request, named)
        await rt.database.run(check_session, session)
        return Target(session, request)
    if request.compaction is not None:
        return await _compacted(rt, tenant_id, request)
    for find in (_made_for_key, _recognized, _begun):
        if found := await find(rt, tenant_id, request):
            return found
    keeping = Keeping(request.lifetime, request.session_key, _new_fields(rt, request))
    return Target(SessionRef(tenant_id, SessionId(rt.new_id())), replace(request, directions=(), keeping=keeping))


async def respond(rt: Runtime, target: Target, listen: Listener | None = None) -> TurnOutcome:
    """Answers the request, in `erased_unless_kept`. Raises as `complete_chat`."""
    request = target.request
    if target.is_single:
        request = replace(request, options=replace(request.options, is_single=True))
    async with erased_unless_kept(rt, target):
        return await complete_chat(rt, target.session, request, listen)


@asynccontextmanager
async def erased_unless_kept(rt: Runtime, target: Target) -> AsyncGenerator[None]:
    """Erases the session after the block if it was made for the request, and is not to be kept or was not kept because
    the block failed before that."""
    keeping, is_kept = target.request.keeping, False
    try:
        yield
        is_kept = target.is_kept
    finally:
        is_stored_for_answer = keeping is not None and (keeping.fields is None or not target.is_kept)
        if is_stored_for_answer and not is_kept:
            with suppress(RetryLater):  # then it is erased a little later; an answer must not be lost
                await erase_if(rt, rt.database, target.session, lambda tx: store.is_for_answer(tx, target.session))


async def stored_for_now(rt: Runtime, target: Target) -> Target:
    """The target, with its session stored for the answer only, if it is new."""
    keeping = target.request.keeping
    if keeping is None or keeping.fields is None:
        return target
    await keep_session(rt, target.session, Keeping(Lifetime.FOR_ANSWER, fields=keeping.fields))
    return replace(target, request=replace(target.request, keeping=replace(keeping, fields=None)))


def check_compaction(request: ChatRequest, session_id: SessionId | None) -> None:
    """Raises `InvalidRequest` if the request has a compaction of another session than this one."""
    if request.compaction is not None and request.compaction.session_id != session_id:
        raise InvalidRequest(
            "The compaction stands for another session than the one that the request names.", ("body", request.within)
        )


async def _compacted(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> Target:
    """The session of the request's compaction: itself if the messages continue from its end, else a fork that ends
    with the compaction's turn. If the result is not to be kept, it is always a fork."""
    compaction, key = request.compaction, request.session_key
    assert compaction is not None
    session, seq = SessionRef(tenant_id, compaction.session_id), compaction.turn_seq
    async with rt.database.autocommit() as tx:
        newest = existing(await newest_of(tx, session), "compaction")
        turns = (await page_of_turns(tx, session.id, PageBounds(seq - 1, seq + 1, 1, newest_first=False))).rows
        if not turns:
            raise NotFound("compaction")
        last_seq = (await turn_numbers(tx, session.id, [newest.turn_id])).values() if newest.turn_id else ()
        messages = await compared_messages(tx, session, request)
        answered = await answered_in(tx, tenant_id, key, session) if key else None
    if answered is not None:
        return Target(answered, request)
    is_last = max(last_seq, default=0) <= compaction.turn_seq
    at_end = is_last or request.repeats(newest) or compared(request.messages, messages).goes_on
    if at_end and request.is_kept:
        return Target(session, replace(request, after_message_seq=newest.last_message_seq))
    forked = await fork_session(rt, session, None if at_end else turns[0].id, Lifetime.FOR_ANSWER)
    return in_fork(forked, session, request)


def in_fork(forked: Session, source: SessionRef, request: ChatRequest) -> Target:
    """The target in a fork that was made for the request, `FOR_ANSWER`. A repeated request finds it by its key."""
    keeping = Keeping(request.lifetime, request.session_key, source=source)
    return Target(SessionRef(source.tenant_id, forked.id), replace(request, keeping=keeping))


@retried
async def _named(rt: Runtime, tenant_id: TenantId, name: str, request: ChatRequest) -> SessionId:
    """The session with this name, which is made if there is none. Raises `InvalidRequest` before it is stored."""
    found = await rt.database.run(store.named_session, tenant_id, "external_id", name, lock=False)
    check_compaction(request, found)
    if found is not None:
        return found
    await divided(request, request.messages, waiting=False)
    fields = _new_fields(rt, request)
    async with rt.database.begin() as tx:
        found = await store.named_session(tx, tenant_id, "external_id", name, lock=True)
        if found is None:
            found = (await insert_checked(rt, tx, tenant_id, fields)).id
            await store.name_session(tx, SessionRef(tenant_id, found), "external_id", name)
    return found


def _new_fields(rt: Runtime, request: ChatRequest) -> JsonObject:
    """The fields of a session that is made for the request, with its directions and its client's key of the cache."""
    instructions = joined_directions(None, request.directions)
    fields = with_defaults(rt, {"model_alias": request.model_alias, "instructions": instructions})
    return fields | {"cache_key": request.cache_key}


async def _made_for_key(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> Target | None:
    key = request.session_key
    made = await rt.database.run(answered_in, tenant_id, key) if key else None
    return made and Target(made, replace(request, all_new=False))


async def _recognized(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> Target | None:
    """The session whose past the list begins with: itself if nothing followed the past but messages without an answer
    that the list has too, else a fork that ends there."""
    if request.known is None or not request.known.beginnings:
        return None
    repeated_sha256 = request.request_sha256 if request.is_retry or request.session_key else None
    turn = await rt.database.run(
        store.turn_of_list, tenant_id, request.known.beginnings, repeated_sha256, request.session_key
    )
    if turn is None:
        return None
    session = SessionRef(tenant_id, turn.session_id)
    reply = [message for message in request.messages if message.role == "assistant"][-1 - turn.place]
    if len(reply.tool_calls) > 1:  # the digest has the first one, and the calls of another reply may have the same ids
        stored_calls = await rt.database.run(newest_calls, session.id, turn.turn_id)
        if not are_part(reply.tool_calls, stored_calls):
            return None
    again = replace(request, all_new=False, anchor=Anchor(turn.turn_id, turn.place))
    if turn.is_repeated:
        return Target(session, again)
    is_at_end = turn.is_last
    if is_at_end and turn.is_unanswered:
        stored = await rt.database.run(compared_messages, session, request)
        # On a thread: a list may be long.
        is_at_end = await asyncio.to_thread(lambda: compared(request.messages, stored, again.anchor).goes_on)
    if is_at_end:
        return Target(session, replace(again, after_message_seq=turn.last_message_seq))
    messages = await rt.database.run(messages_of_turn, session.id, turn.turn_id)
    reply_seq = max((message.seq for message in messages if message.role == "assistant"), default=0)
    if messages and messages[-1].seq > reply_seq > 0:  # outputs of its calls, which the list may have otherwise
        forked, turn_id = await fork_within(rt, session, turn.turn_id, reply_seq, Lifetime.FOR_ANSWER)
        again = replace(again, anchor=turn_id and Anchor(turn_id, turn.place))
    else:
        forked = await fork_session(rt, session, turn.turn_id, Lifetime.FOR_ANSWER)
    return in_fork(forked, session, again)


async def _begun(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> Target | None:
    """The session that began with the request of which this is a retry without a key, if nothing else has followed
    there. That an ended one is the same client's is known by the digest of its list: one that failed is run again. A
    running one only refuses the retry."""
    if request.session_key is not None or request.known is None or not request.is_retry:
        return None
    began_ms = int((rt.now() - _RETRIED_WITHIN).timestamp() * 1000)
    after_id = UUID(int=began_ms << 80)  # ids begin with the time when they were made
    found = await rt.database.run(
        turns_begun_by, tenant_id, request.request_sha256, after_id=after_id, limit=_MOST_BEGUN
    )
    for turn, digest in found:
        whole = request.known.whole
        if turn.status not in FAILED_STATUSES:
            whole = with_reply(whole, turn.assistant_output, turn.tool_calls)
        if turn.status is TurnStatus.RUNNING or digest == whole:
            return Target(SessionRef(tenant_id, turn.session_id), replace(request, all_new=False))
    return None
