"""An exported session on its way out and in: written piece by piece, read row by row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from app.api import problems
from app.api.direct_route import plain_json
from app.api.schemas.archive import BLOCKS, ROWS, ArchivedConversationIn, ExportHead
from app.api.strict_json import parse_body
from app.archive.document import FORMAT, MOST_FAULTS, SECTIONS, VERSION
from app.domain.errors import ImportRefused, InvalidRequest
from app.domain.types import JsonObject

_Model = TypeVar("_Model", bound=BaseModel)

_IN_MEMORY_BYTES = 1024 * 1024
_OPTIONS = orjson.OPT_UTC_Z


async def spooled(parts: AsyncIterator[tuple[str, Any]]) -> IO[bytes]:
    """The document of these parts in a file that nobody else sees, read from its beginning.

    A slow client then reads from the file, while the connection that the parts were read by serves others. Up to 1 MiB
    stays in memory.
    """
    file = cast("IO[bytes]", SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115 - whoever sends it closes it
    try:
        file.write(orjson.dumps({"format": FORMAT, "version": VERSION})[:-1])
        waiting = list(SECTIONS)
        separator = b""
        async for name, value in parts:
            if name == "session":
                file.write(b',"session":%b' % _encoded(value))
                continue
            while name in waiting:
                file.write(_opening(waiting.pop(0)))
                separator = b""
            for row in value:
                file.write(separator + _encoded(row))
                separator = b",\n"
        file.write(b"".join(map(_opening, waiting)) + b"]}\n")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _opening(section: str) -> bytes:
    """The end of the list before, and the beginning of this one."""
    return (b"" if section == SECTIONS[0] else b"]") + b',"%b":[' % section.encode()


def _encoded(value: object) -> bytes:
    return orjson.dumps(value, default=_plain, option=_OPTIONS)


def _plain(value: object) -> object:
    """Prices keep all their digits."""
    return format(value, "f") if isinstance(value, Decimal) else plain_json(value)


def read_export(document: JsonObject) -> JsonObject:
    """The document, once every row of it is what it should be by itself. CPU-bound; raises `ImportRefused`."""
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
    return document


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


def read_conversation(document: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """The session's fields and the messages of a conversation. CPU-bound; raises `ImportRefused`."""
    conversation = _validated(ArchivedConversationIn, document, "body")
    fields = {name: document[name] for name in conversation.model_fields_set - {"messages"}}
    return fields, document["messages"]


def _faults_of(model: type[BaseModel], row: object, *within: str) -> list[tuple[str, str]]:
    try:
        model.model_validate(row)
    except ValidationError as error:
        return problems.places(error, *within)
    return []


def _validated(model: type[_Model], document: JsonObject, *within: str) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ImportRefused(problems.places(error, *within)) from None
