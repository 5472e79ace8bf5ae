"""Why a prompt cannot be sent, and what a client can shorten: the 422 of a turn that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import JsonObject
from app.engine.policy.budget import Budget
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.window import Window

_LARGEST_SHOWN = 5
_SHORTENABLE = ("user", "pins", "goal", "system")
"""Regions that the client can shorten itself, in the order in which they are suggested."""
_SHARED_WITH_OUTPUT = ("user", "system")
"""Regions subtracted before shares are computed. If the output has a share, it takes that share of what they free."""


def overflow_of(window: Window) -> ContextBudgetExceeded:
    """The error of this window's prompt. Its figures are tokens that count against the input budget: the regions sum to
    `estimated`, which is `over_by` more than the input budget. Only `recovery` is in tokens of the text."""
    budget, prompt, input_tokens = window.budget, window.prompt, window.input_tokens
    over_by = input_tokens - budget.input_budget
    cut = ceil(over_by / window.snapshot.calibration_ratio)
    counted = _counted(prompt.regions(), budget)
    return ContextBudgetExceeded(
        _detail(budget, input_tokens),
        budget={
            "limit": budget.limit,
            "input_budget": budget.input_budget,
            "estimated": input_tokens,
            "over_by": over_by,
        },
        regions=dict(zip(counted, _parts_of(input_tokens, list(counted.values())), strict=True)),
        largest_items=[
            {
                "item": item.label,
                "region": item.region,
                "tokens": item.tokens * input_tokens // max(1, sum(counted.values())),
            }
            for item in prompt.largest(_LARGEST_SHOWN)
        ],
        recovery=_recovery(prompt, budget, cut),
    )


def _counted(regions: dict[str, int], budget: Budget) -> dict[str, int]:
    """The regions without the tokens that the overhead reserve covers: framing first, then tools."""
    of_framing = min(budget.overhead_reserve, regions["framing"])
    of_tools = min(budget.overhead_reserve - of_framing, regions["tools"])
    return {**regions, "tools": regions["tools"] - of_tools, "framing": regions["framing"] - of_framing}


def _parts_of(whole: int, shares: Sequence[int]) -> list[int]:
    """`whole` divided in proportion to the shares, as rounded integers that sum to `whole`."""
    ends = list(accumulate(shares, initial=0))
    if not ends[-1]:
        return [*(0 for _ in shares[1:]), whole]
    return [end * whole // ends[-1] - begin * whole // ends[-1] for begin, end in pairwise(ends)]


def _detail(budget: Budget, input_tokens: int) -> str:
    if budget.input_budget <= 0:
        return (
            f"A window of {budget.limit} tokens has no room for input: the output reserve takes "
            f"{budget.output_reserve} and the overhead reserve {budget.overhead_reserve}."
        )
    return (
        f"Even without all that may be left out, the turn needs {input_tokens} tokens; the input budget is "
        f"{budget.input_budget}. Nothing was sent to the model."
    )


def _recovery(prompt: Prompt, budget: Budget, cut_tokens: int) -> JsonObject:
    """Each entry of `shorten` is enough by itself. Without an entry, only a larger window or a new session helps."""
    items = [part for part in prompt.parts if isinstance(part, PromptItem)]
    largest_first = sorted(items, key=lambda item: -item.tokens)
    shorten: list[JsonObject] = []
    for region in _SHORTENABLE:
        by_tokens = _with_outputs_part(cut_tokens, budget) if region in _SHARED_WITH_OUTPUT else cut_tokens
        shorten += (
            {"item": item.label, "region": region, "by_tokens": by_tokens}
            for item in largest_first
            if item.region == region and item.tokens > by_tokens
        )
    return {
        "shorten": shorten if budget.input_budget > 0 else [],
        "or": "use a model with a larger window" if budget.input_budget <= 0 else "start a new session",
    }


def _with_outputs_part(cut_tokens: int, budget: Budget) -> int:
    """The tokens to remove so that `cut_tokens` are freed after the output has taken its share of them, rounded up."""
    return ceil((cut_tokens + 1) / (1 - budget.output_pct / 100)) if budget.output_pct else cut_tokens
