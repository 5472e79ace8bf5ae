"""Holding the regions of a window to their shares (preset `allocated`; contract, sections 9 and 10).

System text, the user's message and tools come off first. Of the rest the output has its share; goal, pins and summary
have theirs and what flows down to them, and the history has what is left. Pins over their share are trimmed by
relevance, a summary over its own is shortened; what the history may keep is decided like any prompt's, by the budget.
The goal is never trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.engine.allocation import Division, divide
from app.engine.budget import with_output_share
from app.engine.folding import MIN_SUMMARY_TOKENS
from app.engine.pin_trimming import fit_pins
from app.engine.policy import Allocation, ContextPolicy, PriorityRegion
from app.engine.prompt import Prompt, PromptItem
from app.engine.pruning import Piece, TrimAction
from app.engine.relevance import question_of, relevances
from app.engine.summary_block import fit_summary
from app.engine.tokens import Estimate
from app.engine.window import Snapshot, Window, summary_item


@dataclass(frozen=True, slots=True)
class Held:
    """A window whose pins and summary are within what they were offered, and what was done for that."""

    window: Window
    actions: tuple[TrimAction, ...] = ()


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


def hold_shares(window: Window) -> Held:
    """The window within its shares; itself where the policy has none."""
    allocation = window.policy.allocation
    if allocation is None:
        return Held(window)
    full = window.prompt(window.pieces)
    held = _hold(window, allocation, full, _room(window, full, full.overhead_tokens))
    if held.window.charge(held.window.prompt(held.window.remains())) <= window.snapshot.budget.input_budget:
        return held
    # What leaves takes its framing with it, and the reserve that paid for that: reckon with the least there can be.
    overhead = (full.overhead_tokens, window.prompt(()).overhead_tokens)
    return _hold(window, allocation, full, min(_room(window, full, each) for each in overhead))


def _hold(window: Window, allocation: Allocation, full: Prompt, room_tokens: int) -> Held:
    wanted = _wanted(full)
    whole, least = _tokens(window.remains(shortened=False)), _tokens(window.remains())
    # The newest results of an open turn may take half of all room before they are shortened.
    history = min(whole, max(least, room_tokens // 2))
    needed: Mapping[PriorityRegion, int] = {
        "goal": wanted["goal"],
        "pins": 0,
        "summary": min(wanted["summary"], MIN_SUMMARY_TOKENS),
        "history": history,
    }
    order = window.policy.context_priority
    division = divide(room_tokens, allocation, order, wanted=wanted, least=needed)
    pins, trimmed = _held_pins(window, wanted["pins"], division.offered["pins"])
    summary, shortened = _held_summary(window, division.offered["summary"])
    full_map = max(division.shares["summary"], summary.tokens if summary else 0)
    beside_map = divide(room_tokens, allocation, order, wanted={**wanted, "summary": full_map}, least=needed)
    narrowed = window.narrowed(
        head=(*(item for item in window.head if item.region != "pins"), *pins),
        summary=summary,
        summary_tokens=division.shares["summary"],
        history_tokens=_left_for_past(window, beside_map),
    )
    return Held(narrowed, (*trimmed, *shortened))


def _room(window: Window, full: Prompt, overhead_tokens: int) -> int:
    """What is left to goal, pins, summary and history beside so much overhead, in tokens without framing."""
    snapshot = window.snapshot
    wire_room = snapshot.budget.wire_room(overhead_tokens=overhead_tokens, calibration_ratio=snapshot.calibration_ratio)
    regions = full.regions()
    return wire_room - overhead_tokens - regions["system"] - regions["user"]


def _wanted(full: Prompt) -> dict[PriorityRegion, int]:
    regions = full.regions()
    return {
        "goal": regions["goal"],
        "pins": regions["pins"],
        "summary": regions["summary"],
        "history": regions["history"],
    }


def _left_for_past(window: Window, division: Division) -> int:
    """What past turns may take of the history's room: the running turn's own rounds are there in any case."""
    current = window.snapshot.current.id
    running = [piece for piece in window.pieces if piece.unit.messages[0].turn_id == current]
    return division.offered["history"] - _tokens(running)


def _tokens(pieces: Sequence[Piece]) -> int:
    """Tokens of the history among the pieces, without framing."""
    return sum(item.tokens for piece in pieces for item in piece.items if item.region == "history")


def _held_pins(window: Window, wanted_tokens: int, room_tokens: int) -> tuple[list[PromptItem], list[TrimAction]]:
    items = [item for item in window.head if item.region == "pins"]
    if wanted_tokens <= room_tokens:
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
    return shorter, [TrimAction("summary_shortened", item.label, "summary_over_share", removed)]
