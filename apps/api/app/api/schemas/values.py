"""What schemas of several nouns are made of: how strict they are, and the values that stored rows consist of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class In(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Part of a form that others define: what we need is checked, the rest is passed on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


_INT32: Final = 2**31 - 1


LARGEST: Final = 2**42
"""Of a count or number: more than any session has, and so small that no sum over a session leaves 64 bits."""


Id = Annotated[
    str,
    StringConstraints(pattern="^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"),
    WithJsonSchema({"type": "string", "format": "uuid"}),
]


Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


Count = Annotated[int, Field(ge=0, le=LARGEST)]


Difference = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


Seq = Annotated[int, Field(ge=1, le=LARGEST)]


SmallSeq = Annotated[int, Field(ge=1, le=_INT32)]


Dollars = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,10})?$")]


def _instant(value: str) -> str:
    if not 1970 <= datetime.fromisoformat(value).year < 9000:
        raise ValueError("An instant lies between 1970 and 9000")
    return value


Instant = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)$"),
    AfterValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
