"""Sharing a window out (preset `allocated`; contract.md, sections 9 and 10).

System text, the user's message and tools come off first. Of the rest the output has its share. Goal, pins, summary and
history have theirs, and what others leave; as long as all of it fits, shares only plan. When it does not, the lowest
priority gives way first, each down to what it is offered: of the history the oldest leaves, the summary is shortened,
pins are shortened and then dropped by relevance. Is that not enough, they give way in the same order below their
shares. The goal is never trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.engine.messages.tokens import Estimate
from app.engine.policy.budget import with_output_share
from app.engine.policy.policy import Allocation, ContextPolicy, PriorityRegion
from app.engine.recall.relevance import question_of, relevances
from app.engine.summary.block import fit_summary
from app.engine.summary.fold import MIN_SUMMARY_TOKENS
from app.engine.window.allocation import Division, divide
from app.engine.window.pin_trimming import fit_pins
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.pruning import Piece, TrimAction, shortening_action
from app.engine.window.window import NEWEST_TOO_LARGE, Snapshot, Window, summary_item

_HELD: tuple[PriorityRegion, ...] = ("summary", "pins")
_BELOW_SHARES: Mapping[PriorityRegion, int] = {"pins": 0, "summary": MIN_SUMMARY_TOKENS, "history": 0}


@dataclass(frozen=True, slots=True)
class Trimmed:
    """`window` as it is sent with these pieces, and by region what was done to `whole` for that."""

    whole: Window
    window: Window
    pieces: Sequence[Piece]
    actions_of: Mapping[PriorityRegion, tuple[TrimAction, ...]]

    @property
    def prompt(self) -> Prompt:
        return self.window.prompt(self.pieces)

    @property
    def actions(self) -> list[TrimAction]:
        """Lowest priority first."""
        order = reversed(self.window.policy.context_priority)
        return [action for region in order for action in self.actions_of.get(region, ())]


def with_shared_budget(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Snapshot:
    """The snapshot with the output's share as its output reserve, where the policy shares its window out."""
    if policy.allocation is None:
        return snapshot
    # Only what comes off first: laid out without the rest, it costs what it costs in the prompt.
    bare = replace(snapshot, goal=None, pins=(), summary=None, turns=())
    window = Window(bare, policy, estimate)
    fixed = window.prompt([piece for piece in window.pieces if piece.unit.kind == "user"])
    percent = policy.allocation.reserved_for_output_pct
    return replace(snapshot, budget=with_output_share(snapshot.budget, percent, window.charge(fixed)))


def share_out(window: Window) -> Window:
    """The window that a summary is planned in: it may take the map's share, and where not all fits pins and summary are
    down to what they are offered. Itself where the policy has no shares."""
    allocation = window.policy.allocation
    if allocation is None:
        return window
    full = window.prompt(window.pieces)
    division = _division(window, allocation, full)
    trimmed = Trimmed(window, window, window.pieces, {})
    if window.excess_tokens(full) > 0:
        for region in _HELD:
            trimmed = _held(trimmed, region, division.offered[region])
    held = trimmed.window
    full_map = max(division.shares["summary"], held.summary_item.tokens if held.summary_item else 0)
    beside_map = _division(window, allocation, full, summary_tokens=full_map)
    return held.with_shares(
        summary_tokens=division.shares["summary"], history_tokens=_left_for_past(window, beside_map)
    )


def trim_to_shares(window: Window, allocation: Allocation) -> Trimmed:
    """What is sent of the window: all of it where it fits, else as the module says. It may still be too large."""
    trimmed = Trimmed(window, window, window.pieces, {})
    full = trimmed.prompt
    if window.excess_tokens(full) <= 0:
        return trimmed
    for least in (_division(window, allocation, full).offered, _BELOW_SHARES):
        for region in reversed(window.policy.context_priority):
            excess = trimmed.window.excess_tokens(trimmed.prompt)
            if region == "goal" or excess <= 0:
                break
            if region == "history":
                trimmed = _with_less_history(trimmed, least[region])
            else:
                has = trimmed.prompt.regions()[region]
                trimmed = _held(trimmed, region, max(least[region], has - excess))
    return trimmed


def _with_less_history(trimmed: Trimmed, least_tokens: int) -> Trimmed:
    # What was shortened of the newest results is shortened anew, from the whole of them.
    whole = {id(piece.unit): piece for piece in trimmed.whole.pieces}
    pieces = [whole[id(piece.unit)] if piece.newest_results else piece for piece in trimmed.pieces]
    before = [each for each in trimmed.actions_of.get("history", ()) if each.reason != NEWEST_TOO_LARGE]
    pieces, done = _shrunk_history(trimmed.window.keeping_history(least_tokens), pieces, least_tokens)
    actions = [*before, *done]
    dropped = sum(action.tokens_removed for action in actions if action.kind == "history_drop")
    others = tuple(action for action in actions if action.kind != "history_drop")
    as_one = (TrimAction("history_drop", "conversation_history", "lowest_priority", dropped),) if dropped else ()
    return replace(trimmed, pieces=pieces, actions_of={**trimmed.actions_of, "history": (*as_one, *others)})


