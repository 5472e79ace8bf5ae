"""The recalled block of a prompt: just before the user's message, in room that is left below the summary trigger."""

from __future__ import annotations

from typing import Final

from app.domain.content import content_text
from app.domain.evicted import Evicted
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import (
    AlreadyInPrompt,
    Candidate,
    Recalled,
    candidates,
    choose,
    wanted_share,
    with_more_evicted,
)
from app.engine.recall.terms import query_terms
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
    scores = [(message, candidate.score) for candidate in chosen for message in candidate.unit.messages]
    items = [PromptItem("recall", message.tokens, message=message) for message, _ in scores]
    rows = tuple(
        Recalled(message.id, round(score, 4), item.wire_tokens)
        for (message, score), item in zip(scores, items, strict=True)
    )
    return window.with_recalled((note, *items), rows)


def _chosen(window: Window, policy: ContextPolicy, note_tokens: int) -> tuple[Candidate, ...]:
    text = content_text(window.snapshot.current.messages[0].content)
    evicted = _evicted(window, text)
    if evicted is None:
        return ()
    recall, budget = policy.recall, window.budget
    most_tokens = int(recall.max_share * wanted_share(text) * budget.input_budget)
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    below = int(policy.prune_from(budget.input_budget)) if trigger is None else trigger

    def has_room(tokens: int, messages: int) -> bool:
        more = tokens + note_tokens
        return more <= most_tokens and window.charged(-more, -messages - 1) < below

    if not has_room(1, 1):
        return ()
    items = [item for piece in window.pieces for item in piece.items if item.region != "user"]
    sent = [content_text(item.message.content) for item in items if item.message]
    return choose(
        candidates(evicted),
        min_score_ratio=recall.min_score_ratio,
        said=AlreadyInPrompt(sent, text),
        fits=has_room,
    )


def _evicted(window: Window, text: str) -> Evicted | None:
    """What was found when the turn began, and the turns that a summary has taken in since."""
    evicted, folded = window.snapshot.evicted, window.snapshot.folded_now
    if not folded:
        return evicted
    return with_more_evicted(evicted or Evicted(query_terms(text)), folded)
