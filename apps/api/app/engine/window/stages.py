"""Making the prompt fit: what leaves, in which order, until it is within its budget or nothing more may leave."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.recall.ranking import Recalled
from app.engine.window.prompt import Prompt
from app.engine.window.pruning import TrimAction
from app.engine.window.refusal import Overflow, overflow_of
from app.engine.window.shares import trim_to_shares
from app.engine.window.window import Window


@dataclass(frozen=True, slots=True)
class Accounts:
    """The figures of an audit row. `*_before`, `*_after_summary`, `*_after_prune` are charged to the input budget;
    `wire_before` and the prompt's own `wire_tokens` are what the trim log speaks of.

    What was recalled is in every figure, since no stage of compression brought it in; `recalled_wire_tokens` and
    `recalled_tokens` say how much of them it is.
    """

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    tokens_after_prune: int
    summary_triggered: bool
    prune_triggered: bool
    actions: tuple[TrimAction, ...]
    stored_actions: int = 0
    """How many of them, the first, are stored as a summary: no other plan of the turn can take them back."""
    recalled: tuple[Recalled, ...] = ()
    recalled_wire_tokens: int = 0
    recalled_tokens: int = 0

    def earlier(self, more: tuple[TrimAction, ...] = ()) -> Earlier:
        """Where another plan of the same turn starts from: at what it saw first, with the summaries that were made.

        `more` is what has been stored since.
        """
        stored = (*self.actions[: self.stored_actions], *more)
        wire_before = self.wire_before - self.recalled_wire_tokens
        return Earlier(wire_before, self.tokens_before - self.recalled_tokens, self.summary_triggered, stored)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What this turn's plan saw before a summary was tried, and what the summary did."""

    wire_before: int
    tokens_before: int
    summary_triggered: bool
    actions: tuple[TrimAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The prompt fits."""

    prompt: Prompt
    accounts: Accounts


@dataclass(frozen=True, slots=True)
class Refused:
    """The prompt does not fit and nothing more may leave."""

    prompt: Prompt
    accounts: Accounts
    overflow: Overflow


def fit(window: Window, seen: Earlier, *, emergency: bool = False) -> Ready | Refused:
    """Prunes to the threshold among older turns, then to the budget wherever it may, and says whether the prompt fits.

    In this order, each only while the one before was not enough: older turns are pruned, protected turns are, the
    summary is cut to its cap, whole turns leave (in an `emergency`), the newest tool results are shortened. Where the
    window is shared out, `trim_to_shares` stands for all but the emergency. Nothing of it is done where the policy
    wants the whole past.
    """
    budget, policy = window.snapshot.budget, window.policy
    after_summary = window.charge(window.prompt(window.pieces))
    actions: list[TrimAction] = []
    if policy.allocation is not None:
        trimmed = trim_to_shares(window, policy.allocation)
        window, pieces, prompt, actions = trimmed.window, trimmed.pieces, trimmed.prompt, trimmed.actions
    else:
        pieces, prompt = window.pieces, window.prompt(window.pieces)

    def over() -> bool:
        return window.charge(prompt) > budget.input_budget

    may_prune = policy.allocation is None and not policy.whole_past
    if may_prune and window.at_prune_threshold(window.charge(prompt)):
        pieces, done = window.prune_older(pieces, prompt)
        actions += done
        prompt = window.prompt(pieces)
    if may_prune and over() and policy.prune_protected:
        pieces, done = window.prune_anywhere(pieces, prompt)
        actions += done
        prompt = window.prompt(pieces)
    if may_prune and over():
        prompt, done = window.shorten_summary(prompt)
        actions += done
    if over() and emergency:
        prompt, done = window.drop_oldest_turns(prompt)
        actions += done
    if may_prune and over() and budget.input_budget > 0:
        prompt, done = window.shorten_newest(prompt)
        actions += done
    charged = window.charge(prompt)
    accounts = Accounts(
        wire_before=seen.wire_before,
        tokens_before=seen.tokens_before,
        tokens_after_summary=after_summary,
        tokens_after_prune=charged,
        summary_triggered=seen.summary_triggered,
        prune_triggered=bool(actions) or any(action.kind == "emergency_drop" for action in seen.actions),
        actions=(*seen.actions, *actions),
        stored_actions=len(seen.actions),
    )
    if budget.input_budget <= 0 or charged > budget.input_budget:
        return Refused(prompt, accounts, overflow_of(prompt, budget, charged, window.snapshot.calibration_ratio))
    return Ready(prompt, accounts)
