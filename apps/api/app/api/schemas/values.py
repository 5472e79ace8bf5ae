"""What schemas of several nouns are made of: how strict they are, and the values that stored rows consist of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from app.domain.types import LARGEST


class In(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Part of a form that others define: what we need is checked, the rest is passed on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


Id = Annotated[
    str,
    StringConstraints(pattern="^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"),
    WithJsonSchema({"type": "string", "format": "uuid"}),
]


Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


Seq = Annotated[int, Field(ge=1, le=LARGEST)]


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
