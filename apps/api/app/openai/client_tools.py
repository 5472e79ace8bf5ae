"""Tools of a Responses client <-> the tools that models are offered.

Three kinds are not functions: `custom`, whose input is text; `local_shell`, which is offered as a function; and
`namespace`, a group of functions and custom tools, which are offered under one name each. Calls are stored as function
calls. The tools of a response's request show to which of them a call belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.domain.content import call_input, custom_input, sha256_hex
from app.domain.types import JsonObject, ToolCall

SHELL = "local_shell"
_SHELL_FUNCTION: JsonObject = {
    "name": SHELL,
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
_LONGEST_NAME = 64
"""The longest name of a function that providers accept."""


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """The tools in the form of chat completions."""
    return [_chat_tool(tool) for tool in _single(tools)]


def tools_by_function(tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Each tool by the name under which it is offered; one of a namespace has the member `namespace`."""
    return {function_name(tool): tool for tool in _single(tools)}


def function_name(named: Mapping[str, Any]) -> str:
    """The name under which a tool is offered, of the tool or of an item that is its call. Where that of a namespace's
    tool would be too long, its end is a digest."""
    name: str = named.get("name") or SHELL
    if not named.get("namespace"):
        return name
    joined = f"{named['namespace']}__{name}"
    if len(joined) <= _LONGEST_NAME:
        return joined
    digest = sha256_hex(joined)[:12]
    return f"{joined[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def call_fields(tool: Mapping[str, Any] | None, call: ToolCall) -> JsonObject:
    """The fields of a call's item without its id and status. If the request did not have the tool, `tool` is None, and
    the item is that of a function."""
    kind = "function" if tool is None else tool["type"]
    if kind == SHELL:
        given = call_input(call.arguments)
        action = {name: given.get(name, default) for name, default in _NO_ACTION.items()}
        return {"type": "local_shell_call", "call_id": call.id, "action": {"type": "exec"} | action}
    named: JsonObject = {"call_id": call.id, "name": call.name}
    if tool is not None and tool.get("namespace"):
        named |= {"name": tool["name"], "namespace": tool["namespace"]}
    if kind == "custom":
        return {"type": "custom_tool_call", **named, "input": custom_input(call.arguments)}
    return {"type": "function_call", **named, "arguments": call.arguments}


def _single(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The tools, with those of a namespace in its place. What it says of itself is said by its first one."""
    for tool in tools:
        if tool["type"] != "namespace":
            yield tool
            continue
        about = tool.get("description")
        for member in tool["tools"]:
            described = "\n\n".join(filter(None, (about, member.get("description"))))
            yield {**member, "namespace": tool["name"], "description": described}
            about = None


def _chat_tool(tool: Mapping[str, Any]) -> JsonObject:
    match tool["type"]:
        case "local_shell":
            return {"type": "function", "function": _SHELL_FUNCTION}
        case "custom":
            return {"type": "custom", "custom": {**_named(tool, "description"), **_format(tool)}}
        case _:
            return {"type": "function", "function": _named(tool, "description", "parameters", "strict")}


def _named(tool: Mapping[str, Any], *kept: str) -> JsonObject:
    return {"name": function_name(tool), **{name: tool[name] for name in kept if tool.get(name) not in (None, "")}}


def _format(tool: Mapping[str, Any]) -> JsonObject:
    form: Mapping[str, Any] = tool.get("format") or {}
    if not (form.get("syntax") and form.get("definition")):
        return {}
    return {"format": {"type": "grammar", "grammar": {name: form[name] for name in ("syntax", "definition")}}}
