"""Answers as the documentation shows them, held against what was answered."""

from __future__ import annotations

import json
import re
from typing import Any, cast

DIFFERS_EVERY_TIME = {"id", "item"}


def shown(block: str) -> Any:
    """An answer as the README shows it: `…` at the end of an object stands for members that were left out."""
    return json.loads(re.sub(r",\s*…(?=\s*\})", "", block))


def agrees(shown_value: Any, value: Any, *, name: str = "") -> bool:
    """Whether an answer is what the README shows of it; `…` in a text stands for anything."""
    if isinstance(shown_value, dict):
        members = cast("dict[str, Any]", shown_value)
        return isinstance(value, dict) and all(
            member in value and agrees(of_member, value[member], name=member) for member, of_member in members.items()
        )
    if isinstance(shown_value, list):
        items = cast("list[Any]", shown_value)
        return len(items) == len(value) and all(map(agrees, items, value))
    if isinstance(shown_value, str):
        parts = [".*" if name in DIFFERS_EVERY_TIME else re.escape(part) for part in shown_value.split("…")]
        return re.fullmatch(".*".join(parts), value, re.DOTALL) is not None
    return shown_value == value and type(shown_value) is type(value)
