"""Values that nothing changes once they are made, and copies of them with other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

_Made = TypeVar("_Made")


def described(description: str, **options: Any) -> Any:
    """A field that a document of the API describes; `options` are those of `field`."""
    return field(metadata={"description": description}, **options)


@overload
def frozen(cls: type[_Made], /) -> type[_Made]: ...
@overload
def frozen(
    *, slots: bool = True, eq: bool = True, kw_only: bool = False, weakref_slot: bool = False
) -> Callable[[type[_Made]], type[_Made]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, described))
def frozen(cls: type[Any] | None = None, /, *, eq: bool = True, **options: bool) -> Any:
    """A dataclass with slots whose fields only the type checker holds to be frozen; hashed by them if compared by them.
    The `__init__` of `dataclass(frozen=True)` calls `object.__setattr__` for each field: a tenth of all that a default
    turn costs the service."""

    def made(of: type[Any]) -> type[Any]:
        hashed_by_fields = eq and "__hash__" not in vars(of)
        return dataclass(of, eq=eq, unsafe_hash=hashed_by_fields, **{"slots": True, **options})

    return made if cls is None else made(cls)


def replace(record: _Made, **changes: Any) -> _Made:
    """A copy of a dataclass with these values in place of its own. Raises `TypeError` for a name that it has not."""
    kind = record.__class__
    read, places, made = _copying(kind)
    *values, _ = read(record)
    for name, value in changes.items():
        if name not in places:
            raise TypeError(f"{kind.__name__} has no {name}")
        values[places[name]] = value
    return made(*values)


@cache
def _copying(kind: Any) -> tuple[Callable[[Any], tuple[Any, ...]], Mapping[str, int], Callable[..., Any]]:
    """What reads a dataclass's values, and its class behind them, so that they are always several; the place of each
    value by its name; and what makes a dataclass of the values. To pass values by name takes several times as long."""
    names = names_of(kind)

    def by_name(*values: Any) -> Any:
        return kind(**dict(zip(names, values, strict=True)))

    made = by_name if any(each.kw_only for each in fields(kind)) else kind
    return attrgetter(*names, "__class__"), {name: at for at, name in enumerate(names)}, made


def values_of(record: Any, *without: str) -> dict[str, Any]:
    """A dataclass's values by field name, in its order, except the fields in `without`."""
    read, places, _ = _copying(record.__class__)
    values = dict(zip(places, read(record), strict=False))  # the last one read is the class
    for name in without:
        del values[name]
    return values


@cache
def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields, in its order."""
    return tuple(each.name for each in fields(kind))
