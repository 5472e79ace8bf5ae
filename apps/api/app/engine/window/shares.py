"""Dividing a window into shares (preset `allocated`; contract.md, sections 9, 10 and decision 12).

System text, the user's message and tools are subtracted first. The output has a share of the rest. Goal, pins, summary
and history each have a share too, plus what the others do not use. While everything fits, shares are not enforced. When
it does not, regions are trimmed from the lowest priority up, each down to what it is offered: the history loses its
oldest content, the summary is shortened, pins are shortened and then dropped by relevance. If that is not enough, they
are trimmed below their shares in the same order. The goal is never trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor

from app.domain.frozen import frozen, replace
from app.engine.messages.tokens import Estimate, tools_tokens
from app.engine.policy.budget import part_of, with_output_share
from app.engine.policy.policy import MIN_SUMMARY_TOKENS, PRIORITY_REGIONS, Allocation, PriorityRegion
from app.engine.window.pieces import Piece
from app.engine.window.pruning import drop_history, prune_older, prune_protected, remains
from app.engine.window.shortening import NEWEST_TOO_LARGE, with_fitted_pins, with_fitted_summary, with_shorter_newest
from app.engine.window.snapshot import Removal, Snapshot
from app.engine.window.window import Cost, Window, head_items


def with_shared_budget(snapshot: Snapshot, estimate: Estimate) -> Snapshot:
    """The snapshot with the output's share as its output reserve, if the policy has an allocation. After a provider
    overflow the input budget stays as low as the rejection made it."""
    allocation = snapshot.policy.allocation
    if allocation is None:
        return snapshot
    of_user = [message for message in snapshot.current.messages if message.role == "user"]
    items = head_items(snapshot.layers, None, (), estimate)
    tokens = sum([each.tokens for each in (*items, *of_user)])
    fixed = Cost(snapshot, tokens, len(items) + len(of_user), tools_tokens(snapshot.tools, estimate))
    budget = with_output_share(snapshot.budget, allocation.reserved_for_output_pct, fixed.input_tokens)
    if snapshot.overflowed:
        budget = replace(budget, input_budget=min(budget.input_budget, snapshot.budget.input_budget))
    return replace(snapshot, budget=budget)


def hold_shares(window: Window) -> Window:
    """The window unchanged if it fits, else trimmed as the module docstring describes. It may still be too large."""
    whole = replace(window, log=window.log.without_stages())
    # The log of the window has what was done to its history, those of `trimmed` what was done to summary and pins.
    trimmed: dict[PriorityRegion, Window] = {}
    order = tuple(reversed(window.snapshot.policy.context_priority))
    for least in (division(window).offered, dict.fromkeys(order, 0)):
        for region in order:
            if region == "goal" or window.excess_tokens <= 0:
                break
            if region == "history":
                window = _with_less_history(window, whole, least[region])
            else:
                fitted = with_fitted_summary if region == "summary" else with_fitted_pins
                room_tokens = sum(item.tokens for item in window.items_of(region))
                while window.excess_tokens > 0 and room_tokens > least[region]:
                    # Again where a message was dropped: without its framing, which the overhead reserve pays for, the
                    # input budget has room for fewer tokens, if the calibration ratio is below 1.
                    room_tokens = max(least[region], room_tokens - window.excess_tokens)
                    trimmed[region] = fitted(whole, room_tokens)
                    window = window.with_items(region, trimmed[region].items_of(region))
    logs = trimmed | {"history": window}
    actions = tuple(action for region in order if region in logs for action in logs[region].log.actions)
    return replace(window, log=replace(window.log, actions=actions))


def _with_less_history(window: Window, whole: Window, least_tokens: int) -> Window:
    """Prune the history by the policy's rules, then drop whole turns, oldest first, then shorten the newest results of
    open turns. Each step ends when the prompt is within its budget, or the history within `least_tokens`."""
    # Newest results that were shortened before are shortened again from their whole text.
    newest = {piece.seq: piece for piece in whole.pieces if whole.leaves_of(piece) == "shortened"}
    before = tuple(each for each in window.log.actions if each.reason != NEWEST_TOO_LARGE)
    less = window.with_pieces([newest.get(piece.seq, piece) for piece in window.pieces])
    less = prune_older(replace(less, history_floor=least_tokens, log=replace(window.log, actions=before)))
    if window.snapshot.policy.prune_protected:
        less = prune_protected(less)
    less = drop_history(less)
    less = with_shorter_newest(less, min(less.excess_tokens, less.history_tokens - least_tokens))
    dropped = sum(each.tokens_removed for each in less.log.actions if each.kind == "history_drop")
    others = [each for each in less.log.actions if each.kind != "history_drop"]
    as_one = [Removal("history_drop", "conversation_history", "lowest_priority", dropped)] if dropped else []
    return replace(less, history_floor=window.history_floor, log=replace(window.log, actions=(*as_one, *others)))


def division(window: Window, *, summary_tokens: int | None = None) -> Division:
    """The shares of goal, pins, summary and history. `summary_tokens`, if given, replace the summary's own tokens."""
    policy = window.snapshot.policy
    assert policy.allocation is not None
    regions = window.prompt.regions()
    # Removing messages removes their framing, and the use of the overhead reserve for it: take the smaller result.
    overheads = (window.overhead_tokens, window.with_pieces(()).overhead_tokens)
    room_tokens = min([window.wire_room(each) - each for each in overheads]) - regions["system"] - regions["user"]
    whole = history_tokens(remains(window, shortened=False))
    least = history_tokens(remains(window))
    wanted: dict[PriorityRegion, int] = {region: regions[region] for region in PRIORITY_REGIONS}
    wanted["summary"] = wanted["summary"] if summary_tokens is None else summary_tokens
    needed: dict[PriorityRegion, int] = {
        "goal": regions["goal"],
        "pins": 0,
        "summary": min(regions["summary"], MIN_SUMMARY_TOKENS),
        # The newest results of an open turn may take half of all available tokens before they are shortened.
        "history": min(whole, max(least, room_tokens // 2)),
    }
    return divide(room_tokens, policy.allocation, policy.context_priority, wanted=wanted, least=needed)


def history_tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.tokens for piece in pieces if piece.region == "history")


@frozen
class Division:
    """Tokens by region, without framing. `shares` are what each region is entitled to; they sum to all available
    tokens. `offered` is a region's share plus what other regions do not use."""

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
    """Divide `room_tokens`, of which the output's share is subtracted already, among goal, pins, summary and history.

    A region that needs more than its share (`least`) borrows from the others, lowest priority first. What a region does
    not use is offered to the next in order, and what the last does not use again from the first on.
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
        "goal": floor(part_of(allocation.goal_pct, room_tokens) / all_but_output),
        "pins": floor(part_of(allocation.pinned_files_pct, room_tokens) / all_but_output),
        "summary": floor(part_of(allocation.map_pct, room_tokens) / all_but_output),
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
