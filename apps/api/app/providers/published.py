"""Windows and prices of published models, from the data that comes with `genai-prices`; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, TieredPrices

from app.domain.prices import Prices


@dataclass(frozen=True, slots=True)
class Published:
    """What is published of a model. Prices only where the host is known: another host sells at its own."""

    context_window: int | None = None
    prices: Prices | None = None


def published(model: str, base_url: str, at: datetime) -> Published:
    """Looks a model up by its host and name, and by name alone at an unknown host."""
    snapshot = data_snapshot.get_snapshot()
    try:
        _, found = snapshot.find_provider_model(model, None, None, base_url)
    except LookupError:
        try:
            vendor = "litellm" if "/" in model else None  # reads `vendor/model`
            _, found = snapshot.find_provider_model(model, None, vendor, None)
        except LookupError:
            return Published()
        return Published(found.context_window)
    return Published(found.context_window, _prices(found, at))


def _prices(model: ModelInfo, at: datetime) -> Prices:
    listed = model.get_prices(at)
    kinds = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    prices = [getattr(listed, kind, None) for kind in kinds]
    starts = {tier.start for price in prices if isinstance(price, TieredPrices) for tier in price.tiers}
    tiers = tuple(_tier(prices, start) for start in sorted(starts))
    return replace(_tier(prices, 0), tiers=tiers)


def _tier(listed: Sequence[object], above_prompt_tokens: int) -> Prices:
    fresh, output, cached, written = (_usd(price, above_prompt_tokens) for price in listed)
    return Prices(fresh, output, cached, written, above_prompt_tokens)


def _usd(price: object, above_prompt_tokens: int) -> float | None:
    if isinstance(price, TieredPrices):
        reached = [tier.price for tier in price.tiers if tier.start <= above_prompt_tokens]
        price = reached[-1] if reached else price.base
    return float(price) if isinstance(price, Decimal | int | float) else None
