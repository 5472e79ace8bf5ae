"""The model calls of one round: what each sent, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.types import CompletionRequest, JsonObject
from app.engine.window.plan import Assembled, Ready
from app.engine.window.window import Snapshot
from app.providers.registry import Model
from app.services.turn.record import block_rows


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One prompt on its way to one model, with its audit row, in which the provider's count is filled in later."""

    model: Model
    snapshot: Snapshot
    ready: Ready
    assembled: Assembled
    request: CompletionRequest
    audit: JsonObject


class Attempts:
    """The calls of a round, in order. `reactions` counts those made smaller for the alias that is asked now."""

    def __init__(self, model: Model) -> None:
        self.fallbacks = list(model.fallbacks)
        self.reactions = 0
        self._calls: list[ModelCall] = []
        self._notes: list[JsonObject] = []

    def add(self, call: ModelCall) -> None:
        """A call that is about to be made."""
        call.audit["attempt"] = len(self._calls) + 1
        self._calls.append(call)

    def note(self, model_alias: str, attempts: int, **outcome: object) -> None:
        """What came of the newest call; `attempts` counts the provider's own retries."""
        self._notes.append({"model_alias": model_alias, "attempts": attempts, **outcome})

    @property
    def last(self) -> ModelCall:
        return self._calls[-1]

    @property
    def audits(self) -> list[JsonObject]:
        """An audit row for each call."""
        return [call.audit for call in self._calls]

    def blocks(self) -> list[JsonObject]:
        """The blocks that all prompts need to be rebuilt, each once."""
        return block_rows(tuple(block for call in self._calls for block in call.assembled.blocks))

    def detail(self) -> JsonObject:
        """What the step of the model's call says: the newest outcome, and the ones before it where there were any."""
        if not self._notes:
            return {}
        *before, newest = self._notes
        return newest | ({"before": before} if before else {})
