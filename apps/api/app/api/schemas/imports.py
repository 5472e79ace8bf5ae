"""An exported session, and the body of an import: how both are described, and how the body is read."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from app.api.schemas.bodies import MOST_VALUES_OF_IMPORT, parse_object, places
from app.api.schemas.values import Open
from app.archive.document import FORMAT, VERSION
from app.domain.errors import InvalidFields
from app.domain.types import JsonObject
from app.services.archive.new_rows import ImportedMessages

_LEAST_BYTES_A_VALUE = 16
"""Least bytes per value, on average, of an import with more than `MOST_VALUES_OF_IMPORT` values."""


class Document(Open):
    """An object whose members are described in the guides."""


class ImportIn(Open):
    """Either a document from `GET …/export`, or OpenAI-style `messages` with the fields of a new session."""

    format: str | None = Field(default=None, description=f"`{FORMAT}` for an export; absent for messages.")
    version: int | None = Field(default=None, description=f"{VERSION}, with `format`.")
    messages: list[dict[str, Any]] = Field(description="An export's messages, or OpenAI-style ones.")


def read_import(raw: bytes) -> JsonObject | ImportedMessages:
    """Parse the body of an import, an exported document or messages, and validate each of its rows by itself.
    CPU-bound: it runs on a thread, or in a process for heavy work. Raises `InvalidRequest`."""
    from app.api.schemas.archive import check_rows, read_conversation  # noqa: PLC0415 - takes long, for few processes

    document = parse_object(raw, max(MOST_VALUES_OF_IMPORT, len(raw) // _LEAST_BYTES_A_VALUE))
    if not document.keys() & {"format", "messages"}:
        reason = "The body is neither an exported session nor does it have `messages`."
        raise InvalidFields([("body.messages", "Field required")], reason)
    try:
        body = ImportIn.model_validate(document)
    except ValidationError as error:
        raise InvalidFields(places(error, document, "body")) from None
    if body.format is None:
        return read_conversation(document)
    check_rows(document)
    return document
