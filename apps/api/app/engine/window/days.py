"""The days on which messages were sent, shown in a prompt: a line before the first message of each.

A line before a turn depends on that turn and the one before it alone, so that it stays where it is, and the prompt's
beginning stays in a provider's cache. Where the lines have no room below the prune threshold, none is shown.
"""

from __future__ import annotations

from app.domain.types import Region
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.dates import day_said, day_text
from app.engine.window.prompt import PromptItem, block_item
from app.engine.window.window import Window


def show_days(window: Window, policy: ContextPolicy) -> Window:
    """The window with a line before the first of its turns, and before each that begins on another day than the one
    before it."""
    days: list[tuple[int, PromptItem]] = []
    turn_seq: int | None = None
    day: int | None = None
    for at, piece in enumerate(window.past):
        if piece.turn_seq != turn_seq:
            turn_seq, began = piece.turn_seq, piece.day
            if began is not None and began != day:
                day = began
                days.append((at, day_item(day, "history", window.estimate)))
    today = today_item(window) if day != day_said(window.snapshot.current.messages[0]) else None
    shown = window.with_days(days, today)
    return shown if shown.input_tokens() < policy.prune_from(window.budget.input_budget) else window


def today_item(window: Window) -> PromptItem | None:
    """The line before the running turn; None where nobody knows when it began."""
    today = day_said(window.snapshot.current.messages[0])
    return None if today is None else day_item(today, "history", window.estimate)


def day_item(day: int, region: Region, estimate: Estimate) -> PromptItem:
    """The line of a day."""
    text = f"[{day_text(day)}]"
    return block_item(region, f"day:{day_text(day)}", "user", text, estimate)
