"""Making the prompt fit: what is removed, and in which order, until the prompt is within its budget or nothing more may
be removed; then what is added in the space that is left.

`STAGES` is steps 4 to 11 of `docs/budget.md` as a table. Each stage takes a window and returns another. It is skipped
if its condition does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from app.engine.policy.policy import ContextPolicy
from app.engine.window.pruning import drop_oldest_turns, prune_older, prune_protected
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
    """As `over`, and protected turns may be pruned."""
    return over(window) and window.snapshot.policy.prune_protected


def over_in_emergency(window: Cost) -> bool:
    """The window is over its input budget, the provider has rejected a prompt of the turn as too long, and the policy
    does not have `whole_past`."""
    snapshot = window.snapshot
    return snapshot.overflowed and not snapshot.policy.whole_past and window.is_over


def over_some_budget(window: Cost) -> bool:
    """As `over`, and the input budget is above zero."""
    return over(window) and window.budget.input_budget > 0


def has_room(window: Cost) -> bool:
    """The window fits, messages were found for recall, and the turn is not being retried after a provider overflow."""
    snapshot = window.snapshot
    found = snapshot.evicted if snapshot.policy.recall.enabled else None
    return bool(found and found.candidates) and fits(window) and not snapshot.overflowed


def shows_time(window: Cost) -> bool:
    """The window fits, and the policy shows on which days its messages were sent."""
    return window.snapshot.policy.show_time and fits(window)


STAGES: tuple[tuple[Stage, When], ...] = (
    (hold_shares, over_and_shared_out),
    (prune_older, at_prune_trigger),
    (prune_protected, over_and_unshielded),
    (shorten_summary, over),
    (drop_oldest_turns, over_in_emergency),
    (shorten_newest_results, over_some_budget),
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
