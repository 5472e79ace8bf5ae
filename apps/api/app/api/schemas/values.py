"""What schemas of several nouns are made of: how strict bodies are, the values of stored rows, and records of the
domain as answers, whose schema and JSON both come from one dataclass.

Schemas are a file a noun, by the names of the routes; what a route has for itself alone stands with it. Bodies take no
coercion ("5" is no number) and no unknown field, so that a typo is refused and not ignored. Classes that describe
answers are for the OpenAPI document; a test holds real answers to them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema, create_model

from app.domain.stored import values_of
from app.domain.types import LARGEST, JsonObject

Item = TypeVar("Item")


class In(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Paged(BaseModel, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class Open(BaseModel):
    """Part of a form that others define: what we need is checked, the rest is passed on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


Id = Annotated[
    str,
    StringConstraints(pattern="^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"),
    WithJsonSchema({"type": "string", "format": "uuid"}),
]

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]

NotEmpty = Annotated[str, StringConstraints(min_length=1)]

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

Seq = Annotated[int, Field(ge=1, le=LARGEST)]

Speaker = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f<|\\/>]{1,64}$")]
"""Who of several people or agents spoke, as OpenAI takes it: it is sent to providers as it is."""

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


def answer_of(record: type[Any], base: type[BaseModel] = BaseModel, *, absent: Collection[str] = ()) -> type[BaseModel]:
    """A schema with the record's fields, in its order; a class made of it says which its JSON writes otherwise.

    What a field's metadata says (`description`) stands in the schema, so that the domain knows no Pydantic. `absent`
    are the fields that an answer may leave out where they are None.
    """
    return create_model(record.__name__, __base__=base, **_members(record, absent))


def row_of(record: type[Any], base: type[BaseModel] = Open, *, without: Collection[str] = ()) -> type[BaseModel]:
    """The same of a record whose rows come back in an import: without coercion, ids and instants as the text they are.

    What `base` has stays as it is there.
    """
    there = {*base.model_fields, *without}
    rest = {name: member for name, member in _members(record).items() if name not in there}
    members: dict[str, Any] = {name: (_as_text(hint), field) for name, (hint, field) in rest.items()}
    return create_model(record.__name__, __base__=base, **members)


def as_json(record: Any, *, without: str | None = None, **otherwise: object) -> JsonObject:
    """The record's fields by name, in its order; `otherwise` has the values of those that its JSON writes otherwise."""
    return values_of(record, without or "") | otherwise


def _members(record: type[Any], absent: Collection[str] = ()) -> dict[str, Any]:
    hints = get_type_hints(record, include_extras=True)
    members: dict[str, Any] = {}
    for each in fields(record):
        default = None if each.name in absent else ...
        members[each.name] = (hints[each.name], Field(default, description=each.metadata.get("description")))
    return members


def _as_text(hint: Any) -> Any:
    if NoneType in get_args(hint):
        return _as_text(get_args(hint)[0]) | None
    plain = getattr(hint, "__supertype__", hint)
    texts: dict[Any, Any] = {UUID: Id, datetime: Instant}
    return texts.get(plain, plain)
