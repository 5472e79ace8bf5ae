"""The last path of the design `turn_atomic`: the provider refused the prompt, so the oldest turns leave at once.

What they said is not summarized, since whoever waits has waited for one call; a note of their going stands in the
summary, where later summaries carry it on, and not in the history.
"""

from __future__ import annotations

from math import ceil

from app.domain.types import Summary, SummaryBody
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import latest_unresolved, wire_tokens_of
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.block import fit_summary
from app.engine.summary.fold import MIN_SUMMARY_TOKENS, Fold, fold_of
from app.engine.window.pruning import TrimAction
from app.engine.window.window import Snapshot


def emergency_fold(snapshot: Snapshot, policy: ContextPolicy, previous_tokens: int) -> Fold | None:
    """The oldest share of the past turns, by number and rounded up; None when the policy has none or no turn may go.

    `previous_tokens` is what the active summary's block costs on the wire. An unresolved latest turn stays.
    """
    if policy.emergency_drop_ratio is None:
        return None
    may_go = [turn for turn in snapshot.turns if turn is not latest_unresolved(snapshot.turns)]
    leaving = may_go[: ceil(len(may_go) * policy.emergency_drop_ratio)]
    if not wire_tokens_of(leaving):
        return None
    cap_tokens = max(MIN_SUMMARY_TOKENS, int(snapshot.budget.input_budget * policy.summary_max_ratio))
    return fold_of("provider_overflow", leaving, (), snapshot.summary, previous_tokens, cap_tokens)


def emergency_summary(fold: Fold, estimate: Estimate) -> SummaryBody | None:
    """What the summary held before, and the note; None when the cap has no room for either."""
    first, last = fold.turns[0].seq, fold.turns[-1].seq
    which = f"Turn {first}" if first == last else f"Turns {first} to {last}"
    note = f"{which} of this conversation left at once and unread, because the model's provider took no more."
    if fold.previous is None:
        return fit_summary(SummaryBody(note), fold.cap_tokens, estimate)
    previous = fold.previous.body
    body = SummaryBody(
        f"{note}\n{previous.summary_text}",
        previous.key_facts,
        previous.open_questions,
        previous.decisions,
        previous.action_items,
    )
    return fit_summary(body, fold.cap_tokens, estimate)


def emergency_actions(fold: Fold, noted: Summary, new_tokens: int) -> tuple[TrimAction, ...]:
    """The log of it: a row for each turn that left, and one for what the note made of the summary.

    `new_tokens` is what the block costs on the wire now; the rows sum to what the prompt lost.
    """
    rows = [
        TrimAction("emergency_drop", f"turn:{turn.id}", fold.reason, wire_tokens_of((turn,))) for turn in fold.turns
    ]
    block = TrimAction("emergency_drop", f"summary:{noted.id}", fold.reason, fold.previous_tokens - new_tokens)
    return (*rows, block)
