"""Whether a prompt is so near to a threshold that the estimate alone cannot tell on which side of it the prompt is."""

from __future__ import annotations

from app.engine.window.calibration import HIGHEST_RATIO, LOWEST_RATIO
from app.engine.window.prompt import Prompt
from app.engine.window.triggers import summary_trigger_tokens
from app.engine.window.window import Window

NEAR_SHARE = 0.05
"""Of the threshold: within it, the provider's own count is worth a call (step 2 of the design)."""


def is_near_threshold(window: Window, prompt: Prompt) -> bool:
    """Whether what the prompt is charged is within 5 % of the summary trigger, prune trigger or input budget."""
    budget, charged = window.snapshot.budget.input_budget, window.charge(prompt)
    thresholds = (summary_trigger_tokens(window), window.policy.prune_from(budget), budget)
    return any(each is not None and abs(charged - each) <= NEAR_SHARE * each for each in thresholds)


def exact_ratio(prompt: Prompt, counted_tokens: int) -> float | None:
    """What makes the wire estimate of this prompt the provider's count; None for a count that cannot be meant so.

    Beyond the bounds that hold for every calibration it is not the tokenizer that differs.
    """
    ratio = counted_tokens / max(1, prompt.wire_tokens)
    return ratio if LOWEST_RATIO <= ratio <= HIGHEST_RATIO else None
