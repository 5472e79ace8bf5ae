"""Records of the domain as answers: their schema and their JSON both come from the one dataclass."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel, Field, create_model

from app.domain.types import JsonObject


def answer_of(record: type[Any]) -> type[BaseModel]:
    """A schema with the record's fields, in its order; a class made of it says which its JSON writes otherwise.

    What a field's metadata says (`description`) stands in the schema, so that the domain knows no Pydantic.
    """
    hints = get_type_hints(record)
    members: dict[str, Any] = {
        field.name: (hints[field.name], Field(description=field.metadata.get("description")))
        for field in fields(record)
    }
    return create_model(record.__name__, **members)


def as_json(record: Any, **otherwise: object) -> JsonObject:
    """The record's fields by name, in its order; `otherwise` has the values of those that its JSON writes otherwise."""
    return {field.name: getattr(record, field.name) for field in fields(record)} | otherwise
