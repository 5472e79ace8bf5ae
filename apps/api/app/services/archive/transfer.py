"""Export and import: a session as one document, read batch by batch from one snapshot; and a past from elsewhere as a
session's own, read in a job of its own, stored whole or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from app.archive.document import SECTIONS
from app.db.archive import exported_rows, exported_session, insert_rows, set_counters
from app.db.audits import as_recorded
from app.db.database import Transaction
from app.db.forks import fork_point
from app.db.migrate import analyze_for
from app.db.sessions import CHANGEABLE
from app.db.turns import append_history
from app.domain.errors import ImportRefused, InvalidRequest, NotFound, PlimsollError
from app.domain.stored import Counters, NewHistory, NewRows
from app.domain.types import JsonObject, Session, SessionId, TenantId
from app.engine.window.prompt_refs import spelled_out
from app.openai.chat_messages import IncomingTurn
from app.services.archive.import_job import ImportJob, Read
from app.services.archive.new_rows import drafted
from app.services.heavy.child import Tools
from app.services.runtime import Runtime
from app.services.sessions import insert_checked, with_defaults, with_given_policy

logger = logging.getLogger(__name__)

SMALL_BYTES = 64 * 1024
"""An import up to this size is read on a thread: a few milliseconds."""


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
                yield section, await _spelled_out(tx, session_id, rows) if section == "audits" else rows


async def _spelled_out(tx: Transaction, session_id: SessionId, audits: list[JsonObject]) -> list[JsonObject]:
    """Audits as they were recorded, recalled messages by references like any others: how they are packed is ours."""
    rows = await as_recorded(tx, session_id, audits)
    return [row | {"prompt_refs": row["prompt_refs"] and spelled_out(row["prompt_refs"])} for row in rows]


async def import_session(rt: Runtime, tenant_id: TenantId, raw: bytes, read: Read) -> Session:
    """Makes a session of a body in one transaction: all of it, or nothing.

    `read` validates a body by itself; `ImportJob` says what becomes of it. Ids are new. Every message is counted in the
    encoding of the session's model, or in the one that an export names. Raises `InvalidRequest` (`ImportRefused`) with
    the places of what is wrong, and as `HeavyJobs.job`.
    """
    async with rt.jobs.job(ImportJob, small=len(raw) <= SMALL_BYTES) as job:
        given = await job.do(ImportJob.read, read, raw)
        fields = _of_export(rt, given.fields) if given.is_export else _of_conversation(rt, given.fields)
        alias = fields["model_alias"]
        await job.do(ImportJob.draft, alias, rt.catalogue.model(alias).encoding)
        async with rt.heavy.database.begin() as tx:
            session = await insert_checked(rt, tx, tenant_id, fields)
            while (part := await job.do(ImportJob.next_part)) is not None:
                await _store(tx, tenant_id, session.id, part)
    await analyze_large(rt, session.id)
    return session


async def analyze_large(rt: Runtime, session_id: SessionId) -> None:
    """Lets the planner know of a session that is large for what it knows of. What is in the way of that is logged."""
    try:
        async with rt.heavy.database.autocommit() as tx:
            await analyze_for(tx, session_id)
    except PlimsollError as error:
        logger.warning("the tables were not analyzed: %s", error.code)


async def _store(
    tx: Transaction, tenant_id: TenantId, session_id: SessionId, part: NewHistory | NewRows | Counters
) -> None:
    match part:
        case NewHistory():
            await add_history(tx, tenant_id, session_id, part)
        case NewRows():
            await insert_rows(tx, session_id, part)
        case Counters():
            await set_counters(tx, session_id, part)


def _of_export(rt: Runtime, session: JsonObject) -> JsonObject:
    try:
        return with_defaults(rt, {name: session[name] for name in CHANGEABLE if name in session})
    except InvalidRequest as error:
        raise ImportRefused([(".".join(("body", "session", *error.where[1:])), error.detail)]) from error


def _of_conversation(rt: Runtime, fields: JsonObject) -> JsonObject:
    return with_defaults(rt, with_given_policy(rt, fields) | {"instructions": fields["instructions"]})


async def draft_history(rt: Runtime, model_alias: str, turns: Sequence[IncomingTurn]) -> NewHistory:
    """Counts the messages of turns for a model, before any connection is taken, and gives them ids; as `drafted`."""
    encoding = rt.catalogue.model(model_alias).encoding
    tools = Tools(rt.tokenizers, rt.new_id)
    return await rt.tokenizers.off_loop(lambda: drafted(tools, encoding, model_alias, turns))


async def add_history(tx: Transaction, tenant_id: TenantId, session_id: SessionId, history: NewHistory) -> None:
    """Stores drafted turns at the end of a session. Raises `NotFound`, and `UniqueViolated` for a second open turn."""
    if not await append_history(tx, tenant_id, session_id, history):
        raise NotFound("session")
