"""When a summary is due: before a call and after a turn, by a policy's triggers (contract.md, sections 8 to 10).

Behind a turn's answer one is made as well that the next turn would have to make. That turn is taken to bring a message
as large as an average turn of the window, and is decided as it will be: so what is made ahead takes in just what it
would have folded before its call, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor
from uuid import UUID

from app.domain.types import Message, MessageId, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import framed_tokens
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import MIN_SUMMARY_TOKENS, Fold, SummaryReason
from app.engine.window.calibration import HIGHEST_RATIO, LOWEST_RATIO
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.foldable import Foldable, foldable
from app.engine.window.past import Past
from app.engine.window.prompt import Prompt
from app.engine.window.shares import foldable_within_shares, with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Cost, Window

_NOBODY = UUID(int=0)
NEAR_SHARE = 0.05
"""Of a threshold: within it, the provider's own count is worth a call."""
_WHATEVER_IT_RECLAIMS: frozenset[SummaryReason] = frozenset({"turn_count", "requested"})
_MIN_RECLAIM_SHARE = 0.05
"""Of the input budget, or of the tokens at which summaries are made: with less below the prune threshold, the next turn
would make the next summary."""
_MIN_MESSAGES_SHARE = 0.5
"""Of `max_messages`: what protected turns hold alone can reach it, and would have a summary made every turn."""


@dataclass(frozen=True, slots=True)
class Due:
    """Why a summary is due, and what it takes in; without a `fold` none is worth making, or none could be sent."""

    reason: SummaryReason | None
    fold: Fold | None


def due_before_call(window: Window) -> Due:
    """Whether a summary is to be tried before this window is sent.

    Refuse before paying: none is made that could not be sent beside what may never leave.
    """
    return _due(window, reason_before_call, before_call=True)


def _due(window: Window, reason_of: Callable[[Cost], SummaryReason | None], *, before_call: bool = False) -> Due:
    # What could be taken in may be a walk through the window: only where something may be due. Shares change nothing of
    # a window that fits.
    if (window.snapshot.policy.allocation is None or window.excess_tokens <= 0) and reason_of(window) is None:
        return Due(None, None)
    found = foldable_within_shares(window)
    reason = reason_of(found.window) if found.room_tokens >= MIN_SUMMARY_TOKENS else None
    fold = found.fold(reason) if reason else None
    worth = fold and worth_making(fold, found, before_call=before_call)
    return Due(reason, fold if worth else None)


def reason_before_call(window: Cost) -> SummaryReason | None:
    """Why a summary is to be tried; of a shared-out window, once its shares are held.

    At the prune threshold one is tried by any policy that summarizes at all, whenever it would rather do so: what a
    summary keeps is better than what a prune leaves, and a crash in the background loses nothing that way.
    """
    policy = window.snapshot.policy
    if policy.allocation is not None and policy.summarizes and window.is_over:
        return "allocation"
    if policy.summarizes_before_calls:
        if _at_trigger(window):
            return "threshold"
        if turns_to_next_summary(window.snapshot) == 0:
            return "turn_count"
        if not policy.summarizes_after_turns and (reason := _by_usage(window)):
            return reason
        if window.wire_tokens > window.budget.prompt_ceiling:
            return "window"
    return "threshold" if policy.summarizes and window.at_prune_trigger else None


def worth_making(fold: Fold, found: Foldable, *, before_call: bool) -> bool:
    """Whether the fold takes in enough, or for a reason that holds however little it takes in.

    Before a call also because what is sent without it would be pruned. Not so where the window is shared out: pins may
    well fill it, and would have a summary made every turn; what leaves the prompt meanwhile is folded later.
    """
    policy = found.window.snapshot.policy
    if before_call and policy.allocation is None and found.window.at_prune_trigger:
        return True
    if fold.reason == "message_count":
        return len(fold.sources) >= _MIN_MESSAGES_SHARE * (policy.max_messages or 0)
    least_tokens = _MIN_RECLAIM_SHARE * policy.summarized_room(found.window.budget.input_budget)
    return fold.reason in _WHATEVER_IT_RECLAIMS or fold.folded_tokens - fold.previous_tokens >= least_tokens


