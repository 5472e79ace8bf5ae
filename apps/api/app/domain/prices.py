"""The cost of a call, from published prices and reported tokens. It is exact: decimals do not accumulate errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from decimal import Decimal

from app.domain.frozen import described, frozen
from app.domain.types import JsonObject, Usage

_PER_MILLION = Decimal(1_000_000)


@frozen
class Prices:
    """US dollars per million tokens; None if no price is published. `cached_input_usd` is for tokens read from the
    provider's cache, `cache_write_usd` for tokens written to it. `tiers` are the prices for larger prompts, in rising
    order: a prompt that exceeds a tier's `above_prompt_tokens` pays that tier's prices for all its tokens."""

    input_usd: float | None = None
    output_usd: float | None = None
    cached_input_usd: float | None = None
    cache_write_usd: float | None = None
    above_prompt_tokens: int = described(
        "Prompts with more tokens than this pay these prices for all tokens.", default=0
    )
    tiers: tuple[Prices, ...] = ()

    def of_prompt(self, prompt_tokens: int) -> Prices:
        reached = [tier for tier in self.tiers if prompt_tokens > tier.above_prompt_tokens]
        return reached[-1] if reached else self


def call_cost(usage: Usage, prices: Prices) -> Decimal | None:
    """US dollars of one call, exact; None if a price that it needs is unknown. Where none is published for reading from
    the cache or writing to it, these tokens are priced as other input."""
    read = min(max(usage.cached_prompt_tokens, 0), usage.prompt_tokens)
    written = min(max(usage.cache_write_prompt_tokens, 0), usage.prompt_tokens - read)
    parts = (
        _cost(usage.prompt_tokens - read - written, prices.input_usd),
        _cost(read, prices.input_usd if prices.cached_input_usd is None else prices.cached_input_usd),
        _cost(written, prices.input_usd if prices.cache_write_usd is None else prices.cache_write_usd),
        _cost(usage.completion_tokens, prices.output_usd),
    )
    return total_usd(parts)


def total_usd(costs: Collection[Decimal | None]) -> Decimal | None:
    """The exact sum; None if one of the costs is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


def usd_of_rows(usages: Iterable[JsonObject]) -> Decimal | None:
    """The sum of the known costs of usage rows; None if none is known."""
    known = [used["cost_usd"] for used in usages if used["cost_usd"] is not None]
    return sum(known, Decimal(0)) if known else None


def _cost(tokens: int, price_usd: float | None) -> Decimal | None:
    """The cost at the price as published: 0.15 is fifteen hundredths, not the nearest binary fraction."""
    if tokens == 0:
        return Decimal(0)
    return None if price_usd is None else tokens * Decimal(str(price_usd)) / _PER_MILLION
