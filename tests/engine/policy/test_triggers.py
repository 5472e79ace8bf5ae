"""From which whole number of tokens on a policy acts: the first that is not below its share."""

from __future__ import annotations

import pytest

from app.engine.policy.presets import PRESETS

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
