"""Making, reading, changing and erasing sessions, and their pins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.db import sessions as store
from app.db.database import Database, Fetched, Transaction
from app.db.erasure import erase
from app.db.figures import session_figures
from app.db.records import usage_totals
from app.db.turns import cancel_open_turns
from app.domain.errors import InvalidRequest, NotFound, existing, located
from app.domain.figures import SessionFigures, SessionUsage
from app.domain.frozen import replace
from app.domain.responses import Lifetime
from app.domain.types import (
    CHAT_OPTIONS,
    MOST_PINS,
    MOST_PINS_BYTES,
    JsonObject,
    Pin,
    Session,
    SessionId,
    SessionRef,
    SessionState,
    TenantId,
)
from app.services.paging import BY_ID, BY_NAME, Page, PageRequest, bounds_of, cursor_at, page_of, position_of
from app.services.policies import given_policy, resolve_policy
from app.services.process_state import summary_task
from app.services.runtime import Runtime, retried

T = TypeVar("T")

LOOKED_THROUGH = 2000
"""Most sessions that one search reads."""


async def create_session(rt: Runtime, tenant_id: TenantId, fields: JsonObject) -> Session:
    """Stores a session. `fields` has any of `store.CHANGEABLE`; without a `model_alias` it uses the default model.
    Raises `InvalidRequest` for an alias, mode, role or policy that this service does not know."""
    fields = with_defaults(rt, with_given_policy(rt, fields))
    async with rt.database.autocommit() as tx:
        return await insert_checked(rt, tx, tenant_id, fields)


def with_defaults(rt: Runtime, fields: JsonObject) -> JsonObject:
    """The fields of a new session; a missing alias becomes the default. Raises `InvalidRequest` as `create_session`."""
    complete = {**fields, "model_alias": fields.get("model_alias") or rt.catalogue.default}
    _check(rt, complete)
    return complete


async def insert_checked(
    rt: Runtime, tx: Transaction, tenant_id: TenantId, fields: JsonObject, session_id: SessionId | None = None
) -> Session:
    """Stores a session with fields that `with_defaults` returned, and a `cache_key` if they have one; without an id it
    gets a new one."""
    values = _as_stored(rt, {name: fields.get(name) for name in store.CHANGEABLE})
    values["cache_key"] = fields.get("cache_key")
    return await store.insert_session(tx, SessionRef(tenant_id, session_id or SessionId(rt.new_id())), values)


def _as_stored(rt: Runtime, fields: JsonObject) -> JsonObject:
    """The changeable ones of the fields. A null becomes the default where the column does not allow null."""
    stored = {name: fields[name] for name in store.CHANGEABLE if name in fields}
    instead_of_null: JsonObject = {"model_alias": rt.catalogue.default, "policy": {}, "metadata": {}, "limits": {}}
    stored |= {name: default for name, default in instead_of_null.items() if name in stored and stored[name] is None}
    if "limits" in stored:  # a limit that is null is no limit
        stored["limits"] = {name: value for name, value in stored["limits"].items() if value is not None}
    return stored


async def get_session(rt: Runtime, session: SessionRef) -> Session:
    """The tenant's session. Raises `NotFound`."""
    return existing(await rt.database.run(store.get_session, session), "session")


async def session_state(tx: Transaction, session: SessionRef) -> SessionState:
    """What a prompt of the session depends on, read without a lock. Raises `NotFound`."""
    return existing(await store.get_state(tx, session), "session")


async def check_session(tx: Transaction, session: SessionRef) -> None:
    """Raises `NotFound` if the tenant has no such session."""
    if not await store.session_exists(tx, session):
        raise NotFound("session")


async def has_session(rt: Runtime, session: SessionRef) -> bool:
    return await rt.database.run(store.session_exists, session)


async def existing_in(tx: Transaction, session: SessionRef, found: T | None, noun: str) -> T:
    """Returns `found`. Raises `NotFound` with the noun if it is None, or with the session if that does not exist."""
    if found is None:
        raise NotFound(noun if await store.session_exists(tx, session) else "session")
    return found


