"""The estimate's guard, by tenant: what this process observed is used at once, and merged into Postgres in seconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple
from datetime import timedelta
from functools import reduce
from itertools import islice
from typing import TypeAlias

from app.db.calibrations import (
    Key,
    forget_unused_calibrations,
    lock_calibrations,
    recent_calibrations,
    store_calibrations,
)
from app.db.database import Database
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TenantId
from app.engine.window.calibration import Calibration, guard_ratio, observe, shared_ratio

UNUSED = timedelta(days=30)
"""A row that no call was merged into for so long is deleted."""
_MOST_WAITING = 64
"""Calls of one key that wait to be merged; while the database is away the oldest are dropped."""
_MERGED_AT_ONCE = 200

_Seen: TypeAlias = tuple[int, int]


class Calibrations:
    """What is known by (tenant, alias, encoding), and what has been observed since it was last merged.

    Of both there are `most_known` entries at most. A tenant that is not among them starts from the shared ratio.
    """

    def __init__(self, most_known: int = 10_000) -> None:
        self._most_known = most_known
        self._known: dict[Key, Calibration] = {}
        self._shared: dict[tuple[str, str], float] = {}
        self._pending: dict[Key, list[_Seen]] = {}

    def ratio(self, tenant_id: TenantId, model_alias: str, encoding: str) -> float:
        """What a tenant's wire estimates are multiplied with in its budgets; 1.0 until enough is known."""
        known = self._known.get((tenant_id, model_alias, encoding), Calibration())
        return guard_ratio(known, self._shared.get((model_alias, encoding), 1.0))

    def observe(self, tenant_id: TenantId, model_alias: str, encoding: str, *, estimated: int, actual: int) -> None:
        """One call's raw estimate and the provider's prompt tokens."""
        key = (tenant_id, model_alias, encoding)
        before = self._known.get(key, Calibration())
        after = observe(before, estimated=estimated, actual=actual)
        if after is not before:
            self._keep(key, after)
            self._wait(key, [(estimated, actual)])

    async def flush(self, database: Database) -> None:
        """Merges what was observed here into what every process observed, some hundred rows a transaction."""
        while self._pending:
            seen = {key: self._pending.pop(key) for key in list(islice(self._pending, _MERGED_AT_ONCE))}
            try:
                async with database.begin() as tx:
                    stored = await lock_calibrations(tx, list(seen))
                    merged = {key: _with_all(Calibration(*sums), seen[key]) for key, sums in stored.items()}
                    await store_calibrations(tx, {key: astuple(each) for key, each in merged.items()})
            except DatabaseUnavailable:
                for key, calls in seen.items():
                    self._wait(key, calls, later=self._pending.pop(key, []))
                raise
            for key, each in merged.items():
                self._keep(key, _with_all(each, self._pending.get(key, [])))

    async def load(self, database: Database) -> None:
        """Reads what every process has observed lately."""
        async with database.autocommit() as tx:
            stored = await recent_calibrations(tx, self._most_known)
        by_alias: dict[tuple[str, str], list[Calibration]] = defaultdict(list)
        known: dict[Key, Calibration] = {}
        for key, sums in reversed(stored.items()):  # the newest last: the oldest leave first
            known[key] = Calibration(*sums)
            by_alias[key[1:]].append(known[key])
        own = {key: self._known[key] for key in self._pending if key in self._known}
        self._known = known
        for key, each in own.items():
            self._keep(key, each)
        self._shared = {alias: shared_ratio(each) for alias, each in by_alias.items()}

    @staticmethod
    async def forget_unused(database: Database) -> None:
        """Deletes the rows of tenants and aliases that are not used any more."""
        async with database.autocommit() as tx:
            await forget_unused_calibrations(tx, UNUSED.total_seconds())

    def _keep(self, key: Key, calibration: Calibration) -> None:
        self._known.pop(key, None)
        self._known[key] = calibration
        if len(self._known) > self._most_known:
            del self._known[next(iter(self._known))]

    def _wait(self, key: Key, calls: list[_Seen], later: list[_Seen] | None = None) -> None:
        waiting = [*self._pending.pop(key, []), *calls, *(later or [])]
        if len(self._pending) < self._most_known:
            self._pending[key] = waiting[-_MOST_WAITING:]


def _with_all(calibration: Calibration, seen: list[_Seen]) -> Calibration:
    return reduce(lambda so_far, each: observe(so_far, estimated=each[0], actual=each[1]), seen, calibration)
