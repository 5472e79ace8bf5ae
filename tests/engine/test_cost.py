"""What a call cost: exact, additive, and unknown where a price is."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.prices import Prices, call_cost
from app.domain.types import Usage

_PRICES = Prices(2.5, 10, 0.25, 3.125)
_tokens = st.integers(0, 5_000_000)
_usd = st.decimals("0", "200", places=4)


@pytest.mark.parametrize(
    ("usage", "prices", "cost"),
    [
        (Usage(1000, 100), _PRICES, "0.0035"),
        (Usage(1000, 100, 800), _PRICES, "0.0017"),
        (Usage(1000, 100, 800, 200), _PRICES, "0.001825"),
        (Usage(1000, 100, 5000, 5000), _PRICES, "0.00125"),
        (Usage(1, 0), Prices(0.15, 0.6), "0.00000015"),
        (Usage(0, 0), Prices(), "0"),
        (Usage(1000, 0, 400, 100), Prices(2.5), "0.0025"),
        (Usage(1000, 0), Prices(0, 0), "0"),
    ],
)
def test_a_call_costs_its_tokens_at_their_prices(usage: Usage, prices: Prices, cost: str) -> None:
    assert call_cost(usage, prices) == Decimal(cost)


@pytest.mark.parametrize(
    ("usage", "prices"),
    [
        (Usage(10, 5), Prices()),
        (Usage(10, 5), Prices(input_usd=1)),
        (Usage(10, 5), Prices(output_usd=1)),
        (Usage(10, 0, 4), Prices(cached_input_usd=1)),
    ],
)
def test_a_call_whose_price_is_unknown_has_no_cost(usage: Usage, prices: Prices) -> None:
    assert call_cost(usage, prices) is None


@given(_tokens, _tokens, _tokens, _tokens, st.tuples(_usd, _usd, _usd, _usd))
def test_a_cost_is_exact_and_never_below_nought(
    prompt: int, completion: int, cached: int, written: int, usd: tuple[Decimal, Decimal, Decimal, Decimal]
) -> None:
    fresh_usd, output_usd, cached_usd, written_usd = map(float, usd)
    prices = Prices(fresh_usd, output_usd, cached_usd, written_usd)
    cost = call_cost(Usage(prompt, completion, cached, written), prices)
    assert cost is not None
    read = min(cached, prompt)
    stored = min(written, prompt - read)
    tokens = (prompt - read - stored, completion, read, stored)
    assert Fraction(cost) == sum(Fraction(each) * count for each, count in zip(usd, tokens, strict=True)) / 10**6


@given(st.lists(st.tuples(_tokens, _tokens), max_size=20))
def test_the_costs_of_calls_sum_to_the_cost_of_their_tokens(calls: list[tuple[int, int]]) -> None:
    costs = [call_cost(Usage(*call), _PRICES) for call in calls]
    together = call_cost(Usage(sum(call[0] for call in calls), sum(call[1] for call in calls)), _PRICES)
    assert sum((cost for cost in costs if cost is not None), Decimal(0)) == together
