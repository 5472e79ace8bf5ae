"""The recalled block of a prompt: just before the user's message, in room that is left below the summary trigger."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.domain.content import content_text
from app.domain.evicted import Evicted
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
from app.engine.window.prompt import Prompt, PromptItem, block_item, message_item
from app.engine.window.stages import Accounts, Ready, Refused
from app.engine.window.triggers import summary_trigger_tokens
from app.engine.window.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""What stands before the block, as the user's: without it a wish of long ago would read as one of now."""


def with_recall(window: Window, decided: Ready | Refused) -> Ready | Refused:
    """The same prompt with what comes back, where the policy recalls and there is room; a refusal stays one.

    Recalled tokens are in every figure of the accounts: no stage of compression removed or added them.
    """
    if not window.policy.recall.enabled or isinstance(decided, Refused):
        return decided
    chosen = _chosen(window, decided.prompt)
    if not chosen:
        return decided
    recalled = _with_block(decided.prompt, window, chosen)
    more_wire = recalled.wire_tokens - decided.prompt.wire_tokens
    more_charged = window.charge(recalled) - window.charge(decided.prompt)
    rows = tuple(
        Recalled(message.id, round(candidate.score, 4), message_item("recall", message).wire_tokens)
        for candidate in chosen
        for message in candidate.unit.messages
    )
    return Ready(recalled, _more(decided.accounts, more_wire, more_charged, rows))


def _chosen(window: Window, prompt: Prompt) -> tuple[Candidate, ...]:
    """What comes back beside the prompt: within the block's share, below what fires a summary."""
    evicted, recall = _evicted(window), window.policy.recall
    if evicted is None:
        return ()
    share = recall.max_share * wanted_share(_asked(window))
    most_tokens = int(share * window.snapshot.budget.input_budget)
    below = _trigger_tokens(window)
    note_tokens = _note(window).tokens

    def fits(tokens: int, messages: int) -> bool:
        more = tokens + note_tokens
        return more <= most_tokens and window.charge_with(prompt, more, messages + 1) < below

    if not fits(1, 1):
        return ()
    sent = [content_text(item.message.content) for item in prompt.items if item.message and item.region != "user"]
    said = AlreadyInPrompt(sent, _asked(window))
    return choose(candidates(evicted), min_score_ratio=recall.min_score_ratio, said=said, fits=fits)


def _evicted(window: Window) -> Evicted | None:
    """What was found when the turn began, and the turns that a summary has taken in since."""
    evicted, folded = window.snapshot.evicted, window.snapshot.folded_now
    if not folded:
        return evicted
    return with_more_evicted(evicted or Evicted(query_terms(_asked(window))), folded)


def _note(window: Window) -> PromptItem:
    return block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)


def _asked(window: Window) -> str:
    return content_text(window.snapshot.current.messages[0].content)


def _trigger_tokens(window: Window) -> int:
    """The charged tokens that fire a summary, or else a prune: recall stays below."""
    trigger = summary_trigger_tokens(window)
    return int(window.policy.prune_from(window.snapshot.budget.input_budget)) if trigger is None else trigger


def _with_block(prompt: Prompt, window: Window, chosen: tuple[Candidate, ...]) -> Prompt:
    """The block stands before the first message of the running turn."""
    current = window.snapshot.current.id
    at = next(place for place, item in enumerate(prompt.items) if item.message and item.message.turn_id == current)
    block = [message_item("recall", message) for candidate in chosen for message in candidate.unit.messages]
    return replace(prompt, items=(*prompt.items[:at], _note(window), *block, *prompt.items[at:]))


def _more(accounts: Accounts, wire: int, charged: int, recalled: tuple[Recalled, ...]) -> Accounts:
    return replace(
        accounts,
        wire_before=accounts.wire_before + wire,
        tokens_before=accounts.tokens_before + charged,
        tokens_after_summary=accounts.tokens_after_summary + charged,
        tokens_after_prune=accounts.tokens_after_prune + charged,
        recalled=recalled,
        recalled_wire_tokens=wire,
        recalled_tokens=charged,
    )