async def session_usage(rt: Runtime, session_id: SessionId) -> list[SessionUsage]:
    return await rt.database.run(usage_totals, session_id)


async def list_sessions(rt: Runtime, tenant_id: TenantId, wanted: PageRequest) -> Page[Session]:
    scope, bounds = bounds_of(BY_ID, f"sessions:{tenant_id}", wanted, newest_by_default=True)
    return page_of(BY_ID, scope, await rt.database.run(store.list_sessions, tenant_id, bounds))


async def search_sessions(
    rt: Runtime, tenant_id: TenantId, words: str, limit: int, cursor: str | None
) -> Page[Session]:
    """The tenant's sessions that have the words (any case) in their id, goal, labels, metadata or first message, newest
    first. One call reads at most `LOOKED_THROUGH` sessions, so a page may be short or empty and not be the last."""
    scope = f"sessions:{tenant_id}"
    before = position_of(BY_ID, scope, cursor) or BY_ID.last
    found, horizon = await rt.database.run(
        store.search_sessions, tenant_id, words, before=before, limit=limit, most_looked_through=LOOKED_THROUGH
    )
    page = page_of(BY_ID, scope, found)
    if page.next_cursor is None and horizon is not None:
        return Page(page.items, cursor_at(BY_ID, scope, horizon))
    return page


async def figures_of(rt: Runtime, sessions: Sequence[Session]) -> dict[SessionId, SessionFigures]:
    return await rt.database.run(session_figures, [session.id for session in sessions])


@retried
async def change_session(rt: Runtime, session: SessionRef, fields: JsonObject) -> Session:
    """Sets the given fields; `policy`, `metadata` and `limits` as a whole, and null removes a value. Stored turns keep
    what they were sent with. A session that was made for a response is then kept without it. Raises `NotFound`,
    `InvalidRequest`."""
    fields = with_given_policy(rt, fields)
    _check(rt, fields)
    changed = _as_stored(rt, fields)
    async with rt.database.begin(locking=session.id) as tx:
        stored = existing(await store.get_session(tx, session, lock=True), "session")
        await store.set_lifetime(tx, session.id, Lifetime.UNTIL_DELETED)
        return existing(await store.update_session(tx, session.tenant_id, replace(stored, **changed)), "session")


async def delete_session(rt: Runtime, session: SessionRef) -> None:
    """Erases the session and everything that belongs to it, for good; a running turn is cancelled. Raises `NotFound`,
    and as `HeavyWork.slot`, in which case the session still exists."""
    async with rt.heavy.slot(session.tenant_id) as database:
        # First, and in its own transaction: it settles the tenant's usage, which the tenant's other turns write too.
        await _cancel_open(rt, database, session)
        if not await erase_if(rt, database, session, lambda tx: store.session_exists(tx, session)):
            raise NotFound("session")


@retried
async def _cancel_open(rt: Runtime, database: Database, session: SessionRef) -> None:
    async with database.begin(locking=session.id) as tx:
        cancelled = await cancel_open_turns(tx, session)
    rt.leases.cancel(session.id, *cancelled)


@retried
async def erase_if(
    rt: Runtime, database: Database, session: SessionRef, condition: Callable[[Transaction], Awaitable[bool]]
) -> bool:
    """Erases the session and cancels its running turn and summary, if the condition holds; returns whether it did. What
    the condition finds stays true until the end of the transaction that it is given; what it writes is stored."""
    async with database.begin(locking=session.id) as tx:
        await store.lock_session(tx, session, to_erase=True)
        if not await condition(tx):
            return False
        cancelled = await cancel_open_turns(tx, session)
        await erase(tx, [session.id])
    rt.leases.cancel(session.id, *cancelled)
    rt.chores.cancel(summary_task(session.id))
    rt.pasts.forget(session.id)
    return True


def with_given_policy(rt: Runtime, fields: JsonObject) -> JsonObject:
    """The fields with the client's policy in its stored form. Raises `InvalidRequest` as `given_policy`."""
    return {**fields, "policy": given_policy(rt, fields["policy"])} if fields.get("policy") else fields


