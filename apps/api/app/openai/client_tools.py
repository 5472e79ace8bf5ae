"""Tools of the Responses form that a client runs and that are no functions: `custom`, whose input is text, and
`local_shell`, which models are offered as a function. A call of one is kept as a function's call. The tools of a
response's request show which of its calls are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import orjson

from app.domain.content import arguments_of, input_of
from app.domain.types import JsonObject, ToolCall

ClientTool: TypeAlias = Literal["custom", "local_shell"]

_SHELL = "local_shell"
_SHELL_FUNCTION: JsonObject = {
    "name": _SHELL,
    "description": "Runs a command on the user's machine, and returns what it printed.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
}
_NO_ACTION: JsonObject = {"command": [], "env": {}, "timeout_ms": None, "user": None, "working_directory": None}


def chat_tool(tool: Mapping[str, Any]) -> JsonObject:
    """A tool in the form of chat completions."""
    match tool["type"]:
        case "custom":
            return {"type": "custom", "custom": _custom(tool)}
        case "local_shell":
            return {"type": "function", "function": _SHELL_FUNCTION}
        case _:
            kept = ("name", "description", "parameters", "strict")
            return {"type": "function", "function": {name: tool[name] for name in kept if tool.get(name) is not None}}


def client_tools(tools: Sequence[Mapping[str, Any]]) -> Mapping[str, ClientTool]:
    """By the name of the function that stands for it, what each tool is that is none."""
    kinds: dict[str, ClientTool] = {}
    for tool in tools:
        if tool["type"] == "custom":
            kinds[tool["name"]] = "custom"
        elif tool["type"] == _SHELL:
            kinds[_SHELL] = _SHELL
    return kinds


def call_of(item: Mapping[str, Any]) -> ToolCall:
    """The function's call that stands for an item `custom_tool_call` or `local_shell_call`."""
    if item["type"] == "custom_tool_call":
        return ToolCall(item["call_id"], item["name"], arguments_of(item["input"]))
    action = {name: value for name, value in item["action"].items() if name != "type" and value not in (None, {})}
    return ToolCall(item["call_id"], _SHELL, orjson.dumps(action).decode())


def call_fields(kind: ClientTool | None, call: ToolCall) -> JsonObject:
    """What an item of the call has beside its id; None is a function's."""
    if kind is None:
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments} | _DONE
    if kind == "custom":
        text = input_of(call.arguments)
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": text} | _DONE
    given = _arguments(call)
    action = {name: given.get(name, default) for name, default in _NO_ACTION.items()}
    return {"type": "local_shell_call", "call_id": call.id, "action": {"type": "exec"} | action} | _DONE


_DONE: JsonObject = {"status": "completed"}


def _custom(tool: Mapping[str, Any]) -> JsonObject:
    form: Mapping[str, Any] = tool.get("format") or {}
    described = {"description": tool["description"]} if tool.get("description") else {}
    if not (form.get("syntax") and form.get("definition")):
        return {"name": tool["name"], **described}
    grammar = {name: form[name] for name in ("syntax", "definition")}
    return {"name": tool["name"], **described, "format": {"type": "grammar", "grammar": grammar}}


def _arguments(call: ToolCall) -> JsonObject:
    try:
        value = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return {}
    return cast("JsonObject", value) if isinstance(value, dict) else {}
