"""Stored turns under other policies."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.api.schemas.values import In
from app.domain.types import Name

_LONGEST_VARIANT_NAME = 80


class SimulateIn(In):
    """Policies to replay the session's turns under; without any, a summary at four thresholds."""

    policies: list[Any] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Each the name of a preset, or an object of overrides over the session's policy, which may have a "
        "`name` for the answer.",
    )
    model_aliases: list[Name] | None = Field(
        default=None, min_length=1, max_length=4, description="Ask every turn of these, one after the other."
    )
    max_turns: int = Field(
        default=1000,
        ge=1,
        le=2000,
        description="Turns after these are left out (`truncated`); fewer with many policies and models.",
    )

    @field_validator("policies")
    @classmethod
    def _names_or_objects(cls, value: list[Any] | None) -> list[Any] | None:
        for policy in value or ():
            if not isinstance(policy, (str, dict)):
                raise ValueError("Each is the name of a preset or an object")  # noqa: TRY004 - Pydantic's way
            name = cast("dict[str, Any]", policy).get("name", "") if isinstance(policy, dict) else ""
            if not isinstance(name, str) or len(name) > _LONGEST_VARIANT_NAME:
                raise ValueError(f"A name is a text of at most {_LONGEST_VARIANT_NAME} characters")
        return value


class SimulationOut(BaseModel):
    """Figures of each policy, of what happened and of the full history; docs/simulate.md describes them."""

    model_config = ConfigDict(extra="allow")
    session_id: UUID
    stored_turns: int
    turns: int
    truncated: bool
    gone_aliases: list[str] = Field(description="Aliases of stored turns that the catalogue does not have any more.")
    summaries_from: str
    assumed: list[str]
    happened: dict[str, Any]
    full_history: list[dict[str, Any]]
    policies: list[dict[str, Any]]
