"""The recalled block of a prompt: just before the user's message, in room that is left below the summary trigger."""

from __future__ import annotations

from typing import Final

from app.domain.content import content_text
from app.engine.messages.turns import Unit
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import NOTHING_EVICTED, Evicted, Recalled, choose, most_recalled_tokens, with_folded
from app.engine.window.prompt import PromptItem, block_item
from app.engine.window.triggers import trigger_tokens
from app.engine.window.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""What stands before the block, as the user's: without it an old request would read as a current one."""


def bring_back(window: Window, policy: ContextPolicy) -> Window:
    """The window with what comes back: within the block's share, below what fires a summary."""
    note = block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)
    chosen = _chosen(window, policy, note.tokens)
    if not chosen:
        return window
    scores = [(message, score) for unit, score in chosen for message in unit.messages]
    items = [PromptItem("recall", message.tokens, message=message) for message, _ in scores]
    rows = tuple(
        Recalled(message.id, round(score, 4), item.wire_tokens)
        for (message, score), item in zip(scores, items, strict=True)
    )
    return window.with_recalled((note, *items), rows)


def _chosen(window: Window, policy: ContextPolicy, note_tokens: int) -> tuple[tuple[Unit, float], ...]:
    if window.snapshot.evicted is None and not window.snapshot.folded_now:
        return ()
    text = content_text(window.snapshot.current.messages[0].content)
    budget = window.budget
    most_tokens = most_recalled_tokens(text, policy.recall, budget.input_budget)
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    below = int(policy.prune_from(budget.input_budget)) if trigger is None else trigger

    def has_room(tokens: int, messages: int) -> bool:
        more = tokens + note_tokens
        return more <= most_tokens and window.input_tokens(-more, -messages - 1) < below

    if not has_room(1, 1):
        return ()
    evicted = _evicted(window, policy, text, most_tokens)
    if evicted is None:
        return ()
    items = [item for piece in window.pieces for item in piece.items if item.region != "user"]
    sent = {content_text(item.message.content) for item in items if item.message}
    return choose(evicted, sent=sent, fits=has_room)


def _evicted(window: Window, policy: ContextPolicy, text: str, most_tokens: int) -> Evicted | None:
    """What was found when the turn began, and the turns that a summary has taken in since."""
    evicted, folded = window.snapshot.evicted, window.snapshot.folded_now
    if not folded:
        return evicted
    ratio = policy.recall.min_score_ratio
    return with_folded(evicted or NOTHING_EVICTED, folded, text, most_tokens=most_tokens, min_score_ratio=ratio)