def check_alias(rt: Runtime, alias: str) -> None:
    """Raises `InvalidRequest` for an alias that the catalogue does not have."""
    if alias not in rt.catalogue.aliases:
        raise InvalidRequest(
            "The catalogue has no model of this alias; GET /v1/models lists what it has.", ("body", "model_alias")
        )


def check_options(rt: Runtime, alias: str, options: Mapping[str, Any], *within: str) -> None:
    """Raises `InvalidRequest` for an option, `within` the body, that the model's provider does not support."""
    provider = rt.catalogue.provider(alias)
    for name in sorted(options.keys() - provider.supported(options).keys()):
        why = f"The provider of this model does not support {name}."
        if name not in CHAT_OPTIONS:
            why = f"There is no field {name}; only an alias with pass_unknown passes it on to its provider."
        elif name in provider.options:
            known = " or ".join(sorted(provider.response_formats))
            why = f"The provider of this model knows response_format only of the type {known}."
        raise InvalidRequest(why, (*within, name))


def _check(rt: Runtime, fields: JsonObject) -> None:
    if fields.get("model_alias") is not None:
        check_alias(rt, fields["model_alias"])
    _check_known("mode", fields.get("mode"), rt.catalogue.instructions.modes)
    _check_known("agent_role", fields.get("agent_role"), rt.catalogue.instructions.roles)
    if fields.get("policy"):
        with located("body"):
            resolve_policy(rt.guarded, fields["policy"])


def _check_known(field: str, value: str | None, instructions: Mapping[str, str]) -> None:
    """If the catalogue has instructions for this field, only their names are valid; else any name is a label."""
    if value is not None and instructions and value not in instructions:
        known = ", ".join(sorted(instructions))
        raise InvalidRequest(f"The catalogue has no instructions for this {field}; it has: {known}.", ("body", field))


@retried
async def put_pin(rt: Runtime, session: SessionRef, pin: Pin) -> Pin:
    """Stores the pin, replacing the one of the same name, in a session that is then kept as by `change_session`. Raises
    `NotFound` for the session, and `InvalidRequest` if it would have too many pins or bytes of pins."""
    async with rt.database.begin(locking=session.id) as tx:
        if not await store.lock_session(tx, session):  # the sums hold until the pin is stored
            raise NotFound("session")
        await store.set_lifetime(tx, session.id, Lifetime.UNTIL_DELETED)
        count, size_bytes = await store.other_pins(tx, session, pin.name)
        if count >= MOST_PINS:
            raise InvalidRequest(f"The session has {count} pins, which is the most.", ("path", "name"))
        size_bytes += len(pin.content.encode())
        if size_bytes > MOST_PINS_BYTES:
            raise InvalidRequest(
                f"The session's pins would have {size_bytes} bytes; they may have {MOST_PINS_BYTES} together.",
                ("body", "content"),
            )
        return existing(await store.put_pin(tx, session, pin), "session")


async def get_pin(rt: Runtime, session: SessionRef, name: str) -> Pin:
    """The pin of that name. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        return await existing_in(tx, session, await store.get_pin(tx, session, name), "pin")


async def list_pins(rt: Runtime, session: SessionRef, limit: int, cursor: str | None) -> Page[Pin]:
    """The session's pins, ordered by name. Raises `NotFound` for the session."""
    scope = f"pins:{session.id}"
    after = position_of(BY_NAME, scope, cursor) or BY_NAME.first
    async with rt.database.autocommit() as tx:
        rows = await store.list_pins(tx, session, after=after, limit=limit + 1)
        if not rows:
            await check_session(tx, session)
    return page_of(BY_NAME, scope, Fetched(rows[:limit], len(rows) > limit))


async def delete_pin(rt: Runtime, session: SessionRef, name: str) -> None:
    """Deletes the pin; prompts that contained it can still be rebuilt. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        await existing_in(tx, session, await store.delete_pin(tx, session, name) or None, "pin")
