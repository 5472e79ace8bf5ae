"""Aliases that are down and rest for a while, so that not every turn waits for them first."""

from __future__ import annotations

from collections.abc import Callable

REST_S = 30.0


class Cooldowns:
    """Kept by each process for itself: `monotonic` is its clock, in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: dict[str, float] = {}

    def rest(self, model_alias: str) -> None:
        """The alias failed after its retries."""
        self._until[model_alias] = self._monotonic() + REST_S

    def is_resting(self, model_alias: str) -> bool:
        """Whether the alias is better not asked now."""
        until = self._until.get(model_alias)
        return until is not None and self._monotonic() < until

    def first_awake(self, model_alias: str, fallbacks: tuple[str, ...]) -> str:
        """The alias itself, or the first fallback that does not rest when it does; itself when all rest."""
        return next((alias for alias in (model_alias, *fallbacks) if not self.is_resting(alias)), model_alias)
