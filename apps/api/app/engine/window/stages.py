"""Making the prompt fit: what is removed, and in which order, until the prompt is within its budget or nothing more may
be removed; then what is added in the space that is left, or why the prompt cannot be sent.

`STAGES` is steps 4 to 12 of `docs/budget.md` as a table: a stage is skipped if its condition does not hold.
`overflow_of` is step 14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import accumulate, pairwise
from math import ceil
from operator import itemgetter
from typing import TypeAlias

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import JsonObject
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.pruning import drop_oldest_turns, drop_turns_at_last, prune_older, prune_protected
from app.engine.window.recalled import bring_back, show_days
from app.engine.window.shares import hold_shares
from app.engine.window.shortening import shorten_newest_results, shorten_summary
from app.engine.window.window import Cost, Window

Stage: TypeAlias = Callable[[Window], Window]
When: TypeAlias = Callable[[Cost], bool]


def over_and_shared_out(window: Cost) -> bool:
    """The policy has an allocation, and the window is over budget. Only `drop_oldest_turns` may also remove content."""
    return window.snapshot.policy.allocation is not None and window.excess_tokens > 0


def at_prune_trigger(window: Cost) -> bool:
    """The window is at the prune threshold, and the policy has neither an allocation nor `whole_past`."""
    return _prunes(window.snapshot.policy) and window.at_prune_trigger


def over(window: Cost) -> bool:
    """The window is over its input budget, and the policy has neither an allocation nor `whole_past`."""
    return _prunes(window.snapshot.policy) and window.is_over


def over_and_unshielded(window: Cost) -> bool:
    return over(window) and window.snapshot.policy.prune_protected


def over_in_emergency(window: Cost) -> bool:
    """The window is over its input budget, the provider has rejected a prompt of the turn as too long, and the policy
    does not have `whole_past`."""
    snapshot = window.snapshot
    return snapshot.overflowed and not snapshot.policy.whole_past and window.is_over


def over_some_budget(window: Cost) -> bool:
    return over(window) and window.budget.input_budget > 0


def over_in_single_request(window: Cost) -> bool:
    return over(window) and window.snapshot.policy.is_single


def has_room(window: Cost) -> bool:
    """The window fits, messages were found for recall, and the turn is not being retried after a provider overflow."""
    snapshot = window.snapshot
    found = snapshot.policy.recall.enabled and snapshot.evicted.candidates
    return bool(found) and fits(window) and not snapshot.overflowed


def shows_time(window: Cost) -> bool:
    return window.snapshot.policy.show_time and fits(window)


STAGES: tuple[tuple[Stage, When], ...] = (
    (hold_shares, over_and_shared_out),
    (prune_older, at_prune_trigger),
    (prune_protected, over_and_unshielded),
    (shorten_summary, over),
    (drop_oldest_turns, over_in_emergency),
    (shorten_newest_results, over_some_budget),
    (drop_turns_at_last, over_in_single_request),
    (show_days, shows_time),
    (bring_back, has_room),
)


def stays_whole(window: Cost) -> bool:
    """Whether every stage would be skipped and the window fits."""
    return fits(window) and not any([when(window) for _, when in STAGES])  # noqa: C419 - faster than a generator


def fit(window: Window) -> Window:
    """The window after every stage whose condition holds. It may still not fit (see `fits`)."""
    for stage, when in STAGES:
        if when(window):
            window = stage(window)
    return window


def fits(window: Cost) -> bool:
    return window.budget.input_budget > 0 and not window.is_over


def _prunes(policy: ContextPolicy) -> bool:
    return policy.allocation is None and not policy.whole_past


_LARGEST_SHOWN = 5
_SHORTENABLE = ("user", "pins", "goal", "system", "tools")
"""Regions that the client can shorten itself, in the order in which they are suggested."""
_AS_A_WHOLE = ("pins", "tools")
"""Regions of several items that are suggested as a whole if no item of them is large enough."""
_LEFT_BEHIND = ("pins", "summary", "history", "recall")
"""Regions that a new session begins without."""
_SHARED_WITH_OUTPUT = ("user", "system", "tools")
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
            {"item": label, "region": region, "tokens": tokens * input_tokens // max(1, sum(counted.values()))}
            for label, region, tokens in nlargest(_LARGEST_SHOWN, prompt.labelled(), key=itemgetter(2))
        ],
        recovery=_recovery(prompt, budget, cut, counted),
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


def _recovery(prompt: Prompt, budget: Budget, cut_tokens: int, counted: dict[str, int]) -> JsonObject:
    """Each entry of `shorten` is enough by itself, and so is `or`."""
    items = [part for part in prompt.parts if isinstance(part, PromptItem)]
    largest_first = sorted(items, key=lambda item: -item.tokens)
    shorten: list[JsonObject] = []
    for region in _SHORTENABLE:
        by_tokens = _with_outputs_part(cut_tokens, budget) if region in _SHARED_WITH_OUTPUT else cut_tokens
        named: list[JsonObject] = [
            {"item": item.label, "region": region, "by_tokens": by_tokens}
            for item in largest_first
            if item.region == region and item.tokens > by_tokens
        ]
        if not named and region in _AS_A_WHOLE and counted[region] > by_tokens:
            named.append({"item": region, "region": region, "by_tokens": by_tokens})
        shorten += named
    has_room = budget.input_budget > 0 and sum(counted[each] for each in _LEFT_BEHIND) >= cut_tokens
    return {
        "shorten": shorten if budget.input_budget > 0 else [],
        "or": "start a new session" if has_room else "use a model with a larger window",
    }


def _with_outputs_part(cut_tokens: int, budget: Budget) -> int:
    """The tokens to remove so that `cut_tokens` are freed after the output has taken its share of them, rounded up."""
    return ceil((cut_tokens + 1) / (1 - budget.output_pct / 100)) if budget.output_pct else cut_tokens
