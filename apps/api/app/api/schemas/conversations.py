"""Conversations in OpenAI's form."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.items import ItemIn, MetadataIn
from app.services.openai.conversations import MOST_ITEMS


class ConversationIn(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    metadata: MetadataIn | None = None
    items: list[ItemIn] | None = Field(default=None, max_length=MOST_ITEMS)


class ConversationPatch(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    metadata: MetadataIn | None = Field(description="Replaced whole; null takes it away.")


class ItemsIn(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    items: list[ItemIn] = Field(min_length=1, max_length=MOST_ITEMS)


class ConversationOut(BaseModel):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, Any]
