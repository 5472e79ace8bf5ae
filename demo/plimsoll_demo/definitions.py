"""The tool definitions of a conversation: the recorded ones, and the smallest possible for what else was called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

from plimsoll_demo.recording import LeftOut, RecordedTurn

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


def function_name(recorded: object) -> str:
    """The name under which a recorded function is defined and called: of 1 to 64 letters, digits, `_` and `-`."""
    text = recorded if isinstance(recorded, str) else ""
    return _NO_NAME_CHARACTER.sub("_", text)[:_LONGEST_NAME] or "unnamed"


def definitions(
    recorded: object, turns: Iterable[RecordedTurn], left_out: Counter[LeftOut]
) -> tuple[Mapping[str, Any], ...]:
    """The recording's own definitions and the smallest one for every other function that `turns` call, by name.

    `recorded` is the recording's list; an entry that is no function in the OpenAI form is counted in `left_out`.
    """
    known: dict[str, Mapping[str, Any]] = {}
    for entry in cast("list[object]", recorded) if isinstance(recorded, list) else ():
        if _is_definition(entry):
            known.setdefault(entry["function"]["name"], entry)
        else:
            left_out["tool_definitions"] += 1
    called = {call.name for turn in turns for round_ in turn.rounds for call in round_.calls}
    return tuple(known.get(name) or _smallest(name) for name in sorted(called | known.keys()))


def united(all_tools: Iterable[tuple[Mapping[str, Any], ...]]) -> tuple[Mapping[str, Any], ...]:
    """The definitions of several conversations in one session: the first of each name."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for tools in all_tools:
        for tool in tools:
            by_name.setdefault(tool["function"]["name"], tool)
    return tuple(by_name[name] for name in sorted(by_name))


def _smallest(name: str) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def _is_definition(entry: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(entry, dict):
        return False
    tool = cast("Mapping[str, Any]", entry)
    if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        return False
    function = cast("Mapping[str, Any]", tool["function"])
    return (
        _NAME.fullmatch(str(function.get("name", ""))) is not None
        and isinstance(function.get("description"), str | None)
        and isinstance(function.get("parameters"), dict | None)
    )
