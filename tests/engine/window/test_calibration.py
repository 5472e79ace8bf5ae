"""The guard on the estimate: weighed by tokens, bounded a turn, and another tenant's only within two percent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.policy.budget import budget_for
from app.engine.window.calibration import SUPPORTED_TOKENS, Calibration, guard_ratio, observe, shared_ratio

_reports = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**7)), max_size=50)


def _after(ratios: Iterable[float], start: Calibration | None = None, *, estimated: int = 10_000) -> Calibration:
    calibration = start or Calibration()
    for ratio in ratios:
        calibration = observe(calibration, estimated=estimated, actual=round(estimated * ratio))
    return calibration


def _after_as_many(ratio: float, prompts: int) -> Calibration:
    return _after([ratio] * prompts)


_ratios = st.one_of(st.sampled_from([0.5, 1.0, 1.3, 3.0]), st.floats(0.5, 3.0))
_tenants = st.lists(st.builds(_after_as_many, _ratios, st.integers(0, 12)), max_size=60)


@given(_reports, st.floats(0.5, 3.0))
def test_the_guard_is_within_its_bounds_whatever_providers_report(
    reports: list[tuple[int, int]], shared: float
) -> None:
    calibration = Calibration()
    for estimated, actual in reports:
        calibration = observe(calibration, estimated=estimated, actual=actual)
        assert 0.5 <= guard_ratio(calibration, shared) <= 3.0
        assert min(astuple(calibration)) >= 0
    assert Calibration(*json.loads(json.dumps(astuple(calibration)))) == calibration


@given(_reports, st.integers(1, 10**6), st.integers(1, 10**7))
def test_one_turn_moves_the_guard_by_a_tenth_and_the_spread_at_most(
    reports: list[tuple[int, int]], estimated: int, actual: int
) -> None:
    before = Calibration()
    for earlier in reports:
        before = observe(before, estimated=earlier[0], actual=earlier[1])
    after = observe(before, estimated=estimated, actual=actual)
    if before.observed_tokens < SUPPORTED_TOKENS <= after.observed_tokens:
        return  # here it may fall below 1 for the first time
    assert guard_ratio(before) / 1.16 <= guard_ratio(after) <= guard_ratio(before) * 1.16


@given(st.lists(st.floats(0.97, 1.03), min_size=5, max_size=60))
def test_an_encoding_that_is_wrong_by_thirty_percent_is_guarded_against_after_five_turns(noise: list[float]) -> None:
    assert 1.25 <= guard_ratio(_after(1.3 * each for each in noise)) <= 1.41


@pytest.mark.parametrize(("was", "now", "turns"), [(1.0, 1.3, 6), (1.3, 1.0, 20), (0.8, 1.1, 6)])
def test_a_tokenizer_that_was_switched_is_learned_within_a_few_turns(was: float, now: float, turns: int) -> None:
    assert guard_ratio(_after([now] * turns, start=_after([was] * 32))) == pytest.approx(now, abs=0.06)


def test_the_guard_ratio_falls_below_one_only_after_enough_observations() -> None:
    few, enough = (_after([0.8] * count, estimated=1000) for count in (16, 17))
    assert guard_ratio(few) == 1.0
    assert guard_ratio(enough) < 0.95


def test_where_estimates_are_right_nothing_is_added() -> None:
    assert guard_ratio(_after([1.0] * 20)) == 1.0


@pytest.mark.parametrize(("estimated", "actual"), [(255, 2550), (0, 5), (1000, 0), (1000, -1)])
def test_small_prompts_and_missing_reports_are_no_observations(estimated: int, actual: int) -> None:
    before = _after([1.1, 1.2])
    assert observe(before, estimated=estimated, actual=actual) is before


def test_large_prompts_outweigh_small_ones() -> None:
    """Twenty short prompts of another script beside five long ones do not decide what the long ones cost."""
    calibration = _after([1.0] * 10)
    for _ in range(5):
        calibration = _after([2.4] * 4, start=calibration, estimated=300)
        calibration = _after([1.0], start=calibration)
    assert guard_ratio(calibration) < 1.15, "of 56,000 tokens 6,000 cost 2.4 times as much"


def test_prompts_that_fill_their_budget_stop_overflowing_after_a_few_turns() -> None:
    window = budget_for(16_384, "catalogue", 2048)
    calibration, overflowed = Calibration(), list[int]()
    for turn in range(200):
        wire = window.wire_room(overhead_tokens=200, calibration_ratio=guard_ratio(calibration))
        actual = round(wire * 1.3 * (0.99 + turn * 7 % 11 / 500))
        if actual > window.prompt_ceiling:
            overflowed.append(turn)
        calibration = observe(calibration, estimated=wire, actual=actual)
    assert overflowed in ([0], [0, 1], [0, 1, 2])


@given(_tenants, st.one_of(st.none(), st.builds(_after, st.lists(st.floats(0.5, 3.0), max_size=20))))
def test_one_tenant_moves_what_is_shared_by_two_percent_at_most(
    others: list[Calibration], attacker: Calibration | None
) -> None:
    """Whatever it was before: absent, or at either bound."""
    at_all = [shared_ratio([*others, *each]) for each in ([], [_after([0.5] * 20)], [_after([3.0] * 20)])]
    if attacker is not None:
        at_all.append(shared_ratio([*others, attacker]))
    assert max(at_all) <= min(at_all) * 1.02


@given(_tenants)
def test_the_shared_ratio_is_between_one_and_the_ratios_of_the_tenants(tenants: list[Calibration]) -> None:
    own = [guard_ratio(each) for each in tenants if each.observed_tokens >= SUPPORTED_TOKENS]
    assert min([1.0, *own]) / 1.06 <= shared_ratio(tenants) <= max([1.0, *own])


def test_the_more_tenants_agree_the_more_of_it_a_newcomer_starts_from() -> None:
    same = _after([1.3] * 20)
    shared = [shared_ratio([same] * count) for count in (0, 1, 3, 10, 27, 50)]
    assert shared == sorted(shared)
    assert shared[:3] == pytest.approx([1.0, 1.01, 1.03], abs=0.001)
    assert shared[-2:] == pytest.approx([1.3, 1.3], abs=0.01)
    assert guard_ratio(Calibration(), shared[-1]) == shared[-1]


def test_a_tenant_that_sent_little_has_no_say() -> None:
    assert shared_ratio([_after([3.0] * 16, estimated=1000)] * 50) == 1.0


@given(_reports, st.floats(0.5, 3.0), st.floats(1.0, 1.02))
def test_a_tenants_guard_ratio_moves_no_more_than_the_shared_ratio(
    reports: list[tuple[int, int]], shared: float, moved: float
) -> None:
    own = Calibration()
    for estimated, actual in reports:
        own = observe(own, estimated=estimated, actual=actual)
    before, after = guard_ratio(own, shared), guard_ratio(own, shared * moved)
    assert before * (1 - 1e-9) <= after <= before * moved * (1 + 1e-9)


def test_a_thousand_turns_of_one_tenant_move_another_by_two_percent_at_most() -> None:
    honest = [_after([ratio] * 20) for ratio in (1.0, 1.02, 1.05, 1.3, 1.35)]
    newcomer = guard_ratio(Calibration(), shared_ratio(honest))
    for ratios in ([3.0], [0.5], [3.0, 0.5], [2.4, 1.0, 0.6]):
        attacker = Calibration()
        for turn in range(1000):
            estimated = 256 if turn % 2 else 200_000
            actual = round(estimated * ratios[turn % len(ratios)])
            attacker = observe(attacker, estimated=estimated, actual=actual)
            moved = guard_ratio(Calibration(), shared_ratio([*honest, attacker]))
            assert newcomer / 1.02 <= moved <= newcomer * 1.02


@given(st.integers(256, 100_000), st.floats(0.0, 0.499))
def test_a_report_of_less_than_half_the_estimate_moves_nothing(estimated: int, part: float) -> None:
    known = observe(Calibration(), estimated=20_000, actual=21_000)
    assert observe(known, estimated=estimated, actual=int(estimated * part)) == known
