"""When a summary is due: before a call and after a turn, by a policy's triggers (contract.md, sections 8 to 10); and
what it may fold.

A summary that the next turn would have to make is already made in the background after the answer before it. It folds
what that turn, with a message as large as an average turn of the window, would fold by the usual rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor
from uuid import UUID

from app.domain.frozen import frozen, replace
from app.domain.types import Message, MessageId
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import framed_tokens
from app.engine.policy.policy import MIN_SUMMARY_TOKENS, ContextPolicy
from app.engine.summary.fold import Fold, SummaryReason
from app.engine.window.calibration import HIGHEST_RATIO, LOWEST_RATIO
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.past import Past, Turns
from app.engine.window.pieces import Piece
from app.engine.window.prompt import Prompt
from app.engine.window.pruning import remains, untouchable
from app.engine.window.shares import division, history_tokens, with_shared_budget
from app.engine.window.shortening import with_fitted_pins, with_fitted_summary
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Cost, Window

NEAR_SHARE = 0.05
"""Distance from a threshold, as a fraction of it, within which the provider's own count is worth a call."""
_WHATEVER_IT_RECLAIMS: frozenset[SummaryReason] = frozenset({"turn_count", "requested"})
_MIN_RECLAIM_SHARE = 0.05
"""Least tokens that a summary below the prune threshold must save, as a fraction of the input budget, or of
`summary_trigger_tokens` if that is lower. If it saved less, the next turn would make the next summary."""
_MIN_MESSAGES_SHARE = 0.5
"""Least messages to fold, as a fraction of `max_messages`. Else protected turns alone could fire it at every turn."""


def due_before_call(window: Window) -> tuple[SummaryReason | None, Fold | None]:
    """Why a summary must be tried before this window is sent, and its fold; None if none is worth making, or none could
    be sent together with the content that is never removed."""
    return _due(window, reason_before_call, before_call=True)


def _due(
    window: Window, reason_of: Callable[[Cost], SummaryReason | None], *, before_call: bool = False
) -> tuple[SummaryReason | None, Fold | None]:
    # Finding what a summary could fold may walk through the whole window, so do it only if one may be due. Shares do
    # not change a window that fits.
    if (window.snapshot.policy.allocation is None or window.excess_tokens <= 0) and reason_of(window) is None:
        return None, None
    found = foldable_within_shares(window)
    reason = reason_of(found.window) if found.room_tokens >= MIN_SUMMARY_TOKENS else None
    fold = found.fold(reason) if reason else None
    worth = fold and worth_making(fold, found, before_call=before_call)
    return reason, fold if worth else None


def reason_before_call(window: Cost) -> SummaryReason | None:
    """Why a summary must be tried, or None. With an allocation, `window` has its pins and summary within their shares.

    At the prune threshold every policy that summarizes tries one: a summary preserves more than a prune does, and
    nothing is lost if one in the background has crashed.
    """
    policy = window.snapshot.policy
    if policy.allocation is not None and policy.summarizes and window.is_over:
        return "allocation"
    if policy.summarizes_before_calls:
        by_usage = None if policy.summarizes_after_turns else _by_usage(window)
        if reason := _by_size_or_turns(window) or by_usage:
            return reason
        if window.wire_tokens > window.budget.prompt_ceiling:
            return "window"
    return "threshold" if policy.summarizes and window.at_prune_trigger else None


def worth_making(fold: Fold, found: Foldable, *, before_call: bool) -> bool:
    """Whether the fold saves enough, or has a reason that requires no minimum; before a call, also if the window would
    be pruned without it, but not with an allocation: pins may fill such a window and cause a summary at every turn.
    Turns dropped meanwhile are folded later."""
    policy = found.window.snapshot.policy
    if before_call and policy.allocation is None and found.window.at_prune_trigger:
        return True
    if fold.reason == "message_count":
        return len(fold.sources) >= _MIN_MESSAGES_SHARE * (policy.max_messages or 0)
    least_tokens = _MIN_RECLAIM_SHARE * policy.summarized_room(found.window.budget.input_budget)
    return fold.reason in _WHATEVER_IT_RECLAIMS or fold.folded_tokens - fold.previous_tokens >= least_tokens


def fold_before_refusal(window: Window, refused: Window) -> Fold | None:
    """The fold of a summary without which the turn is refused: `window` was fitted as far as its stages may, to
    `refused`, and is still too large. None if the policy makes no summaries or shields the protected turns (not
    `prune_protected`), or none would fit either.

    It includes the protected turns that do not fit beside it, the newest and an unresolved one too: nothing would make
    them smaller, so without it each further turn would be refused.
    """
    reason, policy = reason_before_call(window), window.snapshot.policy
    if reason is None or not policy.prune_protected:
        return None
    for_past = room_beside(refused, refused.current)
    room_tokens = min(for_past, policy.most_summary_tokens(window.budget.input_budget))
    past, beside = window.snapshot.past, for_past - room_tokens
    cut = past.first_protected(policy.protected_turns, beside)
    if past.wire_tokens(cut) > beside:
        cut = past.turn_count
    previous_tokens = window.summary.wire_tokens if window.summary else 0
    return Foldable(refused, cut, previous_tokens, room_tokens, room_tokens).fold(reason)


