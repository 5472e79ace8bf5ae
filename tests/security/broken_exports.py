"""An export with one value of it made wrong: every value, by type, size, sign, reference, removal and addition."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from uuid import UUID

Path: TypeAlias = tuple[str | int, ...]

_REMOVED = object()
_OF_OTHER_TYPES: tuple[Any, ...] = (None, True, 7, 1.5, "completed", [], ["completed"], {}, {"a": {"b": [1]}}, _REMOVED)
_NUMBERS = (-1, 0, 2**53, 2**63 - 1, 1e300)
_TEXTS = ("", "\u0394" * 300, "9999-12-31T23:59:59.999999Z", str(UUID(int=7)))


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done at a place of a document. `document` gives a copy of it in which it was done."""

    path: Path
    name: str
    value: Any

    def document(self, export: dict[str, Any]) -> dict[str, Any]:
        # Only what stands on the way is copied: a copy of the whole would take longer than its import.
        copied = dict(export)
        target: Any = copied
        for step in self.path[:-1]:
            target[step] = list(target[step]) if isinstance(target[step], list) else dict(target[step])
            target = target[step]
        if self.value is _REMOVED:
            del target[self.path[-1]]
        else:
            target[self.path[-1]] = deepcopy(self.value)
        return copied


def faults(export: dict[str, Any]) -> Iterator[Fault]:
    """Every fault of the values of the export, in its order.

    Of values at the same place of different rows, of which there may be hundreds, the first and the last.
    """
    other_ids = (export["turns"][0]["id"], export["messages"][-1]["id"], export["summaries"][0]["id"])
    for path, value in _chosen(export):
        for wrong in (*_OF_OTHER_TYPES, *_like(value, other_ids)):
            if type(wrong) is not type(value) or wrong != value:
                name = "removed" if wrong is _REMOVED else repr(wrong)[:40]
                yield Fault(path, name, wrong)


def _chosen(export: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    by_place: dict[Path, list[tuple[Path, Any]]] = {}
    for path, value in _values(export, ()):
        place = tuple("*" if isinstance(step, int) else step for step in path)
        by_place.setdefault(place, []).append((path, value))
    for found in by_place.values():
        yield from found[:1]
        yield from found[1:][-1:]


def _values(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, member in cast("dict[str, Any]", value).items():
            yield from _values(member, (*path, name))
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            yield from _values(item, (*path, at))


def _like(value: Any, other_ids: tuple[str, ...]) -> list[Any]:
    """Wrong values that look more like this one."""
    match value:
        case dict():
            return [{**cast("dict[str, Any]", value), "no such field": ["completed"]}]
        case list():
            items = cast("list[Any]", value)
            return [items[1:], [*items, *items[:1]], items[::-1], [*items, "completed"]] if items else [[None]]
        case bool():
            return [not value]
        case int() | float():
            return [*_NUMBERS, -value, value + 1, str(value)]
        case str():
            return [*_TEXTS, *(other_ids if len(value) == len(other_ids[0]) else ()), value + "x", value[:-1]]
        case _:
            return [-1, "", other_ids[0]]
