"""What to do when the provider rejects a prompt as too long: the budget to plan with again, and the window to learn.

The provider's figures decide by how much to shrink, and `plan` decides again within the smaller budget. In the design
`turn_atomic` the oldest turns are dropped at once and not summarized, since the client has waited for one call already.
A note about them is put into the summary, because later summaries take it over from there.
"""

from __future__ import annotations

from math import ceil, floor

from app.domain.errors import StatedOverflow
from app.domain.frozen import replace
from app.domain.types import SummaryBody
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import wire_tokens_of
from app.engine.policy.budget import Budget, learned_budget, part_of
from app.engine.summary.block import fit_summary
from app.engine.summary.fold import Fold
from app.engine.window.calibration import HIGHEST_RATIO, LOWEST_RATIO
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Cost, summary_item

MAX_REACTIONS = 2
SMALLEST_WINDOW_TOKENS = 1281
"""A smaller window has no input budget, so a smaller number in a provider's message is not its window."""
_ABSURD_PART = 32
"""A stated limit below 1/32 of the assumed window is not a window. 1/32 itself is common: 128k published, 4k served."""
_MARGIN_SHARE = 0.03
"""Margin as a fraction of the tokens sent. It is doubled for the second reaction."""
_MIN_MARGIN_TOKENS = 16
_BLIND_SHARE = 0.7


def react(reactions_so_far: int, stated: StatedOverflow, sent: Cost, output_tokens: int) -> Budget | None:
    """The budget of another try, or None after two, by the overage or the window that the provider stated, or by a
    share of what was sent.

    `sent` is the window of the rejected prompt, `output_tokens` its requested output. A prompt with the same tools that
    fits the new budget has fewer wire tokens, by as much as the figures require, and is within a learned window.
    """
    budget, calibration_ratio = sent.budget, sent.snapshot.calibration_ratio
    if reactions_so_far >= MAX_REACTIONS:
        return None
    limit = learned_limit(
        stated, configured=budget.limit, sent_wire_tokens=sent.wire_tokens, output_tokens=output_tokens
    )
    new = budget if limit is None else learned_budget(limit, sent.snapshot.policy.max_output_tokens, budget)
    margin = max(_MIN_MARGIN_TOKENS, ceil(sent.wire_tokens * _MARGIN_SHARE * (reactions_so_far + 1)))
    overage = _overage(stated, sent.wire_tokens, output_tokens)
    room = new.wire_room(overhead_tokens=sent.overhead_tokens, calibration_ratio=calibration_ratio)
    if overage is not None:
        target = sent.wire_tokens - overage - margin
    elif limit is not None and room <= sent.wire_tokens - margin:
        target = room
    else:
        target = floor(part_of(_BLIND_SHARE, sent.wire_tokens))
    # Messages are removed and tools are kept, so the overhead of the next prompt is at most that of this one.
    input_tokens = floor(target * calibration_ratio) - min(new.overhead_reserve, sent.overhead_tokens)
    return replace(new, input_budget=min(input_tokens, budget.input_budget, new.input_budget))


def learned_limit(stated: StatedOverflow, *, configured: int, sent_wire_tokens: int, output_tokens: int) -> int | None:
    """The window that a provider stated, in tokens, if it is new and consistent with what was sent; else None.

    It must be below `configured`, the window assumed so far, but not below 1/32 of it, which would be another figure.
    And more tokens than this limit must have been sent: by the provider's own count, if that is plausible for this
    prompt; without a count, by our estimate `sent_wire_tokens` plus the requested output.
    """
    limit = stated.limit_tokens
    least = max(SMALLEST_WINDOW_TOKENS, configured // _ABSURD_PART)
    if not stated.limit_is_window or limit is None or not least <= limit < configured:
        return None
    requested = stated.requested_tokens or stated.prompt_tokens
    if requested is None:
        return limit if sent_wire_tokens + output_tokens > limit else None
    prompt = stated.prompt_tokens or requested - output_tokens
    agrees = LOWEST_RATIO <= prompt / sent_wire_tokens <= HIGHEST_RATIO
    total = max(requested, prompt + output_tokens)
    return limit if agrees and total > limit else None


def _overage(stated: StatedOverflow, sent_wire_tokens: int, output_tokens: int) -> int | None:
    """By how many of our tokens prompt and output were over, by the ratio of both counts of the same prompt; None if
    that was not stated or is not plausible."""
    limit, requested, prompt = stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens
    if requested is None and prompt is not None:
        requested = prompt + output_tokens
    if limit is None or requested is None or not 0 < limit < requested:
        return None
    ratio = (requested - output_tokens if prompt is None else prompt) / sent_wire_tokens
    overage = ceil((requested - limit) / min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio)))
    return overage if overage < sent_wire_tokens else None


def emergency_fold(snapshot: Snapshot, estimate: Estimate) -> Fold | None:
    """A fold of the oldest share of the past turns, by number and rounded up, without an unresolved latest one. None if
    the policy has no such share, or no turn can be dropped."""
    policy = snapshot.policy
    if policy.emergency_drop_ratio is None:
        return None
    past = snapshot.past
    may_go = past.turn_count - past.is_unresolved
    leaving = past.turns_between(0, ceil(part_of(policy.emergency_drop_ratio, may_go)))
    leaving_tokens = wire_tokens_of(leaving)
    if not leaving_tokens:
        return None
    cap_tokens = policy.most_summary_tokens(snapshot.budget.input_budget)
    previous = snapshot.summary
    previous_tokens = summary_item(previous, policy, estimate).wire_tokens if previous else 0
    folded_tokens = leaving_tokens + previous_tokens
    return Fold("provider_overflow", leaving, (), previous, previous_tokens, folded_tokens, cap_tokens)


def emergency_summary(fold: Fold, estimate: Estimate) -> SummaryBody | None:
    """The note about the dropped turns, followed by the previous summary; None if they cannot be cut to the cap."""
    first, last = fold.turns[0].seq, fold.turns[-1].seq
    which = f"Turn {first}" if first == last else f"Turns {first} to {last}"
    note = f"{which} of this conversation left at once and unread, because the model's provider took no more."
    body = SummaryBody(note)
    if fold.previous:
        previous = fold.previous.body
        body = replace(previous, summary_text=f"{note}\n{previous.summary_text}")
    return fit_summary(body, fold.cap_tokens, estimate)
