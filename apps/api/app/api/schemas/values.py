"""Parts that schemas of several nouns share: base classes of bodies, the values of stored rows, and records of the
domain as answers, whose schema and JSON both come from one dataclass.

There is one file of schemas per noun, named like the routes. A schema for one route alone may be in the route's file.
Bodies are not coerced ("5" is no number) and have no unknown fields, so that a typo is refused instead of ignored.
A test checks real answers against the classes that describe them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)

from app.domain.types import LARGEST, SmallSeq

Item = TypeVar("Item")


def optional(description: str, **constraints: Any) -> Any:
    """A field that may be absent, with what the API's document says of it."""
    return Field(default=None, description=description, **constraints)


class In(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class VendorIn(In):
    """A body that a vendor defines. A field that we do not have may be null: clients send it if it was not given."""

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if value is not None or name in cls.model_fields}


class Answer(BaseModel):
    """The base of what describes answers: only for the OpenAPI document, so that no start builds its validators."""

    model_config = ConfigDict(defer_build=True)


class Paged(Answer, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class Open(BaseModel):
    """Part of a format that others define: the fields that we need are checked, the others are passed on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


PATTERNS_IN_WORDS: dict[str, str] = {}
"""What an error says in place of each pattern."""


def in_words(pattern: str, words: str) -> str:
    """The pattern, of which errors say these words."""
    PATTERNS_IN_WORDS[pattern] = words
    return pattern


Id = Annotated[
    str,
    StringConstraints(pattern=in_words("^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$", "Must be a UUID in lower case")),
    WithJsonSchema({"type": "string", "format": "uuid"}),
]

OutputTokens = Annotated[SmallSeq | None, Field(description="Clamped to the output reserve.")]

Sha256 = Annotated[
    str, StringConstraints(pattern=in_words("^[0-9a-f]{64}$", "Must have 64 hexadecimal digits in lower case"))
]

NotEmpty = Annotated[str, StringConstraints(min_length=1)]

FunctionName = Annotated[
    str,
    StringConstraints(
        pattern=in_words("^[A-Za-z0-9_-]{1,64}$", "Must have 1 to 64 letters of English, digits, - and _")
    ),
]

Seq = Annotated[int, Field(ge=1, le=LARGEST)]

_SPEAKER = in_words(r"^[^\s\x00-\x1f\x7f<|\\/>]{1,64}$", r"Must have 1 to 64 characters without blanks and < > | \ /")
Speaker = Annotated[str, StringConstraints(pattern=_SPEAKER)]
"""The name of one of several people or agents, in the form that OpenAI accepts: it is sent to providers unchanged."""

_DOLLARS = in_words(r"^[0-9]{1,9}(\.[0-9]{1,10})?$", "Must be an amount such as 0.0125, with at most 10 decimals")
Dollars = Annotated[str, StringConstraints(pattern=_DOLLARS)]


def _instant(value: str) -> str:
    if not 1970 <= datetime.fromisoformat(value).year < 9000:
        raise ValueError("An instant lies between 1970 and 9000")
    return value


_INSTANT = in_words(
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)$",
    "Must be a time in UTC such as 2026-05-08T13:56:00Z",
)
Instant = Annotated[
    str,
    StringConstraints(pattern=_INSTANT),
    AfterValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def answer_of(record: type[Any], base: type[BaseModel] = Answer) -> type[BaseModel]:
    """A schema with the record's fields, in its order. A subclass declares the fields whose JSON has another form.

    A field's description comes from its metadata (`description`), so that the domain does not need Pydantic.
    """
    return create_model(record.__name__, __base__=base, **_members(record))


def row_of(record: type[Any], base: type[BaseModel] = Open, *, without: Collection[str]) -> type[BaseModel]:
    """The same for a record whose rows come back in an import: without coercion, with ids and instants as text.

    Fields that `base` has are taken from there.
    """
    there = {*base.model_fields, *without}
    rest = {name: member for name, member in _members(record).items() if name not in there}
    members: dict[str, Any] = {name: (_as_text(hint), field) for name, (hint, field) in rest.items()}
    return create_model(record.__name__, __base__=base, **members)


def _members(record: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(record, include_extras=True)
    return {
        each.name: (hints[each.name], Field(description=each.metadata.get("description"))) for each in fields(record)
    }


def _as_text(hint: Any) -> Any:
    if NoneType in get_args(hint):
        return _as_text(get_args(hint)[0]) | None
    plain = getattr(hint, "__supertype__", hint)
    texts: dict[Any, Any] = {UUID: Id, datetime: Instant}
    return texts.get(plain, plain)
