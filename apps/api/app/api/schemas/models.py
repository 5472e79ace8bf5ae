"""The aliases of the catalogue."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from app.api.records import answer_of
from app.domain.prices import Prices


class PricesOut(answer_of(Prices)):
    """US dollars for a million tokens; null where nobody has published one."""

    tiers: list[PricesOut] = Field(description="The prices of larger prompts.")


class ModelOut(BaseModel):
    """`context_window` is in tokens; `is_language_model` is false for the built-in offline responder."""

    alias: str
    provider: str
    model: str
    is_language_model: bool
    context_window: int
    context_window_source: Literal["catalogue", "learned", "genai_prices", "fallback"]
    encoding: str
    fallbacks: list[str]
    prices: PricesOut | None
    calibration_ratio: float = Field(description="What estimates for it are multiplied with; 1 until enough is known.")


class ListedModel(BaseModel):
    """A model as OpenAI lists it. `id` is the alias; nobody knows when it was `created`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """`items` is our own form, `data` the same aliases in OpenAI's."""

    default: str
    items: list[ModelOut]
    next_cursor: None = None
    object: Literal["list"]
    data: list[ListedModel]
