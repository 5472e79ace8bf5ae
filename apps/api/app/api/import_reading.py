"""The body of an import: strict JSON, then every row by itself. Runs where `services/archive/import_job.py` runs."""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from app.api import problems
from app.api.schemas.archive import BLOCKS, ROWS, ArchivedConversationIn, ExportHead, ImportIn
from app.api.strict_json import parse_body
from app.archive.document import MOST_FAULTS
from app.domain.errors import ImportRefused, InvalidRequest
from app.domain.types import JsonObject
from app.services.archive.import_job import Conversation, Export

Model = TypeVar("Model", bound=BaseModel)


def read_import(raw: bytes) -> Export | Conversation:
    """The document, once every row of it is what it should be by itself. CPU-bound; raises `InvalidRequest`."""
    document = parse_body(raw)
    if not isinstance(document, dict):
        raise InvalidRequest("The body must be a JSON object.", ("body",))
    try:
        body = ImportIn.model_validate(document)
    except ValidationError as error:
        raise problems.InvalidFields(problems.places(error, "body")) from None
    given = cast(JsonObject, document)
    return _conversation(given) if body.format is None else _export(given)


def _export(document: JsonObject) -> Export:
    head = _validated(ExportHead, document, "body")
    unknown = sorted((head.model_extra or {}).keys())
    if unknown:
        raise ImportRefused([(problems.where("body", unknown[0]), "There is no such field")])
    faults: list[tuple[str, str]] = []
    for section, model in ROWS.items():
        for at, row in enumerate(document[section]):
            faults += _faults_of(model, row, "body", section, str(at))
            if len(faults) >= MOST_FAULTS:
                raise ImportRefused(faults[:MOST_FAULTS])
    for at, pin in enumerate(document["pins"] if not faults else ()):
        if not pin["name"].isprintable():
            faults.append((f"body.pins.{at}.name", "A pin's name has printable characters only."))
    if not faults:
        faults = _faults_of_blocks(document)[:MOST_FAULTS]
    if faults:
        raise ImportRefused(faults)
    return Export(document)


def _faults_of_blocks(document: JsonObject) -> list[tuple[str, str]]:
    """Of the JSON in blocks that prompts have as tools, or as the parts of a shortened message."""
    named: dict[str, set[str]] = {}
    for refs in (audit["prompt_refs"] for audit in document["audits"] if audit["prompt_refs"]):
        if refs["tools"]:
            named.setdefault(refs["tools"], set()).add("tools")
        for kind, _, sha256 in refs["items"]:
            if kind == "j":
                named.setdefault(sha256, set()).add("j")
    faults: list[tuple[str, str]] = []
    for at, block in enumerate(document["blocks"] if named else ()):
        for form in sorted(named.get(block["sha256"], ())):
            try:
                BLOCKS[form].validate_python(parse_body(block["content"].encode()))
            except (ValidationError, InvalidRequest):
                faults.append((f"body.blocks.{at}.content", "A prompt needs this to be JSON of another form."))
    return faults


def _conversation(document: JsonObject) -> Conversation:
    conversation = _validated(ArchivedConversationIn, document, "body")
    fields = {name: document[name] for name in conversation.model_fields_set - {"messages"}}
    return Conversation(fields, document["messages"])


def _faults_of(model: type[BaseModel], row: object, *within: str) -> list[tuple[str, str]]:
    try:
        model.model_validate(row)
    except ValidationError as error:
        return problems.places(error, *within)
    return []


def _validated(model: type[Model], document: JsonObject, *within: str) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ImportRefused(problems.places(error, *within)) from None
