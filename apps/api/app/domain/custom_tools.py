"""Custom tools, whose input is text and no JSON: `{"type": "custom", "custom": {"name", "description", "format"}}`, as
OpenAI's chat completions have them. Their calls are kept as those of functions, with the text as the argument `input`.
"""

from __future__ import annotations

from typing import cast

import orjson

from app.domain.types import JsonObject, ToolDefinition


def is_custom(tool: ToolDefinition) -> bool:
    """Whether the tool is none of functions."""
    return tool.get("type") == "custom"


def tool_name(tool: ToolDefinition) -> str | None:
    """What models call it."""
    return tool.get("custom" if is_custom(tool) else "function", {}).get("name")


def as_function(tool: ToolDefinition) -> ToolDefinition:
    """A custom tool as a function of one argument, for models that know no other tools; functions as they are."""
    if not is_custom(tool):
        return tool
    custom: JsonObject = tool["custom"]
    form: JsonObject = custom.get("format") or {}
    grammar: JsonObject = form.get("grammar") or {}
    about = "The whole input, as text."
    if grammar:
        about = f"The whole input, as text that follows this {grammar['syntax']} grammar:\n{grammar['definition']}"
    described = {"description": custom["description"]} if custom.get("description") else {}
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": about}},
        "required": ["input"],
    }
    return {"type": "function", "function": {"name": custom["name"], **described, "parameters": parameters}}


def arguments_of(text: str) -> str:
    """The arguments of the call of a custom tool."""
    return orjson.dumps({"input": text}).decode()


def input_of(arguments: str) -> str:
    """The text of such a call; arguments of another form are the text themselves."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments
    text = cast("JsonObject", value).get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
