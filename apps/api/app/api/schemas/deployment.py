"""What a deployment is: whether it serves, and its models, policies and presets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from app.api.schemas.values import answer_of
from app.domain.prices import Prices
from app.services.views.deployment import ListedAlias, ListedName, ListedPreset, PolicyField


class HealthOut(BaseModel):
    status: Literal["ok"]


class ReadyOut(BaseModel):
    """`migrations` is null when the database does not answer; `behind` wants `plimsoll migrate`.

    `read_only` is a database that refuses to write, as a standby does until it is the primary."""

    status: Literal["ready", "not_ready", "draining"]
    database: Literal["ok", "read_only", "unavailable"]
    migrations: Literal["current", "behind", "ahead", "empty"] | None


class PricesOut(answer_of(Prices)):
    """US dollars for a million tokens; null where nobody has published one."""

    tiers: list[PricesOut] = Field(description="The prices of larger prompts.")


class ModelOut(answer_of(ListedAlias)):
    """`context_window` is in tokens; `is_language_model` is false for the built-in offline responder."""

    prices: PricesOut | None


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


class DesignNameOut(answer_of(ListedName)):
    """A setting as a design's project spells it; null stands for a value that it does not publish."""


class PresetOut(answer_of(ListedPreset)):
    """A design by name, with the value of every field."""

    names: list[DesignNameOut] = Field(description="The design's own configuration, and the fields that it becomes.")


class PolicyFieldOut(answer_of(PolicyField)):
    """A field of a policy: what it takes, what it does, and its value by preset."""


class PolicyList(BaseModel):
    default: str
    presets: list[PresetOut]
    fields: list[PolicyFieldOut]
