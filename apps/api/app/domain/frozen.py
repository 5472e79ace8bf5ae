"""Values that nothing changes once they are made, and copies of them with other values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, TypeVar, dataclass_transform, overload

_Made = TypeVar("_Made")


@overload
def frozen(cls: type[_Made], /) -> type[_Made]: ...
@overload
def frozen(
    *, slots: bool = True, eq: bool = True, kw_only: bool = False, weakref_slot: bool = False
) -> Callable[[type[_Made]], type[_Made]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, eq: bool = True, **options: bool) -> Any:
    """A dataclass with slots whose fields only the type checker holds to be frozen; hashed by them if compared by them.

    `dataclass(frozen=True)` refuses at run time as well, for which its `__init__` calls `object.__setattr__` for each
    field: a tenth of all that a default turn costs the service.
    """

    def made(of: type[Any]) -> type[Any]:
        hashed_by_fields = eq and "__hash__" not in vars(of)
        return dataclass(of, eq=eq, unsafe_hash=hashed_by_fields, **{"slots": True, **options})

    return made if cls is None else made(cls)


def filled(kind: type[_Made], given: dict[str, Any], other: Callable[[str], Any]) -> _Made:
    """A dataclass of this kind with the values `given` by field name, and `other(name)` for its other fields. Raises
    `TypeError` for a name that it has not.

    The fields are set one by one: to pass 16 of them to `__init__` by keyword takes twice as many instructions.
    """
    made = kind.__new__(kind)
    for name in names_of(kind):
        setattr(made, name, given.pop(name) if name in given else other(name))
    if given:
        raise TypeError(f"{kind.__name__} has no {', '.join(given)}")
    return made


def replace(record: _Made, **changes: Any) -> _Made:
    """A copy of a dataclass with these values in place of its own."""
    return filled(record.__class__, changes, partial(getattr, record))


def values_of(record: Any, *without: str) -> dict[str, Any]:
    """A dataclass's values by field name, in its order, except the fields in `without`."""
    return {name: getattr(record, name) for name in names_of(record.__class__) if name not in without}


@cache
def names_of(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields, in its order."""
    return tuple(each.name for each in fields(kind))
