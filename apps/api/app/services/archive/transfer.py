"""Operations on whole sessions: an export is one document, read in batches from one snapshot; an import is stored
completely or not at all; a fork may also end before the last turn, to run that again."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.archive.document import SECTIONS
from app.db import archive as store
from app.db.audits import as_recorded
from app.db.database import Transaction
from app.db.messages import messages_of_turn
from app.db.sessions import CHANGEABLE, get_session, set_lifetime
from app.db.statistics import analyze_for, analyze_grown
from app.db.turns import append_history, get_turn
from app.domain.errors import ImportRefused, InvalidRequest, PlimsollError, TurnInProgress, TurnNotLast, existing
from app.domain.incoming import IncomingMessage
from app.domain.responses import Lifetime
from app.domain.stored import Counters, NewHistory, NewRows
from app.domain.types import OPEN_STATUSES, JsonObject, Session, SessionId, SessionRef, TenantId, TurnId
from app.engine.window.prompt_refs import spelled_out
from app.openai.chat_messages import IncomingTurn, cut_turns
from app.services.archive.new_rows import BodyReader, ImportJob, drafted
from app.services.heavy.child import Tools
from app.services.runtime import Runtime
from app.services.sessions import check_session, insert_checked, with_defaults, with_given_policy

logger = logging.getLogger(__name__)

_NOT_ENDED = "The turn has not ended."
SMALL_BYTES = 64 * 1024
"""Largest import that is read on a thread of this process, which takes a few milliseconds."""


async def export_session(rt: Runtime, session: SessionRef) -> AsyncGenerator[tuple[str, Any]]:
    """The parts of the document in order: the `session`, then batches of rows, at least one of each section, whose name
    it has. A turn that has not ended is left out.

    A connection is held from the first part to the last, so a caller must buffer the parts before it sends them to a
    client. Raises `NotFound`, and as `HeavyWork.slot`.
    """
    async with rt.heavy.slot(session.tenant_id) as database, database.begin(snapshot=True) as tx:
        point = await store.fork_point(tx, session.id, None)
        yield "session", existing(await store.exported_session(tx, session, point), "session")
        for section in SECTIONS:
            async for rows in store.exported_rows(tx, session.id, section, point):
                yield section, await _spelled_out(tx, session.id, rows) if section == "audits" else rows


async def _spelled_out(tx: Transaction, session_id: SessionId, audits: list[JsonObject]) -> list[JsonObject]:
    """Audits as they were recorded. References to recalled messages are unpacked, since their packing is internal."""
    rows = await as_recorded(tx, session_id, audits)
    return [row | {"prompt_refs": row["prompt_refs"] and spelled_out(row["prompt_refs"])} for row in rows]


async def import_session(rt: Runtime, tenant_id: TenantId, raw: bytes, read: BodyReader) -> Session:
    """Makes a session from a body, which `read` validates by itself, in one transaction: all of it, or nothing. Raises
    `InvalidRequest` (`ImportRefused`) with the places of the errors, and as `HeavyJobs.job`."""
    async with rt.jobs.job(ImportJob, small=len(raw) <= SMALL_BYTES) as job:
        given, is_export = await job.do(ImportJob.read, read, raw)
        fields = _of_export(rt, given) if is_export else with_defaults(rt, with_given_policy(rt, given))
        alias = fields["model_alias"]
        await job.do(ImportJob.draft, alias, rt.catalogue.model(alias).encoding)
        async with rt.heavy.database.begin() as tx:
            session = await insert_checked(rt, tx, tenant_id, fields)
            while (part := await job.do(ImportJob.next_part)) is not None:
                await _store(tx, SessionRef(tenant_id, session.id), part)
                await analyze_grown(tx)
    await analyze_large(rt, session.id)
    return session


async def analyze_large(rt: Runtime, session_id: SessionId) -> None:
    """Updates the planner's statistics if the session is large compared to them. An error is logged, not raised."""
    try:
        await rt.heavy.database.run(analyze_for, session_id)
    except PlimsollError as error:
        logger.warning("the tables were not analyzed: %s", error.code)


async def _store(tx: Transaction, session: SessionRef, part: NewHistory | NewRows | Counters) -> None:
    match part:
        case NewHistory():
            await append_history(tx, session, (part,))
        case NewRows():
            await store.insert_rows(tx, session.id, part)
        case Counters():
            await store.set_counters(tx, session.id, part)


def _of_export(rt: Runtime, session: JsonObject) -> JsonObject:
    try:
        return with_defaults(rt, {name: session[name] for name in CHANGEABLE if name in session})
    except InvalidRequest as error:
        raise ImportRefused([(".".join(("body", "session", *error.where[1:])), error.detail)]) from error


