"""Pins."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.api.records import answer_of
from app.api.schemas.values import In
from app.domain.types import Pin


class PinIn(In):
    """Content for every prompt of the session."""

    content: Annotated[str, StringConstraints(min_length=1)]
    relevance: float | None = Field(default=None, ge=0, le=1)
    source: Annotated[str, StringConstraints(max_length=2000)] | None = None


class PinOut(answer_of(Pin)): ...


class PinFigures(BaseModel):
    """What a pin costs in every prompt, and how relevant it is: where pins have to be trimmed, the least goes first."""

    tokens: int = Field(description="As it stands in a prompt, without framing.")
    relevance: float = Field(description="0 to 1.")
    relevance_from: Literal["given", "computed"] = Field(
        description="Computed: its words against the room goal's and those of the newest message."
    )


class ListedPin(PinOut):
    """A pin in a list; `figures` stand there with `figures=true`."""

    figures: PinFigures | None = None


class PinPage(BaseModel):
    items: list[ListedPin]
    next_cursor: str | None
