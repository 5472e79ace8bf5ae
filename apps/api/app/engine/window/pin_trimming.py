"""Pins that are over their share: the least relevant are shortened, and where that is not enough they leave."""

from __future__ import annotations

from dataclasses import replace

from app.domain.types import Pin
from app.engine.messages.tokens import Estimate
from app.engine.recall.relevance import question_of, relevances
from app.engine.window.prompt import PromptItem, block_item, pin_text
from app.engine.window.shortening import without_middle
from app.engine.window.snapshot import Removal
from app.engine.window.window import Window

LEAST_KEPT_CHARS = 240
"""Of a shortened pin's text: with less it says nothing, and the pin leaves."""
_REASON = "low_relevance"
_TRIES = 4


def with_fitted_pins(window: Window, room_tokens: int) -> Window:
    """The window with its pins within `room_tokens`, without framing.

    The least relevant pin is shortened first, then the next, none below a few sentences; of equals the later. Only when
    all of them shortened are still too much does the least relevant leave. What is sent keeps its order, whatever the
    relevance: a provider's cache goes by the prefix.
    """
    pins, items, estimate = window.snapshot.pins, window.pins, window.estimate
    if sum(item.tokens for item in items) <= room_tokens:
        return window
    relevance_of = relevances(pins, question_of(window.snapshot.goal, window.snapshot.current))
    first_to_go = sorted(range(len(pins)), key=lambda at: (relevance_of[at], -at))
    least = [_shortened(pin, item, LEAST_KEPT_CHARS, estimate) for pin, item in zip(pins, items, strict=True)]
    now: dict[int, PromptItem] = dict(enumerate(items))
    actions: list[Removal] = []
    least_tokens = sum(item.tokens for item in least)
    for at in first_to_go:
        if least_tokens <= room_tokens:
            break
        least_tokens -= least[at].tokens
        actions.append(Removal("pinned_drop", pins[at].name, _REASON, now.pop(at).wire_tokens))
    excess = sum(item.tokens for item in now.values()) - room_tokens
    for at in first_to_go:
        if excess <= 0:
            break
        if at not in now or least[at] is items[at]:
            continue
        now[at] = _fitted(pins[at], items[at], items[at].tokens - excess, least[at], estimate)
        removed = items[at].tokens - now[at].tokens
        actions.append(Removal("pinned_trim", pins[at].name, _REASON, removed))
        excess -= removed
    return window.with_pins(tuple(now.values())).logged(actions)


def _fitted(pin: Pin, item: PromptItem, most_tokens: int, least: PromptItem, estimate: Estimate) -> PromptItem:
    """The pin with as much of its text as fits, by its own characters a token: a long text is counted once or twice."""
    keep_chars = len(pin.content) * most_tokens // item.tokens
    for _ in range(_TRIES):
        if keep_chars <= LEAST_KEPT_CHARS:
            break
        shorter = _shortened(pin, item, keep_chars, estimate)
        if shorter.tokens <= most_tokens:
            return shorter
        keep_chars = keep_chars * most_tokens * 49 // (shorter.tokens * 50)
    return least


def _shortened(pin: Pin, item: PromptItem, keep_chars: int, estimate: Estimate) -> PromptItem:
    """The item with so much of the pin's text; the item itself when it would not get smaller."""
    if len(pin.content) <= keep_chars:
        return item
    text = pin_text(replace(pin, content=without_middle(pin.content, keep_chars, "pin")))
    shorter = block_item("pins", item.label, "system", text, estimate)
    return shorter if shorter.tokens < item.tokens else item
