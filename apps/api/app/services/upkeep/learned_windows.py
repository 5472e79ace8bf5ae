"""Windows that providers stated when they refused a prompt: kept in Postgres, known to every process.

A statement alone lowers nothing beyond its own turn. Stated in two turns of a tenant, a window is that tenant's; stated
to two tenants, it is everybody's. A window that the catalogue configures is never replaced.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from app.db.database import Database
from app.db.learned_windows import StatedWindow, forget_windows, note_window, stated_windows
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TenantId, TurnId
from app.providers.registry import LearnedWindows
from app.services.runtime import Runtime

BELIEVED = timedelta(days=7)
"""After that the provider may say it again: windows grow with new releases behind the same name."""
INDEPENDENT_STATEMENTS = 2
MOST_KNOWN = 10_000
"""Statements that a process holds."""
_REFRESH_S = 30.0


def windows_of(stated: Iterable[StatedWindow]) -> LearnedWindows:
    """What counts, by alias and tenant, and under the tenant None for everybody.

    Where tenants agree on several windows the largest counts: one that is too large costs a refused call, one that is
    too small costs every tenant a part of the window.
    """
    stated = list(stated)
    windows: dict[tuple[str, TenantId | None], int] = {
        (each.model_alias, TenantId(each.tenant_id)): each.context_window
        for each in stated
        if each.statements >= INDEPENDENT_STATEMENTS
    }
    tenants = Counter((each.model_alias, each.context_window) for each in stated)
    for (alias, window), count in tenants.items():
        if count >= INDEPENDENT_STATEMENTS:
            windows[alias, None] = max(window, windows.get((alias, None), 0))
    return windows


def counts_for(stated: StatedWindow, windows: LearnedWindows) -> str:
    """Whose prompts a statement limits, where the catalogue configures no window: `all`, its `tenant`, or `nobody`."""
    if windows.get((stated.model_alias, None)) == stated.context_window:
        return "all"
    return "tenant" if stated.statements >= INDEPENDENT_STATEMENTS else "nobody"


async def load_windows(rt: Runtime) -> None:
    """Makes the catalogue resolve windows with what is stored now."""
    rt.catalogue.learn(windows_of(await list_windows(rt.database)))


async def learn(rt: Runtime, tenant_id: TenantId, turn_id: TurnId, model_alias: str, context_window: int) -> None:
    """Notes a statement and uses what follows from it; other processes hear of it within half a minute."""
    async with rt.database.begin() as tx:
        await note_window(tx, model_alias, tenant_id, turn_id, context_window, BELIEVED.total_seconds())
    await load_windows(rt)


async def list_windows(database: Database) -> list[StatedWindow]:
    """Every statement that still counts."""
    async with database.autocommit() as tx:
        return await stated_windows(tx, MOST_KNOWN)


async def forget(database: Database, model_alias: str) -> int:
    """Forgets what was stated of an alias, in running processes within half a minute; how many statements."""
    async with database.autocommit() as tx:
        return await forget_windows(tx, model_alias)


async def refresh_forever(rt: Runtime) -> None:
    """Reads what other processes have learned, every half minute, and once at the start."""
    while True:
        with suppress(DatabaseUnavailable):  # what is known stays known
            await load_windows(rt)
        await asyncio.sleep(_REFRESH_S)
