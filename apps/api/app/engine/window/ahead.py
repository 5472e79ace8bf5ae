"""What is made behind a turn's answer: a summary that is due by then, and one that the next turn would have to make.

The next turn is taken to bring a message as large as an average turn of the window, and is decided as it will be. So
what is made ahead takes in just what that turn would have folded before its call, for the same reason.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor
from uuid import UUID

from app.domain.types import Message, MessageId, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import Fold
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.past import Past
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import due_before_call, fold_after_turn, trigger_tokens
from app.engine.window.window import Window

_NOBODY = UUID(int=0)


def fold_behind_answer(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Fold | None:
    """What a summary in the background is to take in, of a snapshot whose running turn has no message yet."""
    fold = fold_after_turn(snapshot, policy, estimate)
    return fold or (_fold_of_next_turn(snapshot, policy, estimate) if policy.summarizes_ahead else None)


def may_fold_behind_answer(window: Window, reply_tokens: int, policy: ContextPolicy) -> bool:
    """Whether `fold_behind_answer` may find something once the turn of this window has completed with such a reply.

    A sum in place of a window laid out anew, for every turn asks: false only where nothing is found in a session that
    nobody changes meanwhile.
    """
    snapshot, budget = window.snapshot, window.budget
    turns = policy.mandatory_summary_turn
    if turns is not None and snapshot.completed_since_summary + 1 >= turns:
        return True
    past, said = snapshot.past, _tokens_of(snapshot.current) + reply_tokens + MESSAGE_FRAMING_TOKENS
    raw_messages = past.messages[-1] + len(snapshot.current.messages) + 1
    if policy.max_messages is not None and raw_messages >= policy.max_messages:
        return True
    trigger = trigger_tokens(policy, budget.limit, budget.input_budget)
    if trigger is None:
        return False
    ratio = snapshot.calibration_ratio
    # A smaller message leaves the output more, where it has a share; and the window's own limit takes no calibration.
    of_output = ceil(_tokens_of(snapshot.current) * budget.output_pct / 100)
    of_window = floor(min(1.0, ratio) * (budget.input_budget + budget.overhead_reserve)) - budget.overhead_reserve
    most = ceil(ratio * (reply_tokens + MESSAGE_FRAMING_TOKENS + _average(past, said) + MESSAGE_FRAMING_TOKENS)) + 1
    return window.log.tokens_after_summary + most >= min(trigger, of_window) - of_output


def _fold_of_next_turn(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Fold | None:
    seq = snapshot.past.last_seq + 1
    tokens = _average(snapshot.past)
    says = Message(MessageId(_NOBODY), TurnId(_NOBODY), seq, "user", "", tokens)
    turn = Turn(TurnId(_NOBODY), snapshot.current.seq, TurnStatus.RUNNING, unresolved=True, messages=(says,))
    next_snapshot = with_shared_budget(replace(snapshot, current=turn), policy, estimate)
    return due_before_call(lay_out_cleared(next_snapshot, policy, estimate), policy).fold


def _average(past: Past, *more_tokens: int) -> int:
    """Wire tokens of an average turn that is sent, those of `more_tokens` among them."""
    turns = past.sent_turn_count + len(more_tokens)
    return ceil((past.wire_tokens() + sum(more_tokens)) / turns) if turns else 0


def _tokens_of(turn: Turn) -> int:
    return sum(message.tokens + MESSAGE_FRAMING_TOKENS for message in turn.messages)