async def draft_history(rt: Runtime, model_alias: str, turns: Sequence[IncomingTurn]) -> tuple[NewHistory, ...]:
    """Gives turns their ids and counts their messages for a model, before a connection is taken. See `drafted`."""
    encoding = rt.catalogue.model(model_alias).encoding
    tools = Tools(rt.tokenizers, rt.new_id)
    return await rt.tokenizers.off_loop(lambda: tuple(drafted(tools, encoding, model_alias, turns)))


async def fork_session(
    rt: Runtime, session: SessionRef, through_turn_id: TurnId | None, lifetime: Lifetime = Lifetime.UNTIL_DELETED
) -> Session:
    """A new session of the tenant with the settings, pins and past of another, through the given turn or the last that
    has ended. All has the same ids. Raises `NotFound` for the session or the turn, `TurnInProgress` if the turn has not
    ended, and as `HeavyWork.slot`."""
    async with _of_source(rt, session) as tx:
        through_seq = None
        if through_turn_id is not None:
            through_seq = existing(await get_turn(tx, session, through_turn_id), "turn").seq
        return await _fork(tx, rt, session, through_seq, lifetime)


async def fork_within(
    rt: Runtime, session: SessionRef, turn_id: TurnId, reply_seq: int, lifetime: Lifetime
) -> tuple[Session, TurnId | None]:
    """A fork that ends within a turn, with the reply of this number, whose tool calls wait for their outputs there; and
    the id that the turn has there, None if its messages were withdrawn. Raises as `fork_session`."""
    async with rt.database.autocommit() as tx:
        turn = existing(await get_turn(tx, session, turn_id), "turn")
        messages = await messages_of_turn(tx, session.id, turn_id)
    incoming = [
        IncomingMessage.of_stored(at, message) for at, message in enumerate(messages) if message.seq <= reply_seq
    ]
    history = await draft_history(rt, turn.model_alias, cut_turns(incoming))
    async with _of_source(rt, session) as tx:
        forked = await _fork(tx, rt, session, turn.seq - 1, lifetime)
        await append_history(tx, SessionRef(session.tenant_id, forked.id), history)
    return forked, history[-1].last_turn_id if history else None


async def fork_before_last(
    rt: Runtime, session: SessionRef, turn_id: TurnId, *, has_words: bool
) -> tuple[Session, store.LastTurn]:
    """A fork that ends just before the session's last turn, which `turn_id` must name; and that turn. It is kept for an
    answer only until its next turn is claimed, so that an interrupted request leaves nothing behind.

    Raises `NotFound`, `TurnNotLast`, `TurnInProgress` if the turn has not ended, and `InvalidRequest` for a turn
    without a user message (one that was imported), unless the request brings its own (`has_words`).
    """
    async with _of_source(rt, session) as tx:
        last = await store.last_turn(tx, session.id)
        if last is None or last.id != turn_id:
            existing(await get_turn(tx, session, turn_id), "turn")
            raise TurnNotLast("Only the last turn of a session can be run again; fork the session before an older one.")
        if last.status in OPEN_STATUSES:
            raise TurnInProgress(_NOT_ENDED)
        if not (has_words or last.contents):
            raise InvalidRequest("This turn has no user message; send `content`.", ("body", "content"))
        return await _fork(tx, rt, session, last.seq - 1, Lifetime.FOR_ANSWER), last


@asynccontextmanager
async def _of_source(rt: Runtime, session: SessionRef) -> AsyncGenerator[Transaction]:
    """A transaction over one snapshot in which the tenant's session exists."""
    async with rt.heavy.slot(session.tenant_id) as database:
        await analyze_large(rt, session.id)  # else the copy's foreign keys may be checked by scans of whole tables
        async with database.begin(snapshot=True) as tx:
            await check_session(tx, session)
            yield tx


async def _fork(
    tx: Transaction, rt: Runtime, source: SessionRef, through_seq: int | None, lifetime: Lifetime
) -> Session:
    point = await store.fork_point(tx, source.id, through_seq)
    if through_seq not in (None, point.through_seq):
        raise TurnInProgress(_NOT_ENDED)
    target = SessionId(rt.new_id())
    await store.copy_past(tx, source.id, target, point, is_branch=lifetime is Lifetime.FOR_ANSWER)
    if lifetime is not Lifetime.UNTIL_DELETED:
        await set_lifetime(tx, target, lifetime)
    forked = await get_session(tx, SessionRef(source.tenant_id, target))
    assert forked is not None, "it was made in this transaction"
    rt.pasts.keep_fork(source.id, target, point.through_seq, point.last_message_seq, point.past_version)
    return forked
