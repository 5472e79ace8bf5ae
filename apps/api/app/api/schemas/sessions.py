"""Bodies that create and change a session, the session as an answer, with its usage and current figures, and its
pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import orjson
from pydantic import Field, StringConstraints, create_model, field_validator

from app.api.schemas.context import RelatedWordOut
from app.api.schemas.values import Answer, In, NotEmpty, Paged, answer_of, optional
from app.domain.figures import PinFigures, SessionFigures, SessionUsage
from app.domain.limits import LIMITS, LimitUnit
from app.domain.types import Name, Pin, Session

_METADATA_BYTES = 64 * 1024

_Count = Annotated[int, Field(ge=0, le=10**15)]

_Usd = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]


_OF_UNIT: Mapping[LimitUnit, Any] = {"turns": _Count, "tokens": _Count, "usd": _Usd}
_LIMITS: dict[str, Any] = {name: (_OF_UNIT[unit] | None, None) for name, (unit, _) in LIMITS.items()}


class LimitsIn(create_model("LimitsIn", __base__=In, **_LIMITS)):
    """Limits per minute, day or month (UTC), or in total since they were set. Absent or null: no limit."""

    tokens_per_minute: _Count | None = optional("Prompt and completion tokens together.")
    usd_per_day: _Usd | None = optional("At published prices; a model without a price counts as 0.")


class SessionIn(In):
    """A new session; every field is optional."""

    model_alias: Name | None = optional("An alias of the catalogue; null is its default.")
    mode: Name | None = optional("Selects system layer 2 of the catalogue's instructions.")
    agent_role: Name | None = optional("Selects system layer 3 of the catalogue's instructions.")
    room_goal: str | None = optional("What the session is for. Never dropped from a prompt.")
    instructions: str | None = optional("System layer 4, for this session only.")
    policy: dict[str, Any] | None = optional('Policy overrides, for example `{"preset": "guarded"}`.')
    metadata: dict[str, Any] | None = optional("The client's own data; at most 64 KiB of JSON.")
    limits: LimitsIn | None = optional("Limits of this session; a turn that exceeds one is a 429 `limit_exceeded`.")

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(orjson.dumps(value)) > _METADATA_BYTES:
            raise ValueError(f"At most {_METADATA_BYTES} bytes of JSON")
        return value


class SessionPatch(SessionIn):
    """Fields to set. Absent fields do not change; null removes a value; objects are replaced as a whole."""


class ForkIn(In):
    """Where the history of the fork ends."""

    through_turn_id: Annotated[UUID | None, Field(strict=False)] = optional(
        "Last turn of the fork; defaults to the last one that has ended."
    )


class ForkedFrom(Answer):
    """The session that it was forked from, and the last turn that was copied; null if none was."""

    session_id: UUID
    turn_id: UUID | None


class SessionOut(answer_of(Session)):
    limits: LimitsIn
    forked_from: ForkedFrom | None


class UsageOut(answer_of(SessionUsage)):
    """What a session has used of one alias for one purpose."""


class SessionDetail(SessionOut):
    """A session with its usage so far."""

    usage: list[UsageOut]
    figures: SessionFigures | None


class ListedSession(SessionOut):
    """A session in a list; it has `figures` with `figures=true`."""

    figures: SessionFigures | None = None


class SessionPage(Paged[ListedSession]): ...


class PinIn(In):
    """Content for every prompt of the session."""

    content: NotEmpty
    relevance: float | None = Field(default=None, ge=0, le=1)
    source: Annotated[str, StringConstraints(max_length=2000)] | None = None


class PinOut(answer_of(Pin)): ...


class PinFiguresOut(answer_of(PinFigures)):
    """A pin's tokens in every prompt, and its relevance with the reasons."""

    related: list[RelatedWordOut]


class ListedPin(PinOut):
    """A pin in a list; it has `figures` with `figures=true`."""

    figures: PinFiguresOut | None = None


class PinPage(Paged[ListedPin]): ...
