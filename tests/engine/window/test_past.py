"""A settled past: what is appended is as if it had been there at once, and its sums are those of its pieces."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import Turn, TurnStatus
from app.engine.messages.turns import sendable_messages, wire_tokens_of
from app.engine.policy.budget import Budget
from app.engine.policy.policy import PruneUnit
from app.engine.window.columns import Columns
from app.engine.window.past import Past, past_of, past_of_columns, pieces_from
from app.engine.window.pieces import Piece, pieces_of
from app.engine.window.plan import Ready, plan
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import GUARDED, History, budget_of, estimate, snapshot_of
from tests.engine.readings import sent_turns
from tests.engine.strategies import Unit, snapshots

_rooms = st.one_of(st.none(), st.integers(0, 3000))


@given(snapshots(), st.integers(0, 12))
def test_a_past_that_was_extended_is_the_past_that_was_built_at_once(snapshot: Snapshot, cut: int) -> None:
    turns = snapshot.past.turns
    assert past_of(turns[:cut]).extended(turns[cut:]) == past_of(turns)
    one_by_one = Past()
    for turn in turns:
        one_by_one = one_by_one.extended((turn,))
    assert one_by_one == past_of(turns)


def test_the_rounds_of_a_long_tool_loop_leave_nothing_in_memory() -> None:
    rounds_of: list[Unit] = [("tool_group", 5, 1)] * 1_000
    loop = History().turn(*rounds_of, status=TurnStatus.RUNNING)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for rounds in range(900, 1_000):
            assert len(pieces_of(replace(loop, messages=loop.messages[: 1 + 2 * rounds]), "running")) == 1 + rounds
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_rejected_turn_is_in_no_past() -> None:
    history = History()
    turns = tuple(history.turn(("assistant", 10, 1), status=status) for status in (*TurnStatus,) * 2)
    past = past_of(turns)
    assert past.turns == tuple(sent_turns(turns))
    assert past_of(turns[:4]).extended(turns[4:]) == past == past_of(sent_turns(turns))
    columns = Columns(0)
    columns.extend(turns)
    assert [columns.turn(at).id for at in range(columns.turns)] == [turn.id for turn in sent_turns(turns)]


@given(snapshots(), st.integers(0, 12), st.integers(0, 40), st.integers(0, 40))
def test_the_pieces_of_a_past_that_is_kept_in_part_are_those_of_one_that_is_not(
    snapshot: Snapshot, kept: int, start: int, stop: int
) -> None:
    turns = sent_turns(snapshot.past.turns)
    columns = Columns(0)
    columns.extend(turns[:kept])
    in_part = past_of_columns(columns, 0, columns.turns).extended(turns[kept:]).pieces
    pieces = past_of(turns).pieces
    assert _seqs_and_tokens(in_part[start:stop]) == _seqs_and_tokens(pieces[start:stop])
    for seq in range(start, stop):
        assert _seqs_and_tokens(pieces_from(in_part, seq)) == _seqs_and_tokens(pieces_from(pieces, seq))


def _seqs_and_tokens(pieces: Sequence[Piece]) -> list[tuple[int, int, int, int]]:
    return [(piece.turn_seq, piece.seq, piece.last_seq, piece.tokens) for piece in pieces]


@given(snapshots(), st.integers(0, 12), st.integers(0, 12))
def test_the_tokens_of_a_range_of_turns_are_a_difference_of_prefix_sums(
    snapshot: Snapshot, first: int, end: int
) -> None:
    turns, past = snapshot.past.turns, snapshot.past
    first, end = sorted((min(first, len(turns)), min(end, len(turns))))
    assert past.wire_tokens(first) - past.wire_tokens(end) == wire_tokens_of(turns[first:end])
    assert past.messages[-1] == len(sendable_messages(turns))


@given(snapshots(), st.one_of(st.none(), st.integers(0, 6)), _rooms, st.integers(0, 12))
def test_protected_are_the_newest_sent_turns_that_the_number_and_the_room_allow(
    snapshot: Snapshot, most: int | None, room_tokens: int | None, end: int
) -> None:
    turns = snapshot.past.turns[:end]
    protected = turns[snapshot.past.first_protected(most, room_tokens, len(turns)) :]
    sent, kept = sent_turns(turns), sent_turns(protected)
    bound = len(turns) if most is None else most
    whole = len(turns) == snapshot.past.turn_count  # a turn that another follows is treated as settled
    bound = max(bound, 1 if whole and snapshot.past.is_unresolved else 0)
    assert kept == sent[len(sent) - len(kept) :]
    assert len(kept) <= bound
    if room_tokens is not None and len(kept) > 1:
        assert wire_tokens_of(kept) <= room_tokens
    if len(kept) < min(bound, len(sent)):
        assert room_tokens is not None
        assert kept
        assert wire_tokens_of(sent[-len(kept) - 1 :]) > room_tokens


class _CountingBudget(Budget):
    """A budget that knows how often it was called for what a prompt costs."""

    counts = 0

    def input_tokens(self, *, wire_tokens: int, overhead_tokens: int, calibration_ratio: float = 1.0) -> int:
        _CountingBudget.counts += 1
        return super().input_tokens(
            wire_tokens=wire_tokens, overhead_tokens=overhead_tokens, calibration_ratio=calibration_ratio
        )


def _counts_of_a_plan(pairs: int, unit: PruneUnit, block: float) -> int:
    """How often a plan by value weighs the window of so many turns, of which half leave."""
    history = History()
    turns = tuple(history.turn(("assistant", 30 + at % 23, 1)) for at in range(pairs))
    plain = budget_of(sum(turn.messages[1].tokens + 4 for turn in turns) // 2 + pairs * 14)
    budget = _CountingBudget(plain.limit, "test", plain.output_reserve, plain.overhead_reserve, plain.input_budget)
    policy = replace(GUARDED, auto_summarize=False, prune_order="value", prune_unit=unit, prune_block_share=block)
    snapshot = replace(snapshot_of(turns, history.turn(), input_budget=1, policy=policy), budget=budget)
    _CountingBudget.counts = 0
    decided = plan(snapshot, estimate)
    assert isinstance(decided, Ready)
    assert decided.accounts.actions
    return _CountingBudget.counts


def test_a_prune_by_value_or_in_blocks_weighs_the_window_in_proportion_to_its_turns() -> None:
    units: tuple[PruneUnit, ...] = ("message", "turn")
    for unit in units:
        for block in (0.0, 0.1):
            once, four_times = (_counts_of_a_plan(pairs, unit, block) for pairs in (100, 400))
            assert 0 < four_times < 5 * once


def test_a_long_message_of_the_running_user_keeps_nothing_that_had_left_in_the_prompt() -> None:
    """Its tokens are no history, also while the window is let grow up to it."""
    history = History()
    turns = tuple(history.turn(("assistant", tokens, 1)) for tokens in (200, 40, 40, 200, 40, 40, 40))
    policy = replace(GUARDED, auto_summarize=False, protected_turns=1, prune_order="value")

    def gone(asking: Turn) -> set[str]:
        decided = plan(snapshot_of(turns, asking, input_budget=560, policy=policy), estimate, may_summarize=False)
        return {action.target for action in decided.accounts.actions}

    short = history.turn(user_tokens=10, status=TurnStatus.RUNNING)
    long = history.turn(user_tokens=380, status=TurnStatus.RUNNING)
    assert gone(short)
    assert gone(short) <= gone(long)
