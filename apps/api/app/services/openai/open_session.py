"""The session of a chat client's request: named in it, recognized by the messages that it resends, or new; and the
answer there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

from app.db import sessions as store
from app.db.database import Transaction
from app.db.responses import is_left_empty
from app.db.turns import newest_of, page_of_turns, turn_by_key, turn_numbers, turns_begun_by
from app.domain.errors import (
    Busy,
    ContextBudgetExceeded,
    IdempotencyInFlight,
    InvalidRequest,
    NotFound,
    PlimsollError,
    RetryLater,
    existing,
)
from app.domain.frozen import frozen, replace
from app.domain.responses import Lifetime
from app.domain.types import SessionId, SessionRef, TenantId, TurnStatus
from app.openai.items import joined_directions
from app.openai.new_messages import goes_on, with_reply
from app.services.archive.transfer import fork_session
from app.services.openai.chat import ChatRequest, compared_messages, complete_chat, divided
from app.services.runtime import Runtime, retried
from app.services.sessions import check_session, delete_session, erase_if, insert_checked, with_defaults
from app.services.turn.types import Listener, TurnOutcome

_RETRIED_WITHIN = timedelta(hours=1)
"""How long after a session began a retry of its first request is answered in it. Clients wait for up to ten minutes
before they try again, and try again a few times."""
_MOST_BEGUN = 20
"""Most sessions, the newest ones, that began with a request equal to a retry."""


@frozen
class Target:
    """Where a request is answered, and the request as it is answered there. `made_with_turns` is how many turns the
    session began with, if it may have been made for this request."""

    session: SessionRef
    request: ChatRequest
    made_with_turns: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the session is kept after the answer."""
        return self.made_with_turns is None or self.request.is_kept

    def with_past(self, last_turn_seq: int) -> Target:
        """The same once the past that the request brought is stored, which ends with this turn of the session."""
        after = None if self.request.after_turn_seq is None else last_turn_seq
        made = None if self.made_with_turns is None else last_turn_seq
        return replace(self, request=replace(self.request, after_turn_seq=after), made_with_turns=made)


async def open_session(
    rt: Runtime,
    tenant_id: TenantId,
    named: SessionId | str | None,
    request: ChatRequest,
) -> Target:
    """Finds or makes the session of a request.

    It is the session that the request names, by its id or by the client's own name (it is created if there is none of
    that name); else that of its compaction; else the one whose messages it continues; else the one that was created for
    its key, or for the request of which it is a retry; else a new one of the request's model. One with a name of the
    client's is kept until it is deleted.
    Raises `NotFound`, `InvalidRequest` before anything is stored, and as `fork_session`.
    """
    check_options(rt, request)
    if isinstance(named, str):
        async with rt.database.autocommit() as tx:
            found = await store.named_session(tx, tenant_id, "external_id", named, lock=False)
        check_compaction(request, found)
        if found is not None:
            return Target(SessionRef(tenant_id, found), request)
        kept = replace(request, lifetime=Lifetime.UNTIL_DELETED)
        made = await _made(rt, tenant_id, kept, ("external_id", named))
        return replace(made, made_with_turns=None)  # other requests may have found it by its name
    if named is not None:
        session = SessionRef(tenant_id, named)
        check_compaction(request, named)
        async with rt.database.autocommit() as tx:
            await check_session(tx, session)
        return Target(session, request)
    if request.compaction is not None:
        return await _compacted(rt, tenant_id, request)
    if (found := await _recognized(rt, tenant_id, request)) is not None:
        return found
    name = ("idempotency_key", request.session_key) if request.session_key else None
    return await _made(rt, tenant_id, request, name)


async def respond(rt: Runtime, target: Target, listen: Listener | None = None) -> TurnOutcome:
    """Answers the request, and erases the session afterwards if it is not to be kept, or as `undone_if_refused`. Raises
    as `complete_chat`, and `IdempotencyInFlight`."""
    try:
        async with undone_if_refused(rt, target):
            return await complete_chat(rt, target.session, target.request, listen)
    finally:
        if not target.is_kept:
            with suppress(NotFound, RetryLater):  # then it is erased a little later; an answer must not be lost
                await delete_session(rt, target.session)


@asynccontextmanager
async def undone_if_refused(rt: Runtime, target: Target) -> AsyncGenerator[None]:
    """Erases the session if the block refuses the request without a record, and the session was made for it.

    Another request with the key may have found the session before. It then gets `IdempotencyInFlight`: tried again, it
    has a session of its own.
    """
    try:
        yield
    except ContextBudgetExceeded:
        raise  # its turn is stored as rejected
    except PlimsollError as error:
        session, turns = target.session, target.made_with_turns
        if turns is not None and target.is_kept:
            await erase_if(rt, rt.database, session, lambda tx: is_left_empty(tx, session, turns))
        if isinstance(error, NotFound) and target.request.idempotency_key is not None:
            raise IdempotencyInFlight("Another request with this idempotency key was just refused.") from error
        raise


