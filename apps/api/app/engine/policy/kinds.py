"""What values a policy's fields take: how each is read, and the same in JSON Schema for those who draw a form of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

from app.domain.types import JsonObject
from app.engine.policy.policy import PRIORITY_REGIONS, Allocation, Recall

_LARGEST_INTEGER = 2**31 - 1
_MOST_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Kind:
    """`parse` gives the value as a policy has it, or raises `ValueError` with a reason. `schema` describes JSON that
    may be said; what it cannot say, such as shares of more than 100 percent together, `parse` alone refuses."""

    parse: Callable[[object], Any]
    schema: JsonObject


def integer(least: int) -> Kind:
    """A whole number of at least `least`."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_INTEGER:
            raise ValueError(f"must be a whole number of at least {least}")
        return value

    return Kind(parse, {"type": "integer", "minimum": least, "maximum": _LARGEST_INTEGER})


def choice(*allowed: str) -> Kind:
    """One of these words."""

    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return cast(str, value)

    return Kind(parse, {"type": "string", "enum": list(allowed)})


def or_none(kind: Kind) -> Kind:
    """The same, or null."""

    def parse(value: object) -> Any:
        return None if value is None else kind.parse(value)

    return Kind(parse, kind.schema | {"type": [kind.schema["type"], "null"]})


def _record(of: type[Any], parts: Mapping[str, Kind]) -> Kind:
    """An object whose missing parts keep their defaults."""

    def parse(value: object) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"must be an object of {', '.join(parts)}")  # noqa: TRY004 - the caller turns it into a 422
        given = cast("Mapping[object, object]", value)
        read: dict[str, Any] = {}
        for name, part in given.items():
            kind = parts.get(name) if isinstance(name, str) else None
            if kind is None:
                raise ValueError(f"has no part {name!r}, only {', '.join(parts)}")
            try:
                read[cast(str, name)] = kind.parse(part)
            except ValueError as error:
                raise ValueError(f"has a {name} that {error}") from error
        return of(**read)

    properties = {name: kind.schema for name, kind in parts.items()}
    return Kind(parse, {"type": "object", "properties": properties, "additionalProperties": False})


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError("must be a number above 0 and at most 1")
    return float(value)


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or not 0 <= value <= 1:
        raise ValueError("must be a number of 0 to 1")
    return float(value)


def _percent(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_PERCENT:
        raise ValueError("must be a number of 0 to 100")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - the caller turns it into a 422
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - the caller turns it into a 422
    return value


RATIO = Kind(_ratio, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})
SHARE = Kind(_share, {"type": "number", "minimum": 0, "maximum": 1})
PERCENT = Kind(_percent, {"type": "number", "minimum": 0, "maximum": _MOST_PERCENT})
FLAG = Kind(_flag, {"type": "boolean"})
TEXT = Kind(_text, {"type": "string"})

_SHARED_OUT = ("goal_pct", "pinned_files_pct", "map_pct", "reserved_for_output_pct")
_ANY_ALLOCATION = _record(Allocation, dict.fromkeys(_SHARED_OUT, PERCENT))


def _allocation(value: object) -> Allocation:
    allocation: Allocation = _ANY_ALLOCATION.parse(value)
    if sum(getattr(allocation, name) for name in _SHARED_OUT) > _MOST_PERCENT:
        raise ValueError("shares out more than 100 percent")
    if not 0 < allocation.reserved_for_output_pct < _MOST_PERCENT:
        raise ValueError("must leave the output a share, and not all")
    return allocation


def _priority(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of regions")  # noqa: TRY004 - the caller turns it into a 422
    named = list(cast("Sequence[object]", value))
    if named[:1] != ["goal"] or sorted(map(str, named)) != sorted(PRIORITY_REGIONS):
        raise ValueError(f"must name {', '.join(PRIORITY_REGIONS)} once each, the goal first: it is never trimmed")
    return tuple(cast("list[str]", named))


ALLOCATION = Kind(_allocation, _ANY_ALLOCATION.schema)
RECALL = _record(Recall, {"enabled": FLAG, "max_share": SHARE, "min_score_ratio": SHARE})
PRIORITY = Kind(
    _priority,
    {
        "type": "array",
        "items": {"type": "string", "enum": list(PRIORITY_REGIONS)},
        "minItems": len(PRIORITY_REGIONS),
        "maxItems": len(PRIORITY_REGIONS),
        "uniqueItems": True,
    },
)
