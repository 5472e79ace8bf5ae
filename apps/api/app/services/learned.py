"""What was learned from calls: how far estimates of a tenant's tokens are off, and windows that providers stated in
refusals. A window that was stated once applies to its own turn only. Stated in two turns of a tenant, it applies to
that tenant; stated to two tenants, it applies to all. A window that the catalogue configures is never replaced."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import astuple
from datetime import timedelta
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from app.db import learned as store
from app.db.database import Database
from app.db.learned import Key, StatedWindow
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TenantId, TurnId
from app.engine.window.calibration import Calibration, guard_ratio, observe, shared_ratio

if TYPE_CHECKING:  # as in `runtime.py`
    from app.providers.registry import Catalogue, LearnedWindows

UNUSED = timedelta(days=30)
"""A row that no call was merged into for this long is deleted."""
_MOST_WAITING = 64
"""Most calls of one key that wait to be merged; while the database cannot be reached, the oldest are dropped."""
_MERGED_AT_ONCE = 200

_Seen: TypeAlias = tuple[int, int]


class Calibrations:
    """The calibrations known by (tenant, alias, encoding), and the observations that are not merged yet: at most
    `most_known` entries each. A tenant without an entry starts from the shared ratio."""

    def __init__(self, most_known: int = 10_000) -> None:
        self._most_known = most_known
        self._known: dict[Key, Calibration] = {}
        self._shared: dict[tuple[str, str], float] = {}
        self._pending: dict[Key, list[_Seen]] = {}

    def ratio(self, tenant_id: TenantId, model_alias: str, encoding: str) -> float:
        """The factor for a tenant's wire estimates in its budgets; 1.0 until enough is known."""
        known = self._known.get((tenant_id, model_alias, encoding), Calibration())
        return guard_ratio(known, self._shared.get((model_alias, encoding), 1.0))

    def observe(self, tenant_id: TenantId, model_alias: str, encoding: str, *, estimated: int, actual: int) -> None:
        """Adds one call: its estimate before calibration, and the prompt tokens that the provider counted."""
        key = (tenant_id, model_alias, encoding)
        before = self._known.get(key, Calibration())
        after = observe(before, estimated=estimated, actual=actual)
        if after is not before:
            self._keep(key, after)
            self._wait(key, [(estimated, actual)])

    async def flush(self, database: Database) -> None:
        """Merges this process's observations into the stored ones, at most `_MERGED_AT_ONCE` rows per transaction."""
        while self._pending:
            seen = {key: self._pending.pop(key) for key in list(islice(self._pending, _MERGED_AT_ONCE))}
            try:
                async with database.begin() as tx:
                    stored = await store.lock_calibrations(tx, list(seen))
                    merged = {key: _with_all(Calibration(*sums), seen[key]) for key, sums in stored.items()}
                    await store.store_calibrations(tx, {key: astuple(each) for key, each in merged.items()})
            except DatabaseUnavailable:
                for key, calls in seen.items():
                    self._wait(key, [*calls, *self._pending.pop(key, [])])
                raise
            for key, each in merged.items():
                self._keep(key, _with_all(each, self._pending.get(key, [])))

    async def load(self, database: Database) -> None:
        stored = await database.run(store.recent_calibrations, self._most_known)
        by_alias: dict[tuple[str, str], list[Calibration]] = defaultdict(list)
        known: dict[Key, Calibration] = {}
        for key, sums in reversed(stored.items()):  # the newest last: the first are evicted first
            known[key] = Calibration(*sums)
            by_alias[key[1:]].append(known[key])
        own = {key: self._known[key] for key in self._pending if key in self._known}
        self._known = known
        for key, each in own.items():
            self._keep(key, each)
        self._shared = {alias: shared_ratio(each) for alias, each in by_alias.items()}

    def _keep(self, key: Key, calibration: Calibration) -> None:
        self._known.pop(key, None)
        self._known[key] = calibration
        if len(self._known) > self._most_known:
            del self._known[next(iter(self._known))]

    def _wait(self, key: Key, calls: list[_Seen]) -> None:
        waiting = [*self._pending.pop(key, []), *calls]
        if len(self._pending) < self._most_known:
            self._pending[key] = waiting[-_MOST_WAITING:]


def _with_all(calibration: Calibration, seen: list[_Seen]) -> Calibration:
    return reduce(lambda so_far, each: observe(so_far, estimated=each[0], actual=each[1]), seen, calibration)


BELIEVED = timedelta(days=7)
"""How long a statement counts; the provider may then state it again. Windows grow with releases under the same name."""
INDEPENDENT_STATEMENTS = 2
MOST_KNOWN = 10_000


def windows_of(stated: Iterable[StatedWindow]) -> LearnedWindows:
    """The windows that apply, by alias and tenant; the tenant None stands for all. If tenants agree on several windows
    of an alias, the largest applies: one that is too large costs a refused call, one that is too small costs every
    tenant a part of the window."""
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
    """Whose prompts a statement limits if the catalogue configures no window: `all`, its `tenant`'s, or `nobody`'s."""
    if windows.get((stated.model_alias, None)) == stated.context_window:
        return "all"
    return "tenant" if stated.statements >= INDEPENDENT_STATEMENTS else "nobody"


async def load_windows(database: Database, catalogue: Catalogue) -> None:
    catalogue.learn(windows_of(await list_windows(database)))


async def learn(
    database: Database,
    catalogue: Catalogue,
    tenant_id: TenantId,
    turn_id: TurnId,
    model_alias: str,
    context_window: int,
) -> None:
    """Stores a statement and applies what follows from it; other processes load it within half a minute."""
    async with database.begin() as tx:
        await store.note_window(tx, model_alias, tenant_id, turn_id, context_window, BELIEVED.total_seconds())
    await load_windows(database, catalogue)


async def list_windows(database: Database) -> list[StatedWindow]:
    return await database.run(store.stated_windows, MOST_KNOWN)


async def forget(database: Database, model_alias: str) -> int:
    """Deletes the statements about an alias, which running processes apply within half a minute; returns how many."""
    return await database.run(store.forget_windows, model_alias)
