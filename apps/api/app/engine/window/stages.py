"""Making the prompt fit: what leaves, in which order, until it is within its budget or nothing more may leave; and what
is brought into the room that is left.

`STAGES` is steps 4 to 11 of `docs/budget.md` as a table. Each stage takes a window and gives another, and is
passed over where its condition does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from app.engine.policy.policy import ContextPolicy
from app.engine.window.pruning import drop_oldest_turns, prune_older, prune_protected
from app.engine.window.recalled import bring_back, show_days
from app.engine.window.shares import hold_shares
from app.engine.window.shortening import shorten_newest_results, shorten_summary
from app.engine.window.window import Window

Stage: TypeAlias = Callable[[Window, ContextPolicy], Window]
When: TypeAlias = Callable[[Window, ContextPolicy], bool]


def shared_out(_window: Window, policy: ContextPolicy) -> bool:
    """The policy gives shares out: they stand for every stage but the emergency's."""
    return policy.allocation is not None


def at_prune_trigger(window: Window, policy: ContextPolicy) -> bool:
    """The window costs what calls for a prune, of a policy that prunes at all."""
    return _prunes(policy) and window.at_prune_trigger(policy)


def over(window: Window, policy: ContextPolicy) -> bool:
    """The window is over its budget, of a policy that prunes at all."""
    return _prunes(policy) and window.is_over


def over_and_unshielded(window: Window, policy: ContextPolicy) -> bool:
    """The same, where protected turns may be pruned."""
    return over(window, policy) and policy.prune_protected


def over_in_emergency(window: Window, _policy: ContextPolicy) -> bool:
    """The window is over its budget, and the provider has refused a prompt of the turn."""
    return window.snapshot.overflowed and window.is_over


def over_some_budget(window: Window, policy: ContextPolicy) -> bool:
    """The window is over a budget that has room for anything."""
    return over(window, policy) and window.budget.input_budget > 0


def has_room(window: Window, policy: ContextPolicy) -> bool:
    """The window fits, and nobody waits for a second try."""
    return policy.recall.enabled and fits(window) and not window.snapshot.overflowed


def shows_time(window: Window, policy: ContextPolicy) -> bool:
    """The window fits, and the policy says on which days its messages were sent."""
    return policy.show_time and fits(window)


STAGES: tuple[tuple[Stage, When], ...] = (
    (hold_shares, shared_out),
    (prune_older, at_prune_trigger),
    (prune_protected, over_and_unshielded),
    (shorten_summary, over),
    (drop_oldest_turns, over_in_emergency),
    (shorten_newest_results, over_some_budget),
    (show_days, shows_time),
    (bring_back, has_room),
)


def fit(window: Window, policy: ContextPolicy) -> Window:
    """The window after every stage whose condition holds; whether it fits then, `fits` says."""
    for stage, when in STAGES:
        if when(window, policy):
            window = stage(window, policy)
    return window


def fits(window: Window) -> bool:
    """Whether the window can be sent."""
    return window.budget.input_budget > 0 and not window.is_over


def _prunes(policy: ContextPolicy) -> bool:
    return policy.allocation is None and not policy.whole_past
