"""Trim logs name ranges; what they stand for is what their prompts were sent without, each message counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.audit import TrimAction
from app.domain.types import JsonObject, TurnStatus
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.simulation import Losses
from app.engine.simulation.stored_losses import StoredLosses
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.snapshot import in_ranges
from tests.engine.histories import GUARDED, History, chat, estimate, snapshot_of

_PRUNES = replace(GUARDED, summarize_when="never", protected_turns=2)


def _log(*actions: TrimAction) -> list[JsonObject]:
    return [action.public() for action in actions]


@pytest.mark.parametrize(
    "policy",
    [_PRUNES, replace(_PRUNES, prune_order="value"), replace(_PRUNES, prune_block_share=0.3)],
    ids=["oldest first", "by value", "in blocks"],
)
def test_ranges_have_the_targets_that_were_dropped_one_by_one(policy: ContextPolicy) -> None:
    history = History()
    turns = [
        history.turn(("tool_group", 30, 2), ("assistant", 50, 1), user_tokens=15)
        if at % 3 == 0
        else history.turn(("assistant", 30 * (at % 3), 1), user_tokens=15)
        for at in range(40)
    ]
    stored, singly, ranges = StoredLosses(), Losses(), 0
    for at, turn in enumerate(turns):
        running = replace(turn, status=TurnStatus.RUNNING, unresolved=True, messages=turn.messages[:1])
        ready = plan(snapshot_of(tuple(turns[:at]), running, input_budget=900, policy=policy), estimate)
        assert isinstance(ready, Ready)
        actions = in_ranges(ready.accounts.actions)
        ranges += sum(action.seqs is not None for action in actions)
        singly.note(ready.accounts.actions)
        stored.feed(turn, [(_log(*actions), assemble(ready).refs)])
    assert ranges > 20
    assert {"assistant_dropped", "tool_group_dropped"} <= stored.times.keys()
    assert stored.times == singly.times
    for kind in ("assistant_dropped", "tool_group_dropped"):
        assert stored.targets_of(kind) == len(singly.targets[kind])


def test_other_ranges_count_once_where_they_overlap_and_what_is_named_inside_of_them_does_not_count_again() -> None:
    turns = chat(History(), 4)
    inside, outside = turns[0].messages[1], turns[3].messages[1]
    log = _log(
        TrimAction("tool_result_shortened", "messages:1-3", "prune_threshold", 5, 2),
        TrimAction("tool_result_shortened", "messages:2-5", "prune_threshold", 5, 3),
        TrimAction("tool_result_shortened", f"message:{inside.id}", "prune_threshold", 5),
        TrimAction("tool_result_shortened", f"message:{outside.id}", "prune_threshold", 5),
        TrimAction("tool_result_shortened", "message:unknown", "prune_threshold", 5),
        TrimAction("summary_folded", "turns:1-2", "turn_count", 5, 2),
    )
    losses = StoredLosses()
    for turn in turns:
        losses.feed(turn, [(log, None)] if turn is turns[-1] else ())
    assert losses.times == {"tool_result_shortened": 8}
    assert losses.targets_of("tool_result_shortened") == 3 + 2


def test_a_log_of_as_many_ranges_as_a_session_has_messages_is_counted_from_gap_to_gap() -> None:
    """An import may have one. Comparing each range with each of its messages, 20,000 of both took minutes."""
    turns = chat(History(), 10_000, user_tokens=1, assistant_tokens=1)
    sent, dropped = turns[-1].messages[-1].seq, turns[0].messages[1].seq
    log = _log(*[TrimAction("assistant_dropped", f"messages:1-{sent}", "prune_threshold", 1, 2)] * 20_000)
    losses = StoredLosses()
    for turn in turns:
        refs: JsonObject = {"items": [["m", dropped + 1, sent]], "tools": None}
        losses.feed(turn, [(log, refs)] if turn is turns[-1] else ())
    assert losses.targets_of("assistant_dropped") == 1
