"""The guard on the estimate: quick upwards, slow downwards, bounded, and moved by no single report."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.budget import budget_for
from app.engine.calibration import Calibration, guard_ratio, observe

_ratios = st.lists(st.floats(0.5, 3.0), max_size=40).map(tuple)
_reports = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**7)), max_size=50)


def _after(ratios: Iterable[float], start: Calibration | None = None) -> Calibration:
    calibration = start or Calibration()
    for ratio in ratios:
        calibration = observe(calibration, estimated=10_000, actual=round(10_000 * ratio))
    return calibration


@given(_reports)
def test_the_guard_is_within_its_bounds_whatever_providers_report(reports: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for estimated, actual in reports:
        calibration = observe(calibration, estimated=estimated, actual=actual)
        assert 0.5 <= guard_ratio(calibration) <= 3.0
        assert len(calibration.ratios) <= 32
        assert all(0.5 <= ratio <= 3.0 for ratio in calibration.ratios)
    assert Calibration(tuple(json.loads(json.dumps(calibration.ratios)))) == calibration


@given(_ratios, st.integers(0, 39), st.floats(0, 2.5))
def test_a_larger_report_never_makes_the_guard_smaller(ratios: tuple[float, ...], at: int, more: float) -> None:
    raised = tuple(min(3.0, ratio + more) if each == at else ratio for each, ratio in enumerate(ratios))
    assert guard_ratio(Calibration(raised)) >= guard_ratio(Calibration(ratios))


@given(_ratios)
def test_the_guard_is_one_of_what_was_seen_or_one(ratios: tuple[float, ...]) -> None:
    guard = guard_ratio(Calibration(ratios))
    assert guard == 1.0 or guard in ratios
    if len(ratios) < 16:
        assert guard >= 1.0
    if len(ratios) < 3:
        assert guard == 1.0


@given(st.lists(st.floats(0.97, 1.03), min_size=5, max_size=60))
def test_an_encoding_that_is_wrong_by_thirty_percent_is_guarded_against_after_five_turns(noise: list[float]) -> None:
    assert guard_ratio(_after(1.3 * each for each in noise)) >= 1.25


@given(st.lists(st.floats(0.95, 1.05), min_size=4, max_size=40), st.integers(0, 100), st.floats(0.5, 3.0))
def test_one_report_that_is_far_off_moves_nothing(usual: list[float], at: int, off: float) -> None:
    reports = list(usual)
    reports.insert(at % (len(reports) + 1), off)
    assert guard_ratio(_after(reports)) <= max(1.0, *(round(each, 4) for each in usual))


@pytest.mark.parametrize(("was", "now", "turns"), [(1.0, 1.3, 2), (1.3, 1.0, 15), (0.8, 1.1, 2)])
def test_a_tokenizer_that_was_switched_is_learned_within_a_few_turns(was: float, now: float, turns: int) -> None:
    assert guard_ratio(_after([now] * turns, start=_after([was] * 32))) == now


def test_room_is_given_away_only_when_it_is_well_known() -> None:
    assert [guard_ratio(_after([0.8] * count)) for count in (15, 16)] == [1.0, 0.8]


@pytest.mark.parametrize(("estimated", "actual"), [(49, 500), (0, 5), (1000, 0), (1000, -1)])
def test_small_prompts_and_missing_reports_are_no_observations(estimated: int, actual: int) -> None:
    before = _after([1.1, 1.2])
    assert observe(before, estimated=estimated, actual=actual) is before


def test_prompts_that_fill_their_budget_stop_overflowing_after_a_few_turns() -> None:
    window = budget_for(16_384, "catalogue", 2048)
    calibration, overflowed = Calibration(), list[int]()
    for turn in range(200):
        wire = window.wire_room(overhead_tokens=200, calibration_ratio=guard_ratio(calibration))
        actual = round(wire * 1.3 * (0.99 + turn * 7 % 11 / 500))
        if actual > window.prompt_ceiling:
            overflowed.append(turn)
        calibration = observe(calibration, estimated=wire, actual=actual)
    assert overflowed == [0, 1, 2]
