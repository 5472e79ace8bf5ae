"""Windows and prices of published models, from the data that comes with `genai-prices`; nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, Protocol, TypeAlias

from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, TieredPrices

WindowSource: TypeAlias = Literal["catalogue", "learned", "genai_prices", "fallback"]


class LearnedWindow(Protocol):
    """A window that a provider named when it refused a prompt, in tokens, and the instant it stops to count."""

    @property
    def context_window(self) -> int: ...
    @property
    def expires_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens; None where nobody has published one. Tiered prices give their first tier."""

    input_usd: float | None = None
    output_usd: float | None = None
    cached_input_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What is published of a model. Prices only where the host is known: another host sells at its own."""

    context_window: int | None = None
    prices: Prices | None = None


def published(model: str, base_url: str, at: datetime) -> Published:
    """Looks a model up by its host and name, and by name alone at a host nobody knows."""
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
    return Prices(
        input_usd=_usd(getattr(listed, "input_mtok", None)),
        output_usd=_usd(getattr(listed, "output_mtok", None)),
        cached_input_usd=_usd(getattr(listed, "cache_read_mtok", None)),
    )


def _usd(price: object) -> float | None:
    if isinstance(price, TieredPrices):
        price = price.base
    return float(price) if isinstance(price, Decimal | int | float) else None
