"""The settings of a simulation, and what its calls cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TypeAlias

from app.domain.extractive import READING, Reading
from app.domain.frozen import frozen
from app.domain.prices import Prices, call_cost
from app.domain.types import ReasoningRule, Usage
from app.engine.messages.tokens import Estimate
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.counted import CountKey

PricesOf: TypeAlias = Callable[[int], Prices]
"""The prices of a call, by the tokens of its prompt."""


@frozen
class SimulatedSummarizer:
    """The model that would make summaries: its alias, its largest prompt in tokens, and its prices."""

    alias: str
    prompt_ceiling: int
    prices: PricesOf


@frozen
class SimulatedModel:
    alias: str
    encoding: str
    budget: Budget
    estimate: Estimate
    calibration_ratio: float
    prices: PricesOf
    summarizer: SimulatedSummarizer
    reasoning_rule: ReasoningRule | None = None
    takes_tools: bool = False

    @property
    def key(self) -> CountKey:
        return self.alias, self.encoding


@frozen
class Setting:
    """The settings of a simulation. `models` has every alias that a turn may use. `read` may cache its results, since
    other policies summarize the same texts."""

    policy: ContextPolicy
    goal: str | None
    models: Mapping[str, SimulatedModel]
    read: Reading = READING


class Bill:
    """Tokens by the prices that apply to them."""

    def __init__(self) -> None:
        self._tokens: dict[Prices, list[int]] = {}
        self._last: tuple[Prices | None, list[int]] = (None, [])

    def add(self, prices: Prices, prompt_tokens: int, output_tokens: int) -> None:
        if prices is not self._last[0]:  # they rarely change, and looking them up is most of the work
            self._last = prices, self._tokens.setdefault(prices, [0, 0])
        tokens = self._last[1]
        tokens[0] += prompt_tokens
        tokens[1] += output_tokens

    def add_turn(self, prompts: list[int], output_tokens: int, prices: PricesOf) -> None:
        """Add a turn's calls, with the output at the prices of the largest prompt."""
        for tokens in prompts:
            self.add(prices(tokens), tokens, 0)
        self.add(prices(max(prompts, default=0)), 0, output_tokens)

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars, exact; None if a price is not known."""
        costs = [call_cost(Usage(prompt, output), prices) for prices, (prompt, output) in self._tokens.items()]
        known = [cost for cost in costs if cost is not None]
        return sum(known, Decimal(0)) if len(known) == len(costs) else None
