"""Clearing older tool results: a policy can replace them by a marker before anything else is decided.

The rule is that of Anthropic's edit `clear_tool_uses_20250919`. Nothing of it is stored. It is repeated for every call
of the window so far, as prunes in blocks are. So what was cleared once stays cleared, and the beginning of the prompt
stays the same until the trigger is reached again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from app.domain.audit import CLEARED
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import ClearToolResults
from app.engine.window.pieces import Piece
from app.engine.window.prompt import PromptItem, without_inputs
from app.engine.window.pruning import Prune
from app.engine.window.shortening import Shortening, shorten_text
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Window, lay_out


class _Use(NamedTuple):
    """A tool's result that is cleared if `result` is set, and the position of its piece. The last use of a tool group
    has the group's `call` if the call's arguments are cleared too."""

    place: int
    result: PromptItem | None
    call: PromptItem | None


def lay_out_cleared(snapshot: Snapshot, estimate: Estimate) -> Window:
    """The window of a snapshot, complete except for the tool results that its policy clears."""
    window, rule = lay_out(snapshot, estimate), snapshot.policy.clear_tool_results
    return window if rule is None else _cleared(window, rule)


def _cleared(window: Window, rule: ClearToolResults) -> Window:
    prune = Prune(window, CLEARED)
    uses = list(_uses(prune.pieces, rule))
    places = [use.place for use in uses]
    passed = cleared = saved_tokens = 0
    waiting: list[tuple[int, Shortening]] = []
    for place in prune.calls(0 if rule.trigger_uses else rule.trigger_tokens):
        count = bisect_right(places, place)
        if rule.trigger_uses is not None and count - cleared <= rule.trigger_uses:
            continue
        # Keep the newest results: they are what this call is about.
        end = max(passed, min(count - rule.keep, bisect_left(places, place)))
        for use in uses[passed:end]:
            found = _shortenings(prune.pieces[use.place], use, window)
            waiting += [(use.place, each) for each in found]
            saved_tokens += sum(each.tokens_removed for each in found)
        passed = end
        if waiting and saved_tokens >= rule.at_least_tokens:
            for at, of_piece in groupby(waiting, key=lambda each: each[0]):
                if piece := prune.kept[at]:
                    prune.replace_items(at, piece, [each for _, each in of_piece])
            cleared, saved_tokens, waiting = passed, 0, []
    return prune.window_now()


def _uses(pieces: Sequence[Piece], rule: ClearToolResults) -> Iterator[_Use]:
    excluded = frozenset(rule.exclude_tools)
    for place, piece in enumerate(pieces):
        if piece.kind != "tool_group":
            continue
        call, *results = piece.items
        names = {each.id: each.name for each in call.message.tool_calls} if call.message else {}
        clears_call = rule.clear_inputs and excluded.isdisjoint(names.values())
        for result in results:
            name = names.get(result.message.tool_call_id or "") if result.message else None
            is_last = result is results[-1]
            yield _Use(place, None if name in excluded else result, call if clears_call and is_last else None)


def _shortenings(piece: Piece, use: _Use, window: Window) -> list[Shortening]:
    """The replacements that clear a use."""
    if not window.may_drop(piece):
        return []
    with_handle = window.offers_look_back
    result = use.result and shorten_text(use.result, 0, window.estimate, with_handle=with_handle)
    call = use.call and _without_inputs(use.call, window.estimate)
    return [each for each in (result, call) if each]


def cleared_items(piece: Piece, estimate: Estimate, *, with_handles: bool) -> list[Shortening]:
    """The replacements that clear a whole tool group."""
    if piece.kind != "tool_group":
        return []
    call, *results = piece.items
    cleared = [shorten_text(item, 0, estimate, with_handle=with_handles) for item in results]
    return [each for each in (*cleared, _without_inputs(call, estimate)) if each]


def _without_inputs(item: PromptItem, estimate: Estimate) -> Shortening | None:
    """The calls without their arguments, if that is smaller."""
    if item.message is None:
        return None
    bare = without_inputs(item.message)
    pairs = zip(item.message.tool_calls, bare.tool_calls, strict=True)
    less = sum(estimate(was.arguments) - estimate(now.arguments) for was, now in pairs)
    now = replace(item, message=bare, tokens=item.tokens - less, inputs_cleared=True)
    return Shortening("tool_input_shortened", item, now) if less > 0 else None
