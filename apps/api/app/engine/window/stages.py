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
from app.engine.window.window import Cost, Window

Stage: TypeAlias = Callable[[Window], Window]
When: TypeAlias = Callable[[Cost], bool]


def over_and_shared_out(window: Cost) -> bool:
    """The policy gives shares out, and the whole does not fit: they stand for every stage but the emergency's."""
    return window.snapshot.policy.allocation is not None and window.excess_tokens > 0


def at_prune_trigger(window: Cost) -> bool:
    """The window costs what calls for a prune, of a policy that prunes at all."""
    return _prunes(window.snapshot.policy) and window.at_prune_trigger


def over(window: Cost) -> bool:
    """The window is over its budget, of a policy that prunes at all."""
    return _prunes(window.snapshot.policy) and window.is_over


def over_and_unshielded(window: Cost) -> bool:
    """The same, where protected turns may be pruned."""
    return over(window) and window.snapshot.policy.prune_protected


def over_in_emergency(window: Cost) -> bool:
    """The window is over its budget, and the provider has refused a prompt of the turn."""
    return window.snapshot.overflowed and window.is_over


def over_some_budget(window: Cost) -> bool:
    """The window is over a budget that has room for anything."""
    return over(window) and window.budget.input_budget > 0


def has_room(window: Cost) -> bool:
    """The window fits, there is what may come back, and nobody waits for a second try."""
    snapshot = window.snapshot
    found = snapshot.evicted if snapshot.policy.recall.enabled else None
    return bool(found and found.candidates) and fits(window) and not snapshot.overflowed


def shows_time(window: Cost) -> bool:
    """The window fits, and the policy says on which days its messages were sent."""
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
    """Whether every stage would be passed over, and the window fits."""
    return fits(window) and not any([when(window) for _, when in STAGES])  # noqa: C419 - faster than a generator


def fit(window: Window) -> Window:
    """The window after every stage whose condition holds; whether it fits then, `fits` says."""
    for stage, when in STAGES:
        if when(window):
            window = stage(window)
    return window


def fits(window: Cost) -> bool:
    """Whether the window can be sent."""
    return window.budget.input_budget > 0 and not window.is_over


def _prunes(policy: ContextPolicy) -> bool:
    return policy.allocation is None and not policy.whole_past
