"""Pinned content of a session: what its owner wants in every prompt."""

from __future__ import annotations

from app.db import pins as store
from app.domain.errors import NotFound
from app.domain.figures import PinFigures
from app.domain.types import Pin, SessionId, TenantId
from app.engine.recall.relevance import question_of, relevances
from app.engine.window.prompt import goal_text, pin_text
from app.services.paging import Page, after_name, page_of
from app.services.runtime import Runtime
from app.services.sessions import check_session, not_found
from app.services.turn.gather import estimator_of
from app.services.views.context import no_turn, session_window


async def put_pin(rt: Runtime, tenant_id: TenantId, session_id: SessionId, pin: Pin) -> Pin:
    """Stores the pin, replacing the one of its name. Raises `NotFound` for the session."""
    async with rt.database.autocommit() as tx:
        stored = await store.put_pin(tx, tenant_id, session_id, pin)
    if stored is None:
        raise NotFound("session")
    return stored


async def get_pin(rt: Runtime, tenant_id: TenantId, session_id: SessionId, name: str) -> Pin:
    """The pin of that name. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        pin = await store.get_pin(tx, tenant_id, session_id, name)
        if pin is None:
            raise await not_found(tx, tenant_id, session_id, "pin")
    return pin


async def list_pins(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, limit: int, cursor: str | None
) -> Page[Pin]:
    """The session's pins by name. Raises `NotFound` for the session."""
    scope = f"pins:{session_id}"
    after = after_name(scope, cursor) or ""
    async with rt.database.autocommit() as tx:
        rows = await store.list_pins(tx, tenant_id, session_id, after=after, limit=limit + 1)
        if not rows:
            await check_session(tx, tenant_id, session_id)
    return page_of(scope, rows, limit, lambda pin: pin.name)


async def pin_figures(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> dict[str, PinFigures]:
    """By name, each pin's tokens as it stands in a prompt, and its relevance to a turn with the newest one's words.

    Raises `NotFound` for the session.
    """
    rows = await session_window(rt, tenant_id, session_id)
    pins, estimate = rows.context.pins, estimator_of(rt, rows)
    newest = rows.turns[-1] if rows.turns else no_turn(rows.turn_seq)
    goal = goal_text(rows.session.room_goal, rows.session.mode)
    return {
        pin.name: PinFigures(estimate(pin_text(pin)), relevance, "computed" if pin.relevance is None else "given")
        for pin, relevance in zip(pins, relevances(pins, question_of(goal, newest)), strict=True)
    }


async def delete_pin(rt: Runtime, tenant_id: TenantId, session_id: SessionId, name: str) -> None:
    """Takes the pin away; prompts that had it can still be rebuilt. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        if not await store.delete_pin(tx, tenant_id, session_id, name):
            raise await not_found(tx, tenant_id, session_id, "pin")
