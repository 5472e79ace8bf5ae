"""When a summary is due: before a call and after a turn, by a policy's triggers (contract.md, sections 8 to 10)."""

from __future__ import annotations

from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import Fold, SummaryReason
from app.engine.window.prompt import Prompt
from app.engine.window.window import Window

_WHATEVER_IT_RECLAIMS: frozenset[SummaryReason] = frozenset({"turn_count", "requested"})
_MIN_MESSAGES_SHARE = 0.5
"""Of `max_messages`: what protected turns hold alone can reach it, and would have a summary made every turn."""


def due_before_call(window: Window, prompt: Prompt, charged: int) -> SummaryReason | None:
    """Why a summary is to be tried before this prompt is sent; of a shared-out window, once its shares are held.

    At the prune threshold one is tried by any policy that summarizes at all, whenever it would rather do so: what a
    summary keeps is better than what a prune leaves, and a crash in the background loses nothing that way.
    """
    policy = window.policy
    if policy.allocation is not None and policy.summarizes and charged > window.snapshot.budget.input_budget:
        return "allocation"
    if policy.summarizes_before_calls:
        if _at_trigger_ratio(window, charged):
            return "threshold"
        if _enough_turns(window):
            return "turn_count"
        if not policy.summarizes_after_turns and (reason := _by_usage(window, charged)):
            return reason
        if window.exceeds_limit(prompt):
            return "window"
    return "threshold" if policy.summarizes and window.at_prune_threshold(charged) else None


def due_after_turn(window: Window, charged: int) -> SummaryReason | None:
    """Why a summary is to be made in the background, of a window in which nobody has said anything new yet."""
    if not window.policy.summarizes_after_turns:
        return None
    if _at_trigger_ratio(window, charged):
        return "threshold"
    return "turn_count" if _enough_turns(window) else _by_usage(window, charged)


def worth_making(window: Window, fold: Fold, charged: int | None = None) -> bool:
    """Whether the fold takes in enough, or for a reason that holds however little it takes in.

    With `charged` also because a prompt that costs as much would be pruned. Not so where the window is shared out: pins
    may well fill it, and would have a summary made every turn; what leaves the prompt meanwhile is folded later.
    """
    if charged is not None and window.policy.allocation is None and window.at_prune_threshold(charged):
        return True
    if fold.reason == "message_count":
        return len(fold.sources) >= _MIN_MESSAGES_SHARE * (window.policy.max_messages or 0)
    return fold.reason in _WHATEVER_IT_RECLAIMS or window.reclaims_enough(fold)


def summary_trigger_tokens(window: Window) -> int | None:
    """Charged tokens at which the policy asks for a summary, the lower of its two shares; None when it never does."""
    return trigger_tokens(window.policy, window.snapshot.budget.limit, window.snapshot.budget.input_budget)


def trigger_tokens(policy: ContextPolicy, limit_tokens: int, input_budget: int) -> int | None:
    """The same, for a budget that only its figures are known of."""
    if not policy.summarizes:
        return None
    ratio = policy.summary_trigger_ratio
    by_ratio = None if ratio is None else int(ratio * input_budget)
    by_usage = _usage_tokens(policy, limit_tokens, input_budget)
    at_prune = int(policy.prune_from(input_budget))
    return min(tokens for tokens in (by_ratio, by_usage, at_prune) if tokens is not None)


def turns_to_next_summary(window: Window) -> int | None:
    """Completed turns until one is made whatever it costs; None when the policy counts no turns."""
    turns = window.policy.mandatory_summary_turn
    return None if turns is None else max(0, turns - window.snapshot.completed_since_summary)


def _usage_tokens(policy: ContextPolicy, limit_tokens: int, input_budget: int) -> int | None:
    """Never above the prune threshold, so that it can fire before a refusal (contract.md, decision 1)."""
    share = policy.usage_threshold
    return None if share is None else int(min(share * limit_tokens, policy.prune_trigger_ratio * input_budget))


def _at_trigger_ratio(window: Window, charged: int) -> bool:
    ratio = window.policy.summary_trigger_ratio
    return ratio is not None and charged >= ratio * window.snapshot.budget.input_budget


def _enough_turns(window: Window) -> bool:
    turns = window.policy.mandatory_summary_turn
    return turns is not None and window.snapshot.completed_since_summary >= turns


def _by_usage(window: Window, charged: int) -> SummaryReason | None:
    budget = window.snapshot.budget
    threshold = _usage_tokens(window.policy, budget.limit, budget.input_budget)
    if threshold is not None and charged >= threshold:
        return "usage"
    most = window.policy.max_messages
    return "message_count" if most is not None and window.raw_messages() >= most else None
