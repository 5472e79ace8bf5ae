"""The reference as Markdown: of the API, from its OpenAPI document, and of the settings, from `.env.example`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from app.core.config import Settings
from app.main import create_app

Schema: TypeAlias = Mapping[str, Any]

_METHODS = ("get", "post", "put", "patch", "delete")
_TITLES = {"turns": "Turns", "chat": "Chat completions", "operations": "Operations"}


def reference() -> str:
    """The whole page: operations by tag, then the schemas that they name."""
    document = create_app(Settings.model_construct()).openapi()
    parts = [
        "# API reference",
        "Made from the OpenAPI document that the service answers at `/openapi.json`; `/docs` of a running one is the "
        "same with a form to try it. Errors are `application/problem+json` ([Problem](#problem)); what each code means "
        "is in [Operations](/operations.md#problem-codes).",
        *_operations(document),
        "## Schemas",
    ]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return "\n\n".join(parts) + "\n"


def settings(example: str) -> str:
    """The page of the settings: the variables of `.env.example`, with their defaults and the lines above them."""
    rows: list[tuple[str, ...]] = []
    meaning: list[str] = []
    for line in example.splitlines():
        variable = re.fullmatch(r"(# )?([A-Z_]+)=(.*)", line)
        if variable:
            rows.append((f"`{variable[2]}`", f"`{variable[3]}`" if variable[3] else "", _cell(" ".join(meaning))))
            meaning = []
        else:
            meaning = [*meaning, line.removeprefix("# ")] if line else []
    return "\n\n".join(
        (
            "# Settings",
            "Look up here what can be set, and what applies if it is not. Settings are read from the environment and "
            "from `.env`; the environment takes precedence. The file `.env.example` is this list, ready to copy.",
            _table(("variable", "default", "meaning"), rows) + "\n",
        )
    )


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                shared = document["components"]["responses"]
                answers = {
                    status: shared.get(answer.get("$ref", "").rpartition("/")[2], answer)
                    for status, answer in operations[method]["responses"].items()
                }
                operation = operations[method] | {"responses": answers}
                by_tag.setdefault(operation.get("tags", ["other"])[0], []).append((method, path, operation))
    for tag, found in by_tag.items():
        yield f"## {_TITLES.get(tag, tag.capitalize())}"
        for method, path, operation in sorted(found, key=lambda each: (each[1], _METHODS.index(each[0]))):
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    if operation.get("description"):
        yield _prose(operation["description"])
    parameters = operation.get("parameters", ())
    if parameters:
        yield _table(
            ("parameter", "in", "type", "meaning"),
            [
                (
                    f"`{parameter['name']}`" + ("" if parameter.get("required") else " (optional)"),
                    parameter["in"],
                    _type(parameter["schema"]),
                    _meaning(parameter | {"schema": {}}, parameter["schema"]),
                )
                for parameter in parameters
            ],
        )
    body = operation.get("requestBody", {}).get("content", {})
    for media, content in body.items():
        yield f"Body, `{media}`: {_type(content.get('schema', {}))}"
    yield _table(
        ("answer", "is", "when"),
        [
            (status, _answered(answer), _cell(answer.get("description", "")))
            for status, answer in sorted(operation["responses"].items())
        ],
    )


def _answered(answer: Mapping[str, Any]) -> str:
    kinds = {_type(content.get("schema", {})) for content in answer.get("content", {}).values()}
    return ", ".join(sorted(kind for kind in kinds if kind)) or "nothing"


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    if schema.get("description"):
        yield _prose(schema["description"])
    properties = schema.get("properties")
    if not properties:
        yield f"Is {_type(schema)}."
        return
    required = schema.get("required", ())
    yield _table(
        ("field", "type", "meaning"),
        [
            (f"`{field}`" + (" (required)" if field in required else ""), _type(of), _meaning(of, of))
            for field, of in properties.items()
        ],
    )


def _type(schema: Schema) -> str:
    """A type in a few words, with a link where it has a name."""
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[union]))
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    values = schema.get("enum", [schema["const"]] if "const" in schema else ())
    if values:
        return " or ".join(f"`{value}`" for value in values)
    return _plain_type(schema)


def _plain_type(schema: Schema) -> str:
    kind = str(schema.get("type", ""))
    if kind == "array":
        return f"array of {_type(schema.get('items', {})) or 'anything'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties']) or 'anything'}"
    return f"{kind}, {schema['format']}" if "format" in schema else kind


def _meaning(described: Schema, schema: Schema) -> str:
    notes = [_cell(described.get("description", ""))]
    if schema.get("default") not in (None, "", [], {}):
        notes.append(f"Default `{schema['default']}`.")
    for word, bound in (("minimum", "At least"), ("maximum", "At most"), ("maxLength", "At most, in letters,")):
        if word in schema:
            notes.append(f"{bound} {schema[word]:,}.")
    return " ".join(note for note in notes if note)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", _prose(text)).replace("|", "\\|").strip()


def _prose(text: str) -> str:
    """A docstring as Markdown: what could be read as HTML or as a directive is escaped, code stays."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([<{}*_])", r"\\\1", piece) for piece in pieces)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