def _shrunk_history(window: Window, pieces: Sequence[Piece], least_tokens: int) -> tuple[list[Piece], list[TrimAction]]:
    """The history leaves as the policy prunes, then in whole turns, oldest first; then the newest results of open turns
    are shortened. Each until the prompt is within its budget, or the history within `least_tokens`."""
    pieces, actions = window.prune_older(pieces, window.prompt(pieces))
    if window.policy.prune_protected:
        pieces, done = window.prune_anywhere(pieces, window.prompt(pieces))
        actions += done
    pieces, done = window.drop_turns(pieces, window.prompt(pieces))
    prompt = window.prompt(pieces)
    may_lose = min(window.excess_tokens(prompt), prompt.regions()["history"] - least_tokens)
    shortened = window.shortened_newest(pieces, may_lose)
    rows = [shortening_action(each, NEWEST_TOO_LARGE) for each in shortened]
    return [piece.with_shortened(shortened) for piece in pieces], [*actions, *done, *rows]


def _held(trimmed: Trimmed, region: PriorityRegion, room_tokens: int) -> Trimmed:
    """Pins or summary of the whole window within so many tokens, without framing."""
    if region == "summary":
        summary, actions = _held_summary(trimmed.whole, room_tokens)
        window = trimmed.window.with_summary_item(summary)
    else:
        pins, actions = _held_pins(trimmed.whole, room_tokens)
        window = trimmed.window.with_pins(pins)
    return replace(trimmed, window=window, actions_of={**trimmed.actions_of, region: tuple(actions)})


def _division(window: Window, allocation: Allocation, full: Prompt, *, summary_tokens: int | None = None) -> Division:
    """Who gets what of the room of goal, pins, summary and history; `summary_tokens` stand for the summary's own."""
    regions = full.regions()
    # What leaves takes its framing with it, and the reserve that paid for that: reckon with the least there can be.
    overheads = (full.overhead_tokens, window.prompt(()).overhead_tokens)
    room_tokens = min(_room(window, regions, overhead) for overhead in overheads)
    whole, least = _history(window.remains(shortened=False)), _history(window.remains())
    wanted: dict[PriorityRegion, int] = {
        "goal": regions["goal"],
        "pins": regions["pins"],
        "summary": regions["summary"] if summary_tokens is None else summary_tokens,
        "history": regions["history"],
    }
    needed: dict[PriorityRegion, int] = {
        "goal": regions["goal"],
        "pins": 0,
        "summary": min(regions["summary"], MIN_SUMMARY_TOKENS),
        # The newest results of an open turn may take half of all room before they are shortened.
        "history": min(whole, max(least, room_tokens // 2)),
    }
    return divide(room_tokens, allocation, window.policy.context_priority, wanted=wanted, least=needed)


def _room(window: Window, regions: Mapping[str, int], overhead_tokens: int) -> int:
    """What is left to goal, pins, summary and history beside so much overhead, in tokens without framing."""
    snapshot = window.snapshot
    wire_room = snapshot.budget.wire_room(overhead_tokens=overhead_tokens, calibration_ratio=snapshot.calibration_ratio)
    return wire_room - overhead_tokens - regions["system"] - regions["user"]


def _left_for_past(window: Window, division: Division) -> int:
    """What past turns may take of the history's room: the running turn's own rounds are there in any case."""
    current = window.snapshot.current.id
    return division.offered["history"] - _history(
        [piece for piece in window.pieces if piece.unit.messages[0].turn_id == current]
    )


def _history(pieces: Sequence[Piece]) -> int:
    """Tokens of the history among the pieces, without framing."""
    return sum(item.tokens for piece in pieces for item in piece.items if item.region == "history")


def _held_pins(window: Window, room_tokens: int) -> tuple[list[PromptItem], list[TrimAction]]:
    items = [item for item in window.head if item.region == "pins"]
    if sum(item.tokens for item in items) <= room_tokens:
        return items, []
    pins = window.snapshot.pins
    question = question_of(window.snapshot.goal, window.snapshot.current)
    return fit_pins(pins, items, relevances(pins, question), room_tokens, window.estimate)


def _held_summary(window: Window, room_tokens: int) -> tuple[PromptItem | None, list[TrimAction]]:
    """A summary over what it was offered, shortened; it never leaves."""
    item, summary = window.summary_item, window.snapshot.summary
    if item is None or summary is None or item.tokens <= room_tokens:
        return item, []
    body = fit_summary(summary.body, max(room_tokens, MIN_SUMMARY_TOKENS), window.estimate)
    if body is None or body == summary.body:
        return item, []
    shorter = summary_item(replace(summary, body=body), window.policy, window.estimate)
    removed = item.tokens - shorter.tokens
    return shorter, [TrimAction("summary_shortened", item.label, "over_budget", removed)]
