"""What a call cost, as a row to store."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

from app.domain.prices import TokenPrices, call_cost, price, tier_of
from app.domain.types import JsonObject, Purpose, Usage
from app.providers.registry import Model, Prices
from app.services.runtime import Runtime


def used_row(rt: Runtime, model: Model, purpose: Purpose, usage: Usage, round_number: int | None = None) -> JsonObject:
    """A call's usage by column; counted in the metrics on the way. `cost_usd` is None where no price is known.

    `round_number` says which call of its turn it was.
    """
    cost = cost_of(model, usage)
    rt.telemetry.model_usage(alias=model.alias, purpose=purpose, usage=usage, cost_usd=cost)
    return {
        "id": rt.new_id(),
        "purpose": purpose,
        "model_alias": model.alias,
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_prompt_tokens,
        "cache_write_prompt_tokens": usage.cache_write_prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": cost,
        "round": round_number,
    }


def cost_of(model: Model, usage: Usage) -> Decimal | None:
    """US dollars at the published prices; None where none is known."""
    if model.prices is None:
        return None
    return call_cost(usage, prices_of(model, usage.prompt_tokens), cache_write_tokens=usage.cache_write_prompt_tokens)


def prices_of(model: Model, prompt_tokens: int) -> TokenPrices:
    """The published prices that a call with a prompt of this size pays; none of them where none is known."""
    return tier_of(price_tiers(model.prices), prompt_tokens)


@lru_cache(maxsize=256)
def price_tiers(listed: Prices | None) -> tuple[tuple[int, TokenPrices], ...]:
    """The published prices of each size of prompt, by the tokens beyond which they hold."""
    if listed is None:
        return ((0, TokenPrices()),)
    return tuple(
        (
            tier.above_prompt_tokens,
            TokenPrices(
                price(tier.input_usd), price(tier.output_usd), price(tier.cached_input_usd), price(tier.cache_write_usd)
            ),
        )
        for tier in (listed, *listed.tiers)
    )


def total_cost(costs: Sequence[Decimal | None]) -> Decimal | None:
    """The sum; None where nothing was paid for, or a part of it has no known price."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if known and len(known) == len(costs) else None
