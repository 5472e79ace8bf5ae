"""Who gets what of a window that is shared out: the arithmetic of the design `allocated` (contract.md, decision 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from app.engine.policy.policy import Allocation, PriorityRegion


@dataclass(frozen=True, slots=True)
class Division:
    """Tokens by region, without framing. `shares` are what each has a right to, which sum to the room; `offered` is a
    share with what other regions left."""

    shares: Mapping[PriorityRegion, int]
    offered: Mapping[PriorityRegion, int]


def divide(
    room_tokens: int,
    allocation: Allocation,
    order: Sequence[PriorityRegion],
    *,
    wanted: Mapping[PriorityRegion, int],
    least: Mapping[PriorityRegion, int],
) -> Division:
    """Shares out the room that is left to goal, pins, summary and history; the output has had its share already.

    The history's share is what the others have none of. A region that must have more than its share (`least`) borrows
    from the lowest priority up. What a region does not want goes to the next in order, and what the last one leaves to
    those before it, the first in order first.
    """
    shares = _borrowed(_shares(max(0, room_tokens), allocation), order, least)
    offered: dict[PriorityRegion, int] = {}
    left = 0
    for region in order:
        offered[region] = shares[region] + left
        left = max(0, offered[region] - wanted[region])
    for region in order:
        more = max(0, min(left, wanted[region] - offered[region]))
        offered[region] += more
        left -= more
    return Division(shares, offered)


def _shares(room_tokens: int, allocation: Allocation) -> dict[PriorityRegion, int]:
    all_but_output = 100 - allocation.reserved_for_output_pct
    shares: dict[PriorityRegion, int] = {
        "goal": floor(room_tokens * allocation.goal_pct / all_but_output),
        "pins": floor(room_tokens * allocation.pinned_files_pct / all_but_output),
        "summary": floor(room_tokens * allocation.map_pct / all_but_output),
    }
    shares["history"] = room_tokens - sum(shares.values())
    return shares


def _borrowed(
    shares: dict[PriorityRegion, int], order: Sequence[PriorityRegion], least: Mapping[PriorityRegion, int]
) -> dict[PriorityRegion, int]:
    for region in order:
        for lender in reversed(order):
            lent = min(least[region] - shares[region], shares[lender] - least[lender])
            if lent > 0:
                shares[region] += lent
                shares[lender] -= lent
    return shares
