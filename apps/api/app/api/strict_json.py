"""Bodies: strict JSON that Postgres can store, or an `InvalidRequest`.

orjson refuses NaN, Infinity, numbers beyond a double, lone surrogates, bytes that are no UTF-8 and nesting beyond
1,024. What it lets through and we do not: NUL characters (Postgres stores none), integers beyond 64 bits (it would
round them), nesting beyond what any honest body has, and bodies made of a great many tiny values.
"""

from __future__ import annotations

import json
from typing import Any, cast

import orjson

from app.domain.errors import InvalidRequest

DEEPEST = 64
MOST_VALUES = 250_000
LEAST_BYTES_A_VALUE = 16
"""A large body may have more values than that, but not tinier ones on the whole."""
_INT64 = 2**63


def parse_body(raw: bytes) -> Any:
    """The value of a JSON body. Raises `InvalidRequest` that does not quote it."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} at character {error.pos}.", ("body",)) from None
    _check(value, raw)
    return value


def _check(value: Any, raw: bytes) -> None:
    """Looks at every value once, level by level, with no recursion to overflow."""
    may_have_nul = b"\\u0000" in raw
    level: list[Any] = [value]
    most_values = max(MOST_VALUES, len(raw) // LEAST_BYTES_A_VALUE)
    seen = 0
    huge = False
    for _depth in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if may_have_nul and "\0" in item:
                    raise InvalidRequest("The body has a NUL character in a string, which cannot be stored.", ("body",))
            elif isinstance(item, dict):
                entries = cast("dict[str, Any]", item)
                if may_have_nul and any("\0" in key for key in entries):
                    raise InvalidRequest("The body has a NUL character in a key, which cannot be stored.", ("body",))
                below.extend(entries.values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
            elif isinstance(item, (int, float)) and not -_INT64 < item < _INT64:
                huge = True
        seen += len(level)
        if seen + len(below) > most_values:
            raise InvalidRequest(f"The body has more than {most_values} values.", ("body",))
        if not below:
            if huge:
                json.loads(raw, parse_int=_refuse_huge_integer)
            return
        level = below
    raise InvalidRequest(f"The body nests deeper than {DEEPEST} levels.", ("body",))


def _refuse_huge_integer(digits: str) -> int:
    """Distinguished from a large float only by the text: `1e30` is fine, thirty digits would lose their end."""
    if len(digits) > 20 or not -_INT64 <= int(digits) < _INT64:
        raise InvalidRequest("The body has an integer beyond 64 bits.", ("body",))
    return 0
