"""A session: how it is made and changed, and how it is read, with what it used and where it stands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
from pydantic import BaseModel, Field, field_validator

from app.api.records import answer_of
from app.api.schemas.values import In
from app.domain.types import Name, Session, SessionUsage, TurnStatus

_METADATA_BYTES = 64 * 1024


_Count = Annotated[int, Field(ge=0, le=10**15)]


_Usd = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]


class LimitsIn(In):
    """Limits by minute, day or month (UTC), or in total from when they are set. Only what is named is limited."""

    turns_per_minute: _Count | None = None
    turns_per_day: _Count | None = None
    turns_total: _Count | None = None
    tokens_per_minute: _Count | None = Field(default=None, description="Prompt and completion together.")
    tokens_per_day: _Count | None = None
    tokens_total: _Count | None = None
    usd_per_day: _Usd | None = Field(default=None, description="At published prices; a model without one costs 0.")
    usd_per_month: _Usd | None = None
    usd_total: _Usd | None = None


class SessionIn(In):
    """A new session; every field may be left out."""

    model_alias: Name | None = Field(default=None, description="Alias of the catalogue; its default when absent.")
    mode: Name | None = Field(default=None, description="Picks system layer 2 of the catalogue's instructions.")
    agent_role: Name | None = Field(default=None, description="Picks system layer 3 of the catalogue's instructions.")
    room_goal: str | None = Field(default=None, description="What the session is for. Never dropped from a prompt.")
    instructions: str | None = Field(default=None, description="System layer 4, of this session alone.")
    policy: dict[str, Any] | None = Field(
        default=None, description='Policy overrides, for example `{"preset": "guarded"}`.'
    )
    metadata: dict[str, Any] | None = Field(default=None, description="Yours; at most 64 KiB of JSON.")
    limits: LimitsIn | None = Field(
        default=None, description="What this session may use; a turn over it is a 429 `limit_exceeded`."
    )

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(orjson.dumps(value)) > _METADATA_BYTES:
            raise ValueError(f"At most {_METADATA_BYTES} bytes of JSON")
        return value


class SessionPatch(SessionIn):
    """Fields to set. What is absent stays; null takes a value away; objects are replaced whole."""


class ForkIn(In):
    """Where the fork's past ends."""

    through_turn_id: Annotated[UUID | None, Field(strict=False)] = Field(
        default=None, description="The last turn it has; the last one that has ended when absent."
    )


class ForkedFrom(BaseModel):
    """Whose past a session began with, and the last turn of it; null when it began before the first."""

    session_id: UUID
    turn_id: UUID | None


class SessionOut(answer_of(Session)):
    limits: LimitsIn
    forked_from: ForkedFrom | None


class UsageOut(answer_of(SessionUsage)):
    """What a session used of one alias for one purpose."""


class WindowFigures(BaseModel):
    """The prompt of the newest turn that had one, in tokens."""

    turn_id: UUID
    model_alias: str
    model_context_limit: int
    input_budget: int
    estimated_input_tokens: int
    estimated_wire_tokens: int


class SessionFigures(BaseModel):
    """Where a session stands. Token sums are the providers', summaries included."""

    turns: int
    state: TurnStatus | None = Field(description="Of the newest turn; null before the first.")
    first_input: str | None = Field(description="The beginning of the first message.")
    last_turn_id: UUID | None
    last_turn_at: datetime | None
    window: WindowFigures | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = Field(description="Of the calls that have a price; null where none has.")


class SessionDetail(SessionOut):
    """A session with what it used so far."""

    usage: list[UsageOut]
    figures: SessionFigures | None


class ListedSession(SessionOut):
    """A session in a list; `figures` stand there with `figures=true`."""

    figures: SessionFigures | None = None


class SessionPage(BaseModel):
    items: list[ListedSession]
    next_cursor: str | None
