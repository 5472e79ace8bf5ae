"""What a request adds to its session besides the message that is answered, stored with the claim of its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from app.db import sessions as session_store
from app.db import turns
from app.db.claims import WaitingTurn, reclaim_turn, waiting_turn
from app.db.database import Transaction
from app.db.messages import messages_of_turn, withdraw_messages
from app.db.records import Added
from app.db.turns import Newest, append_history
from app.domain.errors import (
    IdempotencyInFlight,
    InvalidRequest,
    ToolOutputsMismatch,
    TurnInProgress,
    TurnNotOpen,
    existing,
)
from app.domain.frozen import frozen, replace
from app.domain.incoming import IncomingMessage
from app.domain.responses import Lifetime
from app.domain.stored import NewHistory, message_row
from app.domain.types import FAILED_STATUSES, JsonObject, Message, SessionRef, TenantId, TurnId, TurnStatus
from app.openai.items import joined_directions
from app.services.runtime import Runtime, retried
from app.services.sessions import insert_checked
from app.services.turn.planning import count_message, pack_messages

MOST_DIRECTIONS_CHARS = 4 * 1024 * 1024
"""Longest instructions of a session, in characters, once lists of items have added theirs. Every turn reads them."""
_SLICE = 64
"""Outputs that are counted before other tasks of the event loop run."""


@frozen
class Keeping:
    """How the session of a request is kept once the request is accepted: for how long, and the idempotency key by which
    a repeated request finds it. `fields` are those of a new session; None if the session is stored already, as a fork
    of `source`."""

    lifetime: Lifetime
    key: str | None = None
    fields: JsonObject | None = None
    source: SessionRef | None = None


@frozen
class Additions:
    """What is added to a session whose state is `newest`, all counted. `outputs` answer the calls of the turn that
    waits for tools, which is then completed; if there are none, it is cancelled; None leaves it waiting. `history`
    follows it. `directions` are appended to the session's instructions, each once. With `key`, no session may have been
    made for a request with this idempotency key. `lacking` are messages that the client no longer has."""

    newest: Newest
    outputs: Sequence[JsonObject] | None
    history: Sequence[NewHistory]
    directions: tuple[str, ...]
    keeping: Keeping | None = None
    key: str | None = None
    lacking: Sequence[Message] = ()


async def add(rt: Runtime, tx: Transaction, session: SessionRef, additions: Additions) -> Added:
    """Stores the additions, and locks the session until the transaction ends. Raises `TurnInProgress` if the session is
    no longer as in `newest`, `ToolOutputsMismatch`, `InvalidRequest` if the instructions would exceed
    `MOST_DIRECTIONS_CHARS`, and as `keep`."""
    newest, keeping = additions.newest, additions.keeping
    if additions.key is not None:
        await _check_key(tx, session.tenant_id, additions.key)
    if keeping is not None:
        await keep(rt, tx, session, keeping)
    is_new = keeping is not None and keeping.fields is not None
    if not is_new and await turns.newest_of(tx, session, lock=True) != newest:
        raise TurnInProgress("The session went on meanwhile.")
    await _take_back(tx, session, additions.lacking)
    ended_turn_id = None if additions.outputs is None else newest.turn_id
    if ended_turn_id is not None:
        await _end_waiting(rt, tx, session, ended_turn_id, additions.outputs or ())
    await append_history(tx, session, additions.history)
    before, after = await _direct(tx, session, additions.directions) if additions.directions else (None, None)
    return Added(newest.last_turn_seq, newest.last_message_seq, ended_turn_id, before, after)


async def keep(rt: Runtime, tx: Transaction, session: SessionRef, keeping: Keeping) -> None:
    """Stores the session if it is new, and how it is kept. Raises `IdempotencyInFlight` if another request with the key
    has made a session meanwhile, or is answered in the one of which this is a fork."""
    key, lifetime = keeping.key, keeping.lifetime
    if key:
        await _check_key(tx, session.tenant_id, key, keeping.source)
    if keeping.fields is not None:
        await insert_checked(rt, tx, session.tenant_id, keeping.fields, session.id)
    if key:
        await session_store.name_session(tx, session, "idempotency_key", key)
    if keeping.fields is None or lifetime is not Lifetime.UNTIL_DELETED:
        await session_store.set_lifetime(tx, session.id, lifetime)


async def _check_key(tx: Transaction, tenant_id: TenantId, key: str, source: SessionRef | None = None) -> None:
    """Raises as `keep`."""
    if await answered_in(tx, tenant_id, key, source):
        raise IdempotencyInFlight("Another request with this idempotency key has just begun.")


async def answered_in(
    tx: Transaction, tenant_id: TenantId, key: str, source: SessionRef | None = None
) -> SessionRef | None:
    """The session in which a request with this idempotency key is answered: the one that was made for it, or `source`;
    None if there is none. Requests with the key wait here for one another until their transactions end."""
    made = await session_store.named_session(tx, tenant_id, "idempotency_key", key, lock=True)
    if made is not None:
        return SessionRef(tenant_id, made)
    return source if source is not None and await turns.turn_by_key(tx, source, key) else None


@retried
async def keep_session(rt: Runtime, session: SessionRef, keeping: Keeping | None) -> None:
    """The same in a transaction of its own; nothing for None."""
    if keeping is not None:
        async with rt.database.begin(locking=session.id) as tx:
            await keep(rt, tx, session, keeping)


async def _end_waiting(
    rt: Runtime, tx: Transaction, session: SessionRef, turn_id: TurnId, outputs: Sequence[JsonObject]
) -> None:
    waiting = await waiting_turn(tx, session, turn_id) if outputs else None
    if waiting is None:
        await turns.cancel_turn(tx, session, turn_id)
        return
    check_outputs(waiting, [output["tool_call_id"] for output in outputs])
    await reclaim_turn(tx, session, turn_id, waiting, outputs, rt.turn_lease_s)
    await turns.complete_answered_turn(tx, session.id, turn_id)


async def _take_back(tx: Transaction, session: SessionRef, lacking: Sequence[Message]) -> None:
    """Withdraws those of the messages whose turns failed or were cancelled: one that the provider refuses would be in
    every later prompt."""
    for turn_id, group in groupby(lacking, lambda message: message.turn_id):
        turn = existing(await turns.get_turn(tx, session, turn_id), "session")
        if turn.status in FAILED_STATUSES:
            of_turn = await messages_of_turn(tx, session.id, turn_id)
            await withdraw_messages(tx, session.id, of_turn, [message.seq for message in group])


async def _direct(tx: Transaction, session: SessionRef, directions: Sequence[str]) -> tuple[str | None, str | None]:
    """Appends the texts, and returns the instructions before and after that."""
    stored = existing(await session_store.get_session(tx, session), "session")
    instructions = await asyncio.to_thread(joined_directions, stored.instructions, directions)
    if instructions != stored.instructions:
        if len(instructions or "") > MOST_DIRECTIONS_CHARS:
            raise InvalidRequest(
                "The conversation's system and developer messages would have more than "
                f"{MOST_DIRECTIONS_CHARS} characters together."
            )
        await session_store.update_session(tx, session.tenant_id, replace(stored, instructions=instructions))
    return stored.instructions, instructions


def check_outputs(waiting: WaitingTurn, answered: Sequence[str]) -> None:
    """Checks that outputs, by call id, answer a turn's open calls exactly. Raises as `claim_outputs`."""
    if waiting.status is TurnStatus.RUNNING:
        raise TurnInProgress("The turn is running already.")
    if waiting.status is not TurnStatus.AWAITING_TOOLS:
        raise TurnNotOpen(f"The turn is {waiting.status.value} and waits for no tools.")
    unanswered = {call.id: True for call in waiting.open_calls}
    unknown = [call_id for call_id in answered if not unanswered.pop(call_id, False)]
    if unanswered or unknown:
        raise ToolOutputsMismatch(list(unanswered), unknown, ("body", "outputs"))


async def draft_outputs(rt: Runtime, outputs: Sequence[IncomingMessage]) -> list[JsonObject]:
    """Outputs as rows of messages, counted before a database connection is taken. `seq` counts from 1."""
    encoding = rt.catalogue.model(rt.catalogue.default).encoding
    drafted: list[JsonObject] = []
    packed = await pack_messages([("tool", output.content, False, None) for output in outputs])
    for at, (output, terms) in enumerate(zip(outputs, packed, strict=True), 1):
        if at % _SLICE == 0:
            await asyncio.sleep(0)  # counting a short output never yields to the event loop
        tokens, used = await count_message(rt, encoding, output.content, tool_call_id=output.tool_call_id)
        drafted.append(message_row(rt.new_id(), output, (tokens, 0), used, terms) | {"seq": at})
    return drafted
