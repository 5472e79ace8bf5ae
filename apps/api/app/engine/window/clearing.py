"""Clearing older tool results: a policy can replace them by a marker before anything else is decided.

The rule is that of Anthropic's edit `clear_tool_uses_20250919`. It is repeated for every call of the window so far, as
prunes in blocks are (`Prune.calls`): what was cleared once stays cleared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from app.domain.audit import CLEARED
from app.domain.frozen import replace
from app.domain.types import Message
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import ClearToolResults
from app.engine.window.pieces import Piece
from app.engine.window.prompt import PromptItem, without_inputs
from app.engine.window.pruning import Prune
from app.engine.window.shortening import Shortening, shorten_text
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Window, lay_out


def lay_out_cleared(snapshot: Snapshot, estimate: Estimate) -> Window:
    """The window of a snapshot, complete except for the tool results that its policy clears."""
    window, rule = lay_out(snapshot, estimate), snapshot.policy.clear_tool_results
    return window if rule is None else _cleared(window, rule)


def _cleared(window: Window, rule: ClearToolResults) -> Window:
    prune = Prune(window, CLEARED)
    uses = list(_uses(prune.pieces, rule))
    places = [place for place, _ in uses]
    passed = cleared = saved_tokens = 0
    waiting: list[tuple[int, Shortening]] = []
    for place in prune.calls(0 if rule.trigger_uses else rule.trigger_tokens):
        count = bisect_right(places, place)
        if rule.trigger_uses is not None and count - cleared <= rule.trigger_uses:
            continue
        # Keep the newest results: they are what this call is about.
        end = max(passed, min(count - rule.keep, bisect_left(places, place)))
        for used, items in uses[passed:end]:
            if window.may_drop(prune.pieces[used]):
                found = _cleared_of(items, window.estimate, with_handles=window.snapshot.offers_look_back)
                waiting += [(used, each) for each in found]
                saved_tokens += sum(each.tokens_removed for each in found)
        passed = end
        if waiting and saved_tokens >= rule.at_least_tokens:
            for at, of_piece in groupby(waiting, key=lambda each: each[0]):
                if piece := prune.kept[at]:
                    prune.replace_items(at, piece, [each for _, each in of_piece])
            cleared, saved_tokens, waiting = passed, 0, []
    return prune.window_now()


def _uses(pieces: Sequence[Piece], rule: ClearToolResults) -> Iterator[tuple[int, list[PromptItem]]]:
    """For each tool's result the position of its piece and what is cleared with it: the result and, for the last one of
    a tool group, the group's call if the arguments of calls are cleared too."""
    excluded = frozenset(rule.exclude_tools)
    for place, piece in enumerate(pieces):
        if piece.kind != "tool_group":
            continue
        call, *results = piece.items
        names = {each.id: each.name for each in call.message.tool_calls} if call.message else {}
        clears_call = rule.clear_inputs and excluded.isdisjoint(names.values())
        for result in results:
            name = names.get(result.message.tool_call_id or "") if result.message else None
            items = [] if name in excluded else [result]
            yield place, [*items, call] if clears_call and result is results[-1] else items


def cleared_items(piece: Piece, estimate: Estimate, *, with_handles: bool) -> list[Shortening]:
    """The replacements that clear a whole tool group."""
    if piece.kind != "tool_group":
        return []
    call, *results = piece.items
    return _cleared_of((*results, call), estimate, with_handles=with_handles)


def _cleared_of(items: Iterable[PromptItem], estimate: Estimate, *, with_handles: bool) -> list[Shortening]:
    """The replacements of these results and calls that are smaller."""
    found = (
        _without_inputs(item, item.message, estimate)
        if item.message and item.message.tool_calls
        else shorten_text(item, 0, estimate, with_handle=with_handles)
        for item in items
    )
    return [each for each in found if each]


def _without_inputs(item: PromptItem, message: Message, estimate: Estimate) -> Shortening | None:
    bare = without_inputs(message)
    pairs = zip(message.tool_calls, bare.tool_calls, strict=True)
    less = sum(estimate(was.arguments) - estimate(now.arguments) for was, now in pairs)
    now = replace(item, message=bare, tokens=item.tokens - less, inputs_cleared=True)
    return Shortening("tool_input_shortened", item, now) if less > 0 else None
