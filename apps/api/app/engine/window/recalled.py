"""The recalled block of a prompt: just before the user's message, in room that is left below the prune threshold."""

from __future__ import annotations

from typing import Final

from app.domain.content import content_text
from app.domain.recalled import Recalled
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import Unit
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.dates import day_said
from app.engine.recall.ranking import Candidate, choose, most_recalled_tokens, spoken_text
from app.engine.window.days import day_item, today_item
from app.engine.window.prompt import PromptItem, block_item
from app.engine.window.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""What stands before the block, as the user's: without it an old request would read as a current one."""


def bring_back(window: Window, policy: ContextPolicy) -> Window:
    """The window with what comes back: within the block's share, below what fires a prune.

    Summary and prune were decided without it, and the next turn begins without it: so it causes neither.
    """
    note = block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)
    days = _Days(window) if policy.show_time else None
    chosen = _chosen(window, policy, note.tokens, days)
    if not chosen:
        return window
    items: list[PromptItem] = [note]
    rows: list[Recalled] = []
    for unit, found in chosen:
        items += days.shown_before(unit) if days else ()
        matched = dict(zip(found.seqs, found.matched, strict=True))
        for message in unit.messages:
            items.append(PromptItem("recall", message.tokens, message=message))
            tokens = message.tokens + MESSAGE_FRAMING_TOKENS
            words = matched.get(message.seq, ())
            rows.append(
                Recalled(message.seq, message.id, message.reasoning_sent, round(100 * found.score), tokens, words)
            )
    return window.with_recalled(items, tuple(rows), days.today if days and days.lines else None)


class _Days:
    """The lines that say on which days what comes back was said, one a day: none for the day of the running turn, and
    that one's own where there are others."""

    def __init__(self, window: Window) -> None:
        self._estimate = window.estimate
        self._day_of_turn = day_said(window.snapshot.current.messages[0])
        self.today = None if window.today else today_item(window)
        self.lines: dict[int, PromptItem] = {}
        self._shown: set[int] = set()

    def with_unit(self, unit: Unit) -> dict[int, PromptItem]:
        """The lines with that of another unit."""
        day = day_said(unit.messages[0])
        if day is None or day == self._day_of_turn or day in self.lines:
            return self.lines
        return {**self.lines, day: day_item(day, "recall", self._estimate)}

    def shown_before(self, unit: Unit) -> tuple[PromptItem, ...]:
        """The line that stands before the first unit of its day."""
        day = day_said(unit.messages[0])
        if day not in self.lines or day in self._shown:
            return ()
        self._shown.add(day)
        return (self.lines[day],)


def _chosen(
    window: Window, policy: ContextPolicy, note_tokens: int, days: _Days | None
) -> tuple[tuple[Unit, Candidate], ...]:
    evicted = window.snapshot.evicted
    if evicted is None or not evicted.candidates:
        return ()
    text = content_text(window.snapshot.current.messages[0].content)
    most_tokens = most_recalled_tokens(text, policy.recall, window.budget.input_budget)
    below = policy.prune_from(window.budget.input_budget)

    def has_room(tokens: int, messages: int, unit: Unit | None = None) -> bool:
        lines = days.with_unit(unit) if days and unit else {}
        beside = [line.tokens for line in (*lines.values(), days.today if days and lines else None) if line]
        more = tokens + note_tokens + sum(beside)
        if more > most_tokens or window.input_tokens(-more, -messages - 1 - len(beside)) >= below:
            return False
        if days and unit:
            days.lines = lines
        return True

    if not has_room(1, 1):
        return ()
    items = [item for piece in window.pieces for item in piece.items if item.region != "user"]
    sent = {spoken_text(item.message) for item in items if item.message}
    return choose(evicted, sent=sent, fits=has_room)
