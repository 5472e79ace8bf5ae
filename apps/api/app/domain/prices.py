"""What a call cost, from published prices and reported tokens. Exact: decimals all the way, nothing drifts in a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from app.domain.types import Usage

_PER_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """US dollars for a million tokens; None where nobody has published one."""

    input_usd: Decimal | None = None
    output_usd: Decimal | None = None
    cached_input_usd: Decimal | None = None
    cache_write_usd: Decimal | None = None


def tier_of(tiers: Sequence[tuple[int, TokenPrices]], prompt_tokens: int) -> TokenPrices:
    """The prices of the last tier whose bound the prompt is beyond; the first tier has none. Bounds rise."""
    return next((prices for above, prices in reversed(tiers) if prompt_tokens > above), tiers[0][1])


def price(value: float | Decimal | str | None) -> Decimal | None:
    """A price as it was published: 0.15 is fifteen hundredths, not the nearest binary fraction."""
    return None if value is None else Decimal(str(value))


def call_cost(usage: Usage, prices: TokenPrices, *, cache_write_tokens: int = 0) -> Decimal | None:
    """US dollars of one call, exact; None where a price that it takes is unknown.

    `usage.prompt_tokens` holds the cached ones, and those written to a cache. Where no price of their own is published,
    the provider is taken to give no discount: they cost what other input does.
    """
    read = min(max(usage.cached_prompt_tokens, 0), usage.prompt_tokens)
    written = min(max(cache_write_tokens, 0), usage.prompt_tokens - read)
    parts = (
        _cost(usage.prompt_tokens - read - written, prices.input_usd),
        _cost(read, prices.input_usd if prices.cached_input_usd is None else prices.cached_input_usd),
        _cost(written, prices.input_usd if prices.cache_write_usd is None else prices.cache_write_usd),
        _cost(usage.completion_tokens, prices.output_usd),
    )
    known = [part for part in parts if part is not None]
    return sum(known, Decimal(0)) if len(known) == len(parts) else None


def _cost(tokens: int, price_usd: Decimal | None) -> Decimal | None:
    if tokens == 0:
        return Decimal(0)
    return None if price_usd is None else tokens * price_usd / _PER_MILLION
