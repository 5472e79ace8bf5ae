"""What a refused turn is told: how far over it is, what takes the room, and the smallest cut that would fit."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from app.domain.types import JsonObject
from app.engine.policy.budget import Budget
from app.engine.window.prompt import Prompt, PromptItem, public_item

_LARGEST_SHOWN = 5
_SHORTENABLE = ("user", "pins", "goal", "system")
"""What the client can make smaller itself, in the order it is advised to."""
_SHARED_WITH_OUTPUT = ("user", "system")
"""What comes off before shares are given out: where the output has one, it takes that of what these give back."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The members of a 422 `context_budget_exceeded`. Token figures are integers; `over_by` is charged tokens."""

    detail: str
    budget: dict[str, int]
    regions: dict[str, int]
    largest_items: list[JsonObject]
    recovery: JsonObject


def overflow_of(prompt: Prompt, budget: Budget, charged: int, calibration_ratio: float) -> Overflow:
    """Explains why this prompt can not be sent."""
    over_by = charged - budget.input_budget
    cut = ceil(over_by / calibration_ratio)
    largest = sorted(prompt.items, key=lambda item: item.wire_tokens, reverse=True)[:_LARGEST_SHOWN]
    return Overflow(
        detail=_detail(budget, charged),
        budget={
            "limit": budget.limit,
            "input_budget": budget.input_budget,
            "estimated": charged,
            "over_by": over_by,
        },
        regions=prompt.regions(),
        largest_items=[public_item(item) for item in largest],
        recovery=_recovery(prompt, budget, cut),
    )


def _detail(budget: Budget, charged: int) -> str:
    if budget.input_budget <= 0:
        return (
            f"A window of {budget.limit} tokens has no room for input: the output reserve takes "
            f"{budget.output_reserve} and the overhead reserve {budget.overhead_reserve}."
        )
    return (
        f"The turn needs {charged} tokens after everything that may leave has left; the input budget is "
        f"{budget.input_budget}. Nothing was sent to the model."
    )


def _recovery(prompt: Prompt, budget: Budget, cut_tokens: int) -> JsonObject:
    """Each entry of `shorten` is enough by itself; without one, only a larger window or a new session helps."""
    shorten = [
        {"item": item.label, "region": item.region, "by_tokens": by_tokens}
        for region in _SHORTENABLE
        for by_tokens in [_with_outputs_part(cut_tokens, budget) if region in _SHARED_WITH_OUTPUT else cut_tokens]
        for item in _largest_first(prompt, region)
        if item.tokens > by_tokens
    ]
    return {
        "shorten": shorten if budget.input_budget > 0 else [],
        "or": "use a model with a larger window" if budget.input_budget <= 0 else "start a new session",
    }


def _with_outputs_part(cut_tokens: int, budget: Budget) -> int:
    """So many that `cut_tokens` are left when the output has taken its share of them, rounded up."""
    return ceil((cut_tokens + 1) / (1 - budget.output_pct / 100)) if budget.output_pct else cut_tokens


def _largest_first(prompt: Prompt, region: str) -> list[PromptItem]:
    return sorted((item for item in prompt.items if item.region == region), key=lambda item: -item.tokens)
