"""Records of the domain as answers: their schema and their JSON both come from the one dataclass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from types import NoneType
from typing import Any, get_args, get_type_hints
from uuid import UUID

from pydantic import BaseModel, Field, create_model

from app.api.schemas.values import Id, Instant, Open
from app.domain.types import JsonObject


def answer_of(record: type[Any], base: type[BaseModel] = BaseModel) -> type[BaseModel]:
    """A schema with the record's fields, in its order; a class made of it says which its JSON writes otherwise.

    What a field's metadata says (`description`) stands in the schema, so that the domain knows no Pydantic.
    """
    return create_model(record.__name__, __base__=base, **_members(record))


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
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != without} | otherwise


def _members(record: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(record, include_extras=True)
    descriptions = {each.name: each.metadata.get("description") for each in fields(record)}
    return {name: (hints[name], Field(description=description)) for name, description in descriptions.items()}


def _as_text(hint: Any) -> Any:
    if NoneType in get_args(hint):
        return _as_text(get_args(hint)[0]) | None
    plain = getattr(hint, "__supertype__", hint)
    texts: dict[Any, Any] = {UUID: Id, datetime: Instant}
    return texts.get(plain, plain)
