"""The figures of contract section 8."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.engine.policy.budget import Budget, budget_for


def _hundredths(count: int) -> float:
    return count / 100


@pytest.mark.parametrize(
    ("limit", "max_output_tokens", "output_reserve", "overhead_reserve", "input_budget"),
    [
        (1, 2048, 0, 1024, -1023),
        (1280, 2048, 256, 1024, 0),
        (1281, 2048, 256, 1024, 1),
        (4096, 2048, 819, 1024, 2253),
        (8192, 2048, 1638, 1024, 5530),
        (16_384, 2048, 2048, 1024, 13_312),
        (128_000, 2048, 2048, 6400, 119_552),
        (1_000_000, 2048, 2048, 50_000, 947_952),
        # The output takes what it may, and never more than a fifth of the window.
        (1280, 1, 1, 1024, 255),
        (8192, 512, 512, 1024, 6656),
        (16_384, 4096, 3276, 1024, 12_084),
        (128_000, 8192, 8192, 6400, 113_408),
        # The overhead reserve grows from 20,500 on.
        (20_480, 2048, 2048, 1024, 17_408),
        (20_500, 2048, 2048, 1025, 17_427),
    ],
)
def test_the_reserves_and_the_input_budget_are_the_contracts(
    limit: int, max_output_tokens: int, output_reserve: int, overhead_reserve: int, input_budget: int
) -> None:
    budget = budget_for(limit, "catalogue", max_output_tokens)
    assert budget == Budget(limit, "catalogue", output_reserve, overhead_reserve, input_budget)
    assert budget.prompt_ceiling == limit - output_reserve


@given(st.integers(1, 4_000_000), st.integers(1, 200_000))
def test_the_three_parts_of_a_window_always_make_the_window(limit: int, max_output_tokens: int) -> None:
    budget = budget_for(limit, "test", max_output_tokens)
    assert budget.input_budget + budget.output_reserve + budget.overhead_reserve == limit
    assert budget.output_reserve == min(max_output_tokens, limit // 5)
    assert budget.overhead_reserve == max(1024, limit // 20)


@pytest.mark.parametrize(
    ("wire_tokens", "overhead_tokens", "calibration_ratio", "counted"),
    [
        (1000, 100, 1.0, 900),
        # What framing and tools need beyond the reserve counts against the input budget.
        (3000, 1024, 1.0, 1976),
        (3000, 1500, 1.0, 1976),
        # The calibration scales the whole wire estimate, before the reserve pays its part; fractions round up.
        (1000, 100, 1.5, 1400),
        (1001, 100, 1.5, 1402),
        (1000, 100, 0.5, 400),
        # What the reserve does not need stays with it.
        (20, 15, 0.5, 0),
    ],
)
def test_input_tokens_are_the_calibrated_wire_less_what_the_overhead_reserve_pays(
    wire_tokens: int, overhead_tokens: int, calibration_ratio: float, counted: int
) -> None:
    budget = budget_for(16_384, "test", 2048)
    assert counted == budget.input_tokens(
        wire_tokens=wire_tokens, overhead_tokens=overhead_tokens, calibration_ratio=calibration_ratio
    )


@given(
    st.integers(1, 2_000_000), st.integers(0, 3000), st.one_of(st.floats(0.5, 3), st.integers(50, 300).map(_hundredths))
)
@example(131_861, 733, 2.45)
def test_a_prompt_of_the_wire_room_fits_and_one_token_more_does_not(
    input_budget: int, overhead_tokens: int, calibration_ratio: float
) -> None:
    budget = Budget(input_budget + 3072, "test", 2048, 1024, input_budget)
    room = budget.wire_room(overhead_tokens=overhead_tokens, calibration_ratio=calibration_ratio)
    counted, one_more = (
        budget.input_tokens(
            wire_tokens=wire_tokens, overhead_tokens=overhead_tokens, calibration_ratio=calibration_ratio
        )
        for wire_tokens in (room, room + 1)
    )
    assert counted <= input_budget < one_more


@pytest.mark.parametrize(
    ("input_budget", "calibration_ratio", "room"),
    [(48_378, 1.1, 43_979), (71_995, 1.1, 65_450), (1000, 1.0, 1000)],  # the division is rounded up, down, not at all
)
def test_the_room_on_the_wire_is_the_most_that_fits(input_budget: int, calibration_ratio: float, room: int) -> None:
    budget = Budget(128_000, "test", 0, 0, input_budget)
    assert budget.wire_room(overhead_tokens=0, calibration_ratio=calibration_ratio) == room
    fits, over = (
        budget.input_tokens(wire_tokens=each, overhead_tokens=0, calibration_ratio=calibration_ratio)
        for each in (room, room + 1)
    )
    assert fits <= input_budget < over
