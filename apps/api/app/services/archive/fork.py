"""Forks: a new session with the same past, and the past before a session's last turn, to run that turn again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.db import sessions as store
from app.db.database import Transaction
from app.db.forks import ForkPoint, LastTurn, copy_past, fork_point, last_turn
from app.db.messages import messages_of_turn
from app.db.turns import get_turn
from app.domain.errors import InvalidRequest, NotFound, TurnInProgress, TurnNotLast
from app.domain.incoming import IncomingMessage
from app.domain.types import OPEN_STATUSES, Session, SessionId, TenantId, TurnId, TurnStatus
from app.openai.chat_messages import IncomingTurn
from app.services.archive.transfer import add_history, analyze_large, draft_history
from app.services.runtime import Runtime
from app.services.turn.types import RETRY_AFTER_S


@dataclass(frozen=True, slots=True)
class BeforeLast:
    """A fork that ends before the source's last turn, and that turn."""

    session: Session
    turn: LastTurn


async def fork_session(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    through_turn_id: TurnId | None,
    *,
    erase_after_s: float | None = None,
) -> Session:
    """A new session of the tenant with the past of another, through the given turn or the last that has ended.

    It has the same settings, pins, turns, messages, audits and summaries, with the ids they have; what its turns decide
    and what its prompts are rebuilt to is what it would be in the source. Nothing of the source changes. With
    `erase_after_s` it is not to be kept. Raises `NotFound` for the session or the turn, `TurnInProgress` when the turn
    has not ended, and as `HeavyWork.slot`.
    """
    async with _of_source(rt, tenant_id, session_id) as tx:
        through_seq = None
        if through_turn_id is not None:
            turn = await get_turn(tx, tenant_id, session_id, through_turn_id)
            if turn is None:
                raise NotFound("turn")
            _check_ended(turn.status)
            through_seq = turn.seq
        point = await fork_point(tx, session_id, through_seq)
        return await _fork(tx, rt, tenant_id, session_id, point, erase_after_s)


async def fork_within(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    turn_id: TurnId,
    reply_seq: int,
    *,
    erase_after_s: float | None = None,
) -> Session:
    """A fork that ends within a turn, with the reply of this number, whose calls wait to be answered there.

    What the turn went on with is not in it, and the provider's own form of its reasoning is not either. Raises as
    `fork_session`.
    """
    async with rt.database.autocommit() as tx:
        turn = await get_turn(tx, tenant_id, session_id, turn_id)
        messages = await messages_of_turn(tx, session_id, turn_id)
    if turn is None:
        raise NotFound("turn")
    incoming = [
        IncomingMessage.of_stored(at, message) for at, message in enumerate(messages) if message.seq <= reply_seq
    ]
    history = await draft_history(rt, turn.model_alias, (IncomingTurn(tuple(incoming)),))
    async with _of_source(rt, tenant_id, session_id) as tx:
        point = await fork_point(tx, session_id, turn.seq - 1)
        forked = await _fork(tx, rt, tenant_id, session_id, point, erase_after_s)
        await add_history(tx, tenant_id, forked.id, history)
    return forked


async def fork_before_last(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, *, has_words: bool
) -> BeforeLast:
    """A fork that ends just before the session's last turn, which `turn_id` must name.

    Raises `NotFound`, `TurnNotLast`, `TurnInProgress` when the turn has not ended, and `InvalidRequest` for a turn in
    which no user spoke (one that was imported) unless the caller `has_words` of its own.
    """
    async with _of_source(rt, tenant_id, session_id) as tx:
        last = await last_turn(tx, session_id)
        if last is None or last.id != turn_id:
            if await get_turn(tx, tenant_id, session_id, turn_id) is None:
                raise NotFound("turn")
            raise TurnNotLast("Only the last turn of a session can be run again; fork the session before an older one.")
        _check_ended(last.status)
        if not (has_words or last.contents):
            raise InvalidRequest("This turn has no user message; send `content`.", ("body", "content"))
        point = await fork_point(tx, session_id, last.seq - 1)
        return BeforeLast(await _fork(tx, rt, tenant_id, session_id, point), last)


@asynccontextmanager
async def _of_source(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> AsyncGenerator[Transaction]:
    """A transaction over one snapshot in which the tenant's session is there."""
    async with rt.heavy.slot(tenant_id) as database:
        await analyze_large(rt, session_id)  # else the foreign keys of its copy may be checked by scans of the whole
        async with database.begin(snapshot=True) as tx:
            if not await store.session_exists(tx, tenant_id, session_id):
                raise NotFound("session")
            yield tx


def _check_ended(status: TurnStatus) -> None:
    if status in OPEN_STATUSES:
        raise TurnInProgress("The turn has not ended.", RETRY_AFTER_S)


async def _fork(
    tx: Transaction,
    rt: Runtime,
    tenant_id: TenantId,
    source: SessionId,
    point: ForkPoint,
    erase_after_s: float | None = None,
) -> Session:
    target = SessionId(rt.new_id())
    await copy_past(tx, source, target, point)
    if erase_after_s is not None:
        await store.erase_later(tx, target, erase_after_s)
    forked = await store.get_session(tx, tenant_id, target)
    if forked is None:
        raise LookupError("the fork is not there in the transaction that made it")
    rt.pasts.keep_fork(source, target, point.through_seq, point.last_message_seq, point.past_version)
    return forked
