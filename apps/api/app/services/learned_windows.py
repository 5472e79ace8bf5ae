"""Windows that providers stated when they refused a prompt: kept in Postgres, known to every process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from app.db.windows import learn_window, learned_windows
from app.domain.errors import DatabaseUnavailable
from app.services.runtime import Runtime

BELIEVED = timedelta(days=7)
"""After that the provider may say it again: windows grow with new releases behind the same name."""
_REFRESH_S = 30.0


async def load_windows(rt: Runtime) -> None:
    """Makes the catalogue resolve windows with what is stored now."""
    async with rt.database.autocommit() as tx:
        rows = await learned_windows(tx)
    rt.catalogue.learn({row.model_alias: row for row in rows})


async def learn(rt: Runtime, model_alias: str, context_window: int) -> None:
    """Stores a window and uses it from now on; other processes hear of it within half a minute."""
    async with rt.database.autocommit() as tx:
        await learn_window(tx, model_alias, context_window, BELIEVED.total_seconds())
    await load_windows(rt)


async def refresh_forever(rt: Runtime) -> None:
    """Reads what other processes have learned, every half minute, and once at the start."""
    while True:
        with suppress(DatabaseUnavailable):  # what is known stays known
            await load_windows(rt)
        await asyncio.sleep(_REFRESH_S)
