"""The recalled block of a prompt: just before the user's message, in room that is left below the summary trigger."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.engine.fitting import Accounts, Ready, Refused
from app.engine.prompt import Prompt, PromptItem, block_item, message_item
from app.engine.recall import Candidate, Recalled, candidates, choose, wanted_share
from app.engine.tokens import content_text
from app.engine.triggers import summary_trigger_tokens
from app.engine.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""What stands before the block, as the user's: without it a wish of long ago would read as one of now."""


def with_recall(window: Window, decided: Ready | Refused) -> Ready | Refused:
    """The same prompt with what comes back, where the policy recalls and there is room; a refusal stays one.

    Recalled tokens are in every figure of the accounts: no stage of compression removed or added them.
    """
    evicted = window.snapshot.evicted
    if evicted is None or not window.policy.recall.enabled or isinstance(decided, Refused):
        return decided
    prompt = decided.prompt
    note = block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)
    most_tokens = int(window.policy.recall.max_share * wanted_share(_asked(window)) * window.snapshot.budget.input_budget)
    below = _trigger_tokens(window)
    chosen = choose(
        candidates(evicted),
        min_score_ratio=window.policy.recall.min_score_ratio,
        fits=lambda tokens, messages: (
            tokens + note.tokens <= most_tokens
            and window.charge_with(prompt, tokens + note.tokens, messages + 1) < below
        ),
    )
    if not chosen:
        return decided
    recalled = _with_block(prompt, window, note, chosen)
    more_wire = recalled.wire_tokens - prompt.wire_tokens
    more_charged = window.charge(recalled) - window.charge(prompt)
    rows = tuple(
        Recalled(message.id, round(candidate.score, 4), message_item("recall", message).wire_tokens)
        for candidate in chosen
        for message in candidate.unit.messages
    )
    return Ready(recalled, _more(decided.accounts, more_wire, more_charged, rows))


def _asked(window: Window) -> str:
    return content_text(window.snapshot.current.messages[0].content)


def _trigger_tokens(window: Window) -> int:
    """The charged tokens that fire a summary, or else a prune: recall stays below."""
    trigger = summary_trigger_tokens(window)
    return int(window.policy.prune_trigger_ratio * window.snapshot.budget.input_budget) if trigger is None else trigger


def _with_block(prompt: Prompt, window: Window, note: PromptItem, chosen: tuple[Candidate, ...]) -> Prompt:
    """The block stands before the first message of the running turn."""
    current = window.snapshot.current.id
    at = next(place for place, item in enumerate(prompt.items) if item.message and item.message.turn_id == current)
    block = [message_item("recall", message) for candidate in chosen for message in candidate.unit.messages]
    return replace(prompt, items=(*prompt.items[:at], note, *block, *prompt.items[at:]))


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
