"""The arithmetic of one turn's budget (contract.md, section 8); `docs/budget.md` works an example that is tested."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from app.domain.frozen import frozen, replace

OUTPUT_SHARE = 0.20
OVERHEAD_SHARE = 0.05
MIN_OVERHEAD_RESERVE_TOKENS = 1024
LEAST_OUTPUT_TOKENS = 64
"""Least output reserve where the output has a share: a shorter answer would not be useful."""


def part_of(share: float, tokens: int) -> float:
    """This share of the tokens as the share is written: 0.55 of 100 is 55, so it can be rounded up or down. The product
    of floats is more than 55, because 0.55 has no binary form, and would be rounded up to 56."""
    numerator, denominator = _as_written(share)
    return numerator * tokens / denominator


@lru_cache(1024)
def _as_written(share: float) -> tuple[int, int]:
    return Fraction(repr(share)).as_integer_ratio()


@frozen
class Budget:
    """The budget of a turn, in tokens. `input_budget` may be zero or negative; then no turn can run in this window.

    If the output has a share, `output_pct` is that share in percent, and `fixed_tokens` counts against the input budget
    before shares are computed: system text, the user's message, tools.
    """

    limit: int
    limit_source: str
    output_reserve: int
    overhead_reserve: int
    input_budget: int
    output_pct: float = 0.0
    fixed_tokens: int = 0

    @property
    def prompt_ceiling(self) -> int:
        """The largest prompt that leaves the output reserve free. A trim log has it as `max_context_tokens`."""
        return self.limit - self.output_reserve

    def history_budget(self, regions: Mapping[str, int]) -> int:
        """Tokens left for messages besides everything else that is sent (`turn_atomic`); may be negative."""
        return self.prompt_ceiling - sum([regions[each] for each in ("system", "goal", "pins", "summary", "tools")])

    def input_tokens(self, *, wire_tokens: int, overhead_tokens: int, calibration_ratio: float = 1.0) -> int:
        """The tokens of a prompt of `wire_tokens` that count against the input budget, at least 0. Of `overhead_tokens`
        for framing and tool definitions only the excess over the overhead reserve counts. The calibration scales the
        whole wire estimate, with which the provider's count is compared."""
        return max(0, ceil(wire_tokens * calibration_ratio) - min(self.overhead_reserve, overhead_tokens))

    def wire_room(self, *, overhead_tokens: int, calibration_ratio: float = 1.0) -> int:
        """The most wire tokens, including `overhead_tokens`, that fit the input budget."""
        chargeable = self.input_budget + min(self.overhead_reserve, overhead_tokens)
        room = floor(chargeable / calibration_ratio)
        while ceil(room * calibration_ratio) > chargeable:  # the division rounded up
            room -= 1
        while ceil((room + 1) * calibration_ratio) <= chargeable:  # or down
            room += 1
        return room


@lru_cache(1024)
def budget_for(limit: int, limit_source: str, max_output_tokens: int) -> Budget:
    """The budget of a window of `limit` tokens whose output may take `max_output_tokens`."""
    output_reserve = min(max_output_tokens, floor(limit * OUTPUT_SHARE))
    overhead_reserve = max(MIN_OVERHEAD_RESERVE_TOKENS, floor(limit * OVERHEAD_SHARE))
    return Budget(limit, limit_source, output_reserve, overhead_reserve, limit - output_reserve - overhead_reserve)


def with_output_share(budget: Budget, output_pct: float, fixed_tokens: int) -> Budget:
    """The budget with `output_pct` % of what `fixed_tokens` leave as its output reserve (contract.md, decision 12)."""
    rest = budget.limit - budget.overhead_reserve - fixed_tokens
    output_reserve = max(LEAST_OUTPUT_TOKENS, floor(part_of(output_pct, rest) / 100))
    return replace(
        budget,
        output_reserve=output_reserve,
        input_budget=budget.limit - output_reserve - budget.overhead_reserve,
        output_pct=output_pct,
        fixed_tokens=fixed_tokens,
    )


def largest_of(budget: Budget, output_pct: float | None) -> tuple[int, int]:
    """The largest prompt and the longest answer, in tokens, of any turn in the window of this budget. If the answer has
    a share, the former leaves it nearly nothing, and the latter is its share of the whole window."""
    if output_pct is None:
        return max(0, budget.prompt_ceiling), budget.output_reserve
    return budget.limit, with_output_share(budget, output_pct, 0).output_reserve


def learned_budget(limit: int, max_output_tokens: int, like: Budget) -> Budget:
    """The budget of a learned window for the same turn. The output keeps its share if it has one in `like`."""
    budget = budget_for(limit, "learned", max_output_tokens)
    return with_output_share(budget, like.output_pct, like.fixed_tokens) if like.output_pct else budget