def fold_after_turn(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """What a summary takes in that is due by what is looked at after turns; the running turn has no message yet."""
    if not snapshot.policy.summarizes_after_turns:
        return None
    return _due(lay_out_cleared(snapshot, estimate), _reason_after_turn).fold


def fold_on_request(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """What a summary takes in that somebody asks for, whatever the triggers say; None when it would shrink nothing."""
    return foldable(lay_out_cleared(snapshot, estimate)).fold("requested")


def would_be_pruned(snapshot: Snapshot, estimate: Estimate) -> bool:
    """Whether the prompt of this snapshot is at the prune threshold as it stands."""
    return foldable_within_shares(lay_out_cleared(snapshot, estimate)).window.at_prune_trigger


def is_near_threshold(window: Cost) -> bool:
    """Whether the window's input tokens are so near to the summary trigger, prune trigger or input budget that the
    estimate alone cannot tell on which side of it it is."""
    policy, budget, input_tokens = window.snapshot.policy, window.budget, window.input_tokens
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    thresholds = (trigger, policy.prune_from(budget.input_budget), budget.input_budget)
    return any(each is not None and abs(input_tokens - each) <= NEAR_SHARE * each for each in thresholds)


def exact_ratio(prompt: Prompt, counted_tokens: int) -> float | None:
    """What makes the wire estimate of this prompt the provider's count; None for a count that cannot be meant so.

    Beyond the bounds that hold for every calibration it is not the tokenizer that differs.
    """
    ratio = counted_tokens / max(1, prompt.wire_tokens)
    return ratio if LOWEST_RATIO <= ratio <= HIGHEST_RATIO else None


def trigger_tokens(policy: ContextPolicy, limit_tokens: int, input_budget: int) -> int | None:
    """Input tokens at which the policy asks for a summary, the lowest of its triggers; None when it never does."""
    if not policy.summarizes:
        return None
    trigger = policy.summary_from(input_budget)
    by_trigger = None if trigger is None else int(trigger)
    by_usage = _usage_tokens(policy, limit_tokens, input_budget)
    at_prune = int(policy.prune_from(input_budget))
    return min(tokens for tokens in (by_trigger, by_usage, at_prune) if tokens is not None)


def turns_to_next_summary(snapshot: Snapshot) -> int | None:
    """Completed turns until one is made whatever it costs; None when the policy counts no turns."""
    turns = snapshot.policy.mandatory_summary_turn
    return None if turns is None else max(0, turns - snapshot.completed_since_summary)


def _reason_after_turn(window: Cost) -> SummaryReason | None:
    if _at_trigger(window):
        return "threshold"
    return "turn_count" if turns_to_next_summary(window.snapshot) == 0 else _by_usage(window)


def _usage_tokens(policy: ContextPolicy, limit_tokens: int, input_budget: int) -> int | None:
    """Never above the prune threshold, so that it can fire before a refusal (contract.md, decision 1)."""
    share = policy.usage_threshold
    return None if share is None else int(min(share * limit_tokens, policy.prune_trigger_ratio * input_budget))


def _at_trigger(window: Cost) -> bool:
    trigger = window.snapshot.policy.summary_from(window.budget.input_budget)
    return trigger is not None and window.input_tokens >= trigger


def _by_usage(window: Cost) -> SummaryReason | None:
    policy = window.snapshot.policy
    threshold = _usage_tokens(policy, window.budget.limit, window.budget.input_budget)
    if threshold is not None and window.input_tokens >= threshold:
        return "usage"
    most = policy.max_messages
    raw_messages = window.snapshot.past.messages[-1]
    return "message_count" if most is not None and raw_messages >= most else None


def fold_behind_answer(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """What a summary in the background is to take in, of a snapshot whose running turn has no message yet."""
    fold = fold_after_turn(snapshot, estimate)
    return fold or (_fold_of_next_turn(snapshot, estimate) if snapshot.policy.summarizes_ahead else None)


def may_fold_behind_answer(snapshot: Snapshot, laid_out_tokens: int, reply_tokens: int) -> bool:
    """Whether `fold_behind_answer` may find something once the turn of this snapshot, whose window cost so many input
    tokens as it was laid out, has completed with such a reply.

    A sum in place of a window laid out anew, for every turn asks: false only where nothing is found in a session that
    nobody changes meanwhile.
    """
    policy, budget = snapshot.policy, snapshot.budget
    turns = policy.mandatory_summary_turn
    if turns is not None and snapshot.completed_since_summary + 1 >= turns:
        return True
    current_tokens = framed_tokens(snapshot.current.messages)
    past, said = snapshot.past, current_tokens + reply_tokens + MESSAGE_FRAMING_TOKENS
    raw_messages = past.messages[-1] + len(snapshot.current.messages) + 1
    if policy.max_messages is not None and raw_messages >= policy.max_messages:
        return True
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    if trigger is None:
        return False
    ratio = snapshot.calibration_ratio
    # A smaller message leaves the output more, where it has a share; and the window's own limit takes no calibration.
    of_output = ceil(current_tokens * budget.output_pct / 100)
    of_window = floor(min(1.0, ratio) * (budget.input_budget + budget.overhead_reserve)) - budget.overhead_reserve
    most = ceil(ratio * (reply_tokens + MESSAGE_FRAMING_TOKENS + _average(past, said) + MESSAGE_FRAMING_TOKENS)) + 1
    return laid_out_tokens + most >= min(trigger, of_window) - of_output


def _fold_of_next_turn(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    seq = snapshot.past.last_seq + 1
    tokens = _average(snapshot.past)
    says = Message(MessageId(_NOBODY), TurnId(_NOBODY), seq, "user", "", tokens)
    turn = Turn(TurnId(_NOBODY), snapshot.current.seq, TurnStatus.RUNNING, unresolved=True, messages=(says,))
    next_snapshot = with_shared_budget(replace(snapshot, current=turn), estimate)
    return due_before_call(lay_out_cleared(next_snapshot, estimate)).fold


def _average(past: Past, *more_tokens: int) -> int:
    """Wire tokens of an average turn that is sent, those of `more_tokens` among them."""
    turns = past.sent_turn_count + len(more_tokens)
    return ceil((past.wire_tokens() + sum(more_tokens)) / turns) if turns else 0
