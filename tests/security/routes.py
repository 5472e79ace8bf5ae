"""The operations of the OpenAPI document, each with a request that it takes: a new route is probed by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx

METHODS = ("get", "put", "post", "delete", "patch")
OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/models/")
"""Whose errors have OpenAI's shape."""
ANTHROPIC_PATHS = ("/v1/messages",)
"""Whose errors have Anthropic's."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address. `body` is None where it takes none, else the least that validates.

    `needs` is the least of its query.
    """

    method: str
    path: str
    body: Any
    query: tuple[str, ...]
    headers: tuple[str, ...]
    needs: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def takes(self, name: str) -> bool:
        """Whether the address has a place of this name."""
        return f"{{{name}}}" in self.path

    def send(
        self,
        client: httpx.Client,
        places: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> httpx.Response:
        """Calls it with these values in the places of its address."""
        return client.request(
            self.method,
            self.path.format_map(places),
            json=self.body if body is None else body,
            headers=headers,
            params={**self.needs, **(params or {})} or None,
        )


def openai_places(session_id: str, reply_seq: int = 2) -> dict[str, str]:
    """What a session and the reply of this number are called in OpenAI's form, and a model."""
    own = session_id.replace("-", "")
    return {
        "conversation_id": f"conv_{own}",
        "response_id": f"resp_{own}{reply_seq:012x}",
        "item_id": f"msg_{own}{reply_seq:012x}",
        "alias": "offline",
    }


def operations(client: httpx.Client, under: str = "/v1/") -> list[Operation]:
    """Every operation whose address begins so, erasing ones last."""
    document = client.get("/openapi.json").json()
    found = [operation for operation in _operations(document) if operation.path.startswith(under)]
    assert len(found) >= 25
    return sorted(found, key=lambda operation: operation.method == "DELETE")


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method in methods.keys() & set(METHODS):
            operation = methods[method]
            parameters: list[dict[str, Any]] = operation.get("parameters", [])
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            yield Operation(
                method.upper(),
                path,
                None if content is None else least(content["schema"], document),
                tuple(parameter["name"] for parameter in parameters if parameter["in"] == "query"),
                tuple(parameter["name"] for parameter in parameters if parameter["in"] == "header"),
                {
                    parameter["name"]: str(least(parameter["schema"], document))
                    for parameter in parameters
                    if parameter["in"] == "query" and parameter["required"]
                },
            )


def least(schema: dict[str, Any], document: dict[str, Any]) -> Any:  # noqa: PLR0911 - one for each kind of schema
    """The smallest value of a schema that has what is required of it, and no more."""
    if "$ref" in schema:
        target: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return least(target, document)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            options = cast("list[dict[str, Any]]", schema[choice])
            return least(min(options, key=lambda option: option.get("type") != "string"), document)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: least(properties[name], document) for name in schema.get("required", ())}
        case "array":
            return [least(schema["items"], document) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "offline"  # any text will do, and where a model is meant this is one
