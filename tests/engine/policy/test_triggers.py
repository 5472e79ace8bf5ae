"""From which whole number of tokens on a policy acts: the first that is not below its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.types import TurnStatus
from app.engine.policy.budget import with_output_share
from app.engine.policy.policy import MIN_SUMMARY_TOKENS, PRESETS
from app.engine.window.provider_overflow import emergency_fold
from tests.engine.histories import GUARDED, History, budget_of, chat, estimate, snapshot_of

LIMIT, INPUT_BUDGET = 16_384, 13_312  # 70, 80 and 90 percent: 9,318.4, 13,107.2 of the window, and 11,980.8


@pytest.mark.parametrize(
    ("preset", "summary_from", "usage_from", "prune_from"),
    [
        ("guarded", 9319, None, 11_981),
        ("post_turn", None, 11_981, 11_981),
        ("rolling", None, 11_981, 11_981),
        ("turn_atomic", None, 11_981, 11_981),
    ],
)
def test_a_policy_acts_from_the_first_whole_number_that_is_not_below_its_share(
    preset: str, summary_from: int | None, usage_from: int | None, prune_from: int
) -> None:
    policy = PRESETS[preset].policy
    assert policy.summary_from(INPUT_BUDGET) == summary_from
    assert policy.usage_from(LIMIT, INPUT_BUDGET) == usage_from
    assert policy.prune_from(INPUT_BUDGET) == prune_from


def test_a_share_of_the_window_below_the_prune_threshold_rounds_up_too() -> None:
    assert PRESETS["post_turn"].policy.usage_from(1003, 950) == 803  # 802.4


@given(st.integers(1, 100), st.integers(1, 2_000_000))
@example(55, 100)
@example(29, 100)
def test_shares_are_taken_as_they_are_written(percent: int, tokens: int) -> None:
    """The product of floats 0.55 * 100 is over 55, so it acted at 56; and 0.29 * 100 is under 29."""
    share = percent / 100
    first, whole = -(-percent * tokens // 100), percent * tokens // 100
    policy = replace(
        GUARDED, summary_trigger_ratio=share, prune_trigger_ratio=share, usage_threshold=share, summary_max_ratio=share
    )
    assert policy.summary_from(tokens) == policy.prune_from(tokens) == policy.usage_from(tokens, tokens) == first
    assert policy.most_summary_tokens(tokens) == max(whole, MIN_SUMMARY_TOKENS)


@given(st.integers(1, 999), st.integers(1, 100_000))
@example(7, 8952)
def test_the_output_has_the_share_that_is_written(tenths: int, rest_tokens: int) -> None:
    shared = with_output_share(budget_of(rest_tokens + 2048), tenths / 10, fixed_tokens=2048)
    assert shared.output_reserve == max(64, tenths * (rest_tokens + 2048) // 1000)


def test_turns_that_fit_into_the_protected_share_exactly_are_protected() -> None:
    """0.29 of 200 tokens are 58: two turns of 29."""
    history = History()
    turns = chat(history, 6, user_tokens=10, assistant_tokens=11)
    current = history.turn(status=TurnStatus.RUNNING)
    policy = replace(GUARDED, protected_share=0.29, protected_turns=None)
    snapshot = snapshot_of(turns, current, input_budget=200, policy=policy)
    assert snapshot.past.wire_tokens(4) == 58
    assert snapshot.first_protected() == 4


def test_an_emergency_drops_the_share_of_the_turns_that_is_written() -> None:
    history = History()
    turns, current = chat(history, 100), history.turn(status=TurnStatus.RUNNING)
    policy = replace(GUARDED, emergency_drop_ratio=0.55)
    fold = emergency_fold(snapshot_of(turns, current, input_budget=10_000, policy=policy), estimate)
    assert fold is not None
    assert len(fold.turns) == 55


def test_of_a_ratio_and_a_token_trigger_the_lower_acts_and_summaries_share_what_it_leaves() -> None:
    policy = replace(GUARDED, summary_trigger_ratio=0.7, summary_trigger_tokens=5000, summary_max_ratio=0.1)
    assert (policy.summary_from(100_000), policy.most_summary_tokens(100_000)) == (5000, 500)
    assert (policy.summary_from(2000), policy.most_summary_tokens(2000)) == (1400, 200)