def fold_after_turn(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """The fold that is due by the triggers after a turn, or None. The running turn of the snapshot has no message."""
    if not snapshot.policy.summarizes_after_turns:
        return None
    return _due(lay_out_cleared(snapshot, estimate), _reason_after_turn)[1]


def fold_on_request(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """The fold of a summary on request, whatever the triggers say. None when it would shrink nothing."""
    return foldable(lay_out_cleared(snapshot, estimate)).fold("requested")


def would_be_pruned(snapshot: Snapshot, estimate: Estimate) -> bool:
    """Whether the prompt of this snapshot is at the prune threshold if no summary is made."""
    return foldable_within_shares(lay_out_cleared(snapshot, estimate)).window.at_prune_trigger


def is_near_threshold(window: Cost) -> bool:
    """Whether the window's input tokens are so near to the summary trigger, prune threshold or input budget that the
    estimate alone cannot tell which side they are on."""
    policy, budget, input_tokens = window.snapshot.policy, window.budget, window.input_tokens
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    thresholds = (trigger, policy.prune_from(budget.input_budget), budget.input_budget)
    return any(each is not None and abs(input_tokens - each) <= NEAR_SHARE * each for each in thresholds)


def exact_ratio(prompt: Prompt, counted_tokens: int) -> float | None:
    """The ratio of the provider's count to the wire estimate of this prompt; None if it is outside the bounds of every
    calibration: then the difference is not caused by the tokenizer."""
    ratio = counted_tokens / max(1, prompt.wire_tokens)
    return ratio if LOWEST_RATIO <= ratio <= HIGHEST_RATIO else None


def trigger_tokens(policy: ContextPolicy, limit_tokens: int, input_budget: int) -> int | None:
    """Input tokens at which the policy makes a summary, the lowest of its triggers; None when it never does."""
    if not policy.summarizes:
        return None
    by_usage = policy.usage_from(limit_tokens, input_budget)
    triggers = (policy.summary_from(input_budget), by_usage, policy.prune_from(input_budget))
    return min(tokens for tokens in triggers if tokens is not None)


def turns_to_next_summary(snapshot: Snapshot) -> int | None:
    """Completed turns until a summary is due by the turn count; None when the policy counts no turns."""
    turns = snapshot.policy.mandatory_summary_turn
    return None if turns is None else max(0, turns - snapshot.completed_since_summary)


def _reason_after_turn(window: Cost) -> SummaryReason | None:
    return _by_size_or_turns(window) or _by_usage(window)


def _by_size_or_turns(window: Cost) -> SummaryReason | None:
    trigger = window.snapshot.policy.summary_from(window.budget.input_budget)
    if trigger is not None and window.input_tokens >= trigger:
        return "threshold"
    return "turn_count" if turns_to_next_summary(window.snapshot) == 0 else None


def _by_usage(window: Cost) -> SummaryReason | None:
    policy = window.snapshot.policy
    threshold = policy.usage_from(window.budget.limit, window.budget.input_budget)
    if threshold is not None and window.input_tokens >= threshold:
        return "usage"
    most = policy.max_messages
    raw_messages = window.snapshot.past.messages[-1]
    return "message_count" if most is not None and raw_messages >= most else None


def fold_behind_answer(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """The fold of a summary in the background, or None. The running turn of the snapshot has no message."""
    fold = fold_after_turn(snapshot, estimate)
    return fold or (_fold_of_next_turn(snapshot, estimate) if snapshot.policy.summarizes_ahead else None)


def may_fold_behind_answer(snapshot: Snapshot, laid_out_tokens: int, reply_tokens: int) -> bool:
    """Whether `fold_behind_answer` may find a fold once the turn of this snapshot has completed: false only if it will
    not, unless the session is changed meanwhile. The turn's window was laid out with `laid_out_tokens` input tokens,
    and its reply has `reply_tokens`. Every turn calls this, so it computes a sum and lays out no window."""
    policy, budget = snapshot.policy, snapshot.budget
    turns = policy.mandatory_summary_turn
    if turns is not None and snapshot.completed_since_summary + 1 >= turns:
        return True
    current_tokens = framed_tokens(snapshot.current.messages)
    past, added = snapshot.past, current_tokens + reply_tokens + MESSAGE_FRAMING_TOKENS
    raw_messages = past.messages[-1] + len(snapshot.current.messages) + 1
    if policy.max_messages is not None and raw_messages >= policy.max_messages:
        return True
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    if trigger is None:
        return False
    ratio = snapshot.calibration_ratio
    # With an output share, a smaller message enlarges the output reserve. The window itself takes no calibration.
    of_output = ceil(current_tokens * budget.output_pct / 100)
    of_window = floor(min(1.0, ratio) * (budget.input_budget + budget.overhead_reserve)) - budget.overhead_reserve
    most = ceil(ratio * (reply_tokens + MESSAGE_FRAMING_TOKENS + _average(past, added) + MESSAGE_FRAMING_TOKENS)) + 1
    return laid_out_tokens + most >= min(trigger, of_window) - of_output


def _fold_of_next_turn(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    seq = snapshot.past.last_seq + 1
    tokens = _average(snapshot.past)
    says = Message(MessageId(UUID(int=0)), snapshot.current.id, seq, "user", "", tokens)
    next_turn = replace(snapshot.current, messages=(says,))
    next_snapshot = with_shared_budget(replace(snapshot, current=next_turn), estimate)
    return due_before_call(lay_out_cleared(next_snapshot, estimate))[1]


def _average(past: Past, *more_tokens: int) -> int:
    """Average wire tokens of the turns, where each of `more_tokens` counts as one more turn; 0 without turns."""
    turns = past.turn_count + len(more_tokens)
    return ceil((past.wire_tokens() + sum(more_tokens)) / turns) if turns else 0


@frozen
class Foldable:
    """What a summary may fold: the turns of `window`, which is sent without one, before position `first_protected`.

    `room_tokens` is the largest summary that the policy allows and that fits beside the content that is never removed,
    negative when that alone is over the budget. `room_if_cited` is what fits if it cites all protected messages, which
    then stay. `previous_tokens` are the wire tokens of the current summary before it is shortened to its share.
    """

    window: Window
    first_protected: int
    previous_tokens: int
    room_tokens: int
    room_if_cited: int

    def fold(self, reason: SummaryReason) -> Fold | None:
        """The fold of a summary made now, or None when it would not shrink anything. Its cap is never over
        `room_tokens`: a summary that was paid for must not cause the refusal of the turn."""
        past, previous = self.window.snapshot.past, self.window.snapshot.summary
        older_tokens = past.wire_tokens() - past.wire_tokens(self.first_protected)
        folded_tokens = older_tokens + self.previous_tokens
        cap_tokens = min(folded_tokens * 3 // 4, self.room_tokens)
        if not older_tokens or cap_tokens < MIN_SUMMARY_TOKENS:
            return None
        older = Turns(past, 0, self.first_protected)
        protected = Turns(past, self.first_protected, past.turn_count)
        cites = cap_tokens <= self.room_if_cited
        return Fold(reason, older, protected, previous, self.previous_tokens, folded_tokens, cap_tokens, cites)


def foldable(window: Window) -> Foldable:
    """What a summary may fold under a policy without an allocation."""
    most_tokens = window.snapshot.policy.most_summary_tokens(window.budget.input_budget)
    room_tokens = min(most_tokens, room_beside(window, untouchable(window)))
    previous_tokens = window.summary.wire_tokens if window.summary else 0
    if_cited = room_beside(window, window.protected)
    return Foldable(window, window.snapshot.first_protected(), previous_tokens, room_tokens, if_cited)


def room_beside(window: Window, pieces: Sequence[Piece]) -> int:
    """The largest summary, without framing, that fits beside the head and these pieces."""
    head = [item for item in window.head if item.region != "summary"]
    beside = (*head, *window.recalled, *pieces)
    less_tokens = window.tokens - sum(each.tokens for each in beside)
    less_messages = window.messages - sum(each.messages for each in beside)
    left = window.budget.input_budget - window.input_tokens_without(less_tokens, less_messages)
    return floor(left / window.snapshot.calibration_ratio) - MESSAGE_FRAMING_TOKENS


def foldable_within_shares(window: Window) -> Foldable:
    """What a summary within its share may fold. Pins and the current summary are first cut to what they are offered.

    Protected turns that would not fit beside a full summary would be dropped, so the summary may fold them before that.
    """
    snapshot, policy = window.snapshot, window.snapshot.policy
    if policy.allocation is None:
        return foldable(window)
    within = division(window)
    share = within.shares["summary"]
    trimmed = window
    if window.excess_tokens > 0:
        trimmed = with_fitted_summary(window, within.offered["summary"])
        trimmed = with_fitted_pins(trimmed, within.offered["pins"])
    full_tokens = max(share, trimmed.summary.tokens if trimmed.summary else 0)
    beside = division(window, summary_tokens=full_tokens)
    # The running turn's own tool rounds are sent in any case.
    for_past = beside.offered["history"] - history_tokens(window.current)
    past, cut = snapshot.past, snapshot.first_protected()
    if policy.prune_protected and past.wire_tokens(cut) > for_past:
        cut = past.first_protected(policy.protected_turns, for_past)
        if past.wire_tokens(cut) > for_past:
            cut = past.first_protected(0, None)
    room_tokens = min(share, room_beside(trimmed, remains(trimmed)), window.budget.input_budget)
    previous_tokens = window.summary.wire_tokens if window.summary else 0
    return Foldable(trimmed, cut, previous_tokens, room_tokens, room_tokens)
