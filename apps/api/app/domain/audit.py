"""The audit of a model call: how its prompt came about, as it is stored, answered and exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from annotated_types import Ge, Le

from app.domain.stored import names_of
from app.domain.types import Count, Difference, JsonObject, Name, SessionId, SmallSeq, TurnId

CacheBreak: TypeAlias = Literal[
    "model", "tools", "system", "goal", "pins", "summary", "prune", "recall", "look_back", "reasoning", "days"
]
"""What of a prompt first differs from the prompt before it, so that a provider's prompt cache ends there: alias,
tools, the text of a region, what was pruned, or what stood before the newest message for one turn alone."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """How the prompt of a turn came about. All figures are tokens (contract.md, section 5)."""

    model_alias: Name
    model_context_limit: Count
    context_limit_source: Name
    input_budget: Difference
    output_reserve: Count
    overhead_reserve: Count
    estimated_input_tokens_before: Count
    estimated_input_tokens_after_summary: Count
    estimated_input_tokens_after_prune: Count
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    estimated_wire_tokens: Count
    regions: Mapping[str, Any]
    context_trim_log: JsonObject
    prompt_sha256: str | None

    def public(self) -> JsonObject:
        """The `context` of a turn's answer, in its order."""
        return {name: getattr(self, name) for name in names_of(TurnContext)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(TurnContext):
    """What one call of a model was to be sent and why: a row of `turn_context_audit`, all of it.

    `attempt` counts the calls of a round. `created_at` is None until it is stored.
    """

    id: UUID
    turn_id: TurnId
    round: SmallSeq
    attempt: SmallSeq
    estimator: Name
    calibration_ratio: Annotated[float, Ge(0), Le(1000)]
    actual_prompt_tokens: Count | None = field(
        default=None, metadata={"description": "As the provider reported; null before it has."}
    )
    cache_break: CacheBreak | None = field(
        default=None,
        metadata={
            "description": "What ended the beginning that it shares with the session's prompt before it. Null where it "
            "goes on from that one, or where another process sent that one."
        },
    )
    created_at: datetime | None = None
    session_id: SessionId
    prompt_refs: JsonObject | None

    @property
    def budget_use(self) -> float | None:
        """Of the input budget, what the prompt takes; None where there is no budget."""
        return self.estimated_input_tokens_after_prune / self.input_budget if self.input_budget > 0 else None
