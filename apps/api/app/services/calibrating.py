"""The estimate's guard: what this process observed is merged into Postgres every few seconds, and used at once."""

from __future__ import annotations

from typing import TypeAlias

from app.db.calibrations import all_calibrations, lock_calibration, store_calibration
from app.db.database import Database
from app.domain.errors import DatabaseUnavailable
from app.engine.calibration import Calibration, guard_ratio, observe

_Key: TypeAlias = tuple[str, str]


class Calibrations:
    """What is known by (alias, encoding), and what has been observed since it was last merged."""

    def __init__(self) -> None:
        self._known: dict[_Key, Calibration] = {}
        self._pending: dict[_Key, list[tuple[int, int]]] = {}

    def ratio(self, model_alias: str, encoding: str) -> float:
        """What a wire estimate is multiplied with before it is charged; 1.0 until enough is known."""
        known = self._known.get((model_alias, encoding))
        return guard_ratio(known) if known else 1.0

    def observe(self, model_alias: str, encoding: str, *, estimated: int, actual: int) -> None:
        """One call's raw estimate and the provider's prompt tokens."""
        key = (model_alias, encoding)
        before = self._known.get(key, Calibration())
        after = observe(before, estimated=estimated, actual=actual)
        if after is not before:
            self._known[key] = after
            self._pending.setdefault(key, []).append((estimated, actual))

    async def flush(self, database: Database) -> None:
        """Merges what was observed here into what everybody observed; a short transaction for each key."""
        pending, self._pending = self._pending, {}
        while pending:
            key, seen = pending.popitem()
            try:
                async with database.begin() as tx:
                    merged = Calibration(await lock_calibration(tx, *key))
                    for estimated, actual in seen:
                        merged = observe(merged, estimated=estimated, actual=actual)
                    await store_calibration(tx, *key, merged.ratios)
            except DatabaseUnavailable:
                for key_left, seen_left in ((key, seen), *pending.items()):
                    self._pending[key_left] = seen_left + self._pending.get(key_left, [])
                raise
            self._known[key] = merged

    async def load(self, database: Database) -> None:
        """Reads what every process has observed."""
        async with database.autocommit() as tx:
            stored = await all_calibrations(tx)
        self._known |= {key: Calibration(ratios) for key, ratios in stored.items() if key not in self._pending}