def check_options(rt: Runtime, request: ChatRequest) -> None:
    """Raises `InvalidRequest` for an option that the model's provider does not support."""
    provider = rt.catalogue.provider(request.model_alias)
    unknown = sorted(request.options.provider_options.keys() - provider.options)
    if unknown and not provider.takes_any_option:
        raise InvalidRequest(f"The provider of this model does not know {unknown[0]}.", ("body", unknown[0]))
    wanted = request.options.provider_options.get("response_format")
    if wanted is not None and wanted["type"] not in provider.response_formats:
        known = " or ".join(sorted(provider.response_formats))
        raise InvalidRequest(
            f"The provider of this model knows response_format only of the type {known}.", ("body", "response_format")
        )


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
        turns = (await page_of_turns(tx, session.id, seq - 1, seq + 1, 1, newest_first=False)).rows
        if not turns:
            raise NotFound("compaction")
        last_seq = (await turn_numbers(tx, session.id, [newest.turn_id])).values() if newest.turn_id else ()
        messages = await compared_messages(tx, session, request)
        answered = await answered_in(tx, session, key) if key else None
    if answered is not None:
        return Target(answered, request)
    is_last = max(last_seq, default=0) <= compaction.turn_seq
    at_end = is_last or request.repeats(newest) or goes_on(request.messages, messages)
    if at_end and request.is_kept:
        return Target(session, replace(request, after_turn_seq=newest.last_turn_seq))
    through_id = None if at_end else turns[0].id
    made = await fork_session(rt, session, through_id, Lifetime.FOR_ANSWER if key else request.lifetime)
    return await target_in_fork(rt, SessionRef(tenant_id, made.id), request, compaction.turn_seq)


async def answered_in(tx: Transaction, session: SessionRef, idempotency_key: str) -> SessionRef | None:
    """The session in which a request with this key is answered: this one, or the one that was made for it, if any."""
    if await turn_by_key(tx, session, idempotency_key):
        return session
    made = await store.named_session(tx, session.tenant_id, "idempotency_key", idempotency_key, lock=True)
    return None if made is None else SessionRef(session.tenant_id, made)


async def target_in_fork(rt: Runtime, forked: SessionRef, request: ChatRequest, turn_seq: int) -> Target:
    """The target in a fork that was made for the request and ends with the turn `turn_seq`.

    With a key it is the session of the key: this fork, or that of an earlier request with the key, and then the fork is
    erased. Such a fork has to be made `FOR_ANSWER`, so that an interrupted request leaves nothing behind.
    """
    key = request.session_key
    first = await _first_under_key(rt, forked, key, request.lifetime) if key else forked
    if first != forked:
        with suppress(Busy):  # then it is erased a little later
            await delete_session(rt, forked)
        return Target(first, request)
    return Target(forked, request, made_with_turns=turn_seq)


@retried
async def _first_under_key(rt: Runtime, forked: SessionRef, idempotency_key: str, lifetime: Lifetime) -> SessionRef:
    async with rt.database.begin() as tx:
        first = await store.named_session(tx, forked.tenant_id, "idempotency_key", idempotency_key, lock=True)
        if first is None:
            await store.name_session(tx, forked, "idempotency_key", idempotency_key)
            await store.set_lifetime(tx, forked.id, lifetime)
    return SessionRef(forked.tenant_id, first or forked.id)


@retried
async def _made(
    rt: Runtime, tenant_id: TenantId, request: ChatRequest, name: tuple[store.NamedBy, str] | None
) -> Target:
    """A new session for the request, or the one that already has this name. Raises `InvalidRequest` before anything is
    stored."""
    await divided(request, request.messages, waiting=False)
    fields = with_defaults(
        rt, {"model_alias": request.model_alias, "instructions": joined_directions(None, request.directions)}
    )
    async with rt.database.begin() as tx:
        found = await store.named_session(tx, tenant_id, *name, lock=True) if name else None
        if found is not None:
            return Target(SessionRef(tenant_id, found), request)
        session = SessionRef(tenant_id, (await insert_checked(rt, tx, tenant_id, fields)).id)
        if name:
            await store.name_session(tx, session, *name)
        if request.lifetime is not Lifetime.UNTIL_DELETED:
            await store.set_lifetime(tx, session.id, request.lifetime)
    return Target(session, request, made_with_turns=0)


async def _recognized(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> Target | None:
    """The session whose past the list begins with: itself if nothing followed the past, else a fork that ends there. If
    there is none, the one that began with the request of which this is a retry."""
    if request.known is None:
        return None
    again, turn = replace(request, all_new=False), None
    if request.known.beginnings:
        repeated_sha256 = request.request_sha256 if request.is_retry or request.session_key else None
        async with rt.database.autocommit() as tx:
            turn = await store.turn_of_list(tx, tenant_id, request.known.beginnings, repeated_sha256)
    if turn is None:
        begun = None if request.session_key else await _begun_before(rt, tenant_id, request)
        return None if begun is None else Target(begun, again)
    session = SessionRef(tenant_id, turn.session_id)
    if turn.is_repeated:
        return Target(session, again)
    if turn.is_last:
        return Target(session, replace(again, after_turn_seq=turn.last_turn_seq))
    forked = await fork_session(rt, session, turn.turn_id, request.lifetime)
    return Target(SessionRef(tenant_id, forked.id), again, made_with_turns=turn.turn_seq)


async def _begun_before(rt: Runtime, tenant_id: TenantId, request: ChatRequest) -> SessionRef | None:
    """The session that began with the request of which this is a retry, if nothing else has followed there. That an
    answered one is the same client's is known by the digest of its list. A running one only refuses the retry."""
    if request.known is None or not request.is_retry:
        return None
    began_ms = int((rt.now() - _RETRIED_WITHIN).timestamp() * 1000)
    after_id = UUID(int=began_ms << 80)  # ids begin with the time when they were made
    async with rt.database.autocommit() as tx:
        found = await turns_begun_by(tx, tenant_id, request.request_sha256, after_id=after_id, limit=_MOST_BEGUN)
    for turn, digest in found:
        answered = with_reply(request.known.whole, turn.assistant_output, turn.tool_calls)
        if turn.status is TurnStatus.RUNNING or digest == answered:
            return SessionRef(tenant_id, turn.session_id)
    return None
