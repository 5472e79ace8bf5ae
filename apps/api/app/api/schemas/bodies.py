"""Parsing of bodies as JSON that Postgres can store, and errors with place and reason, but never with values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from math import copysign
from typing import Any, Final, cast

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.api.schemas.values import PATTERNS_IN_WORDS
from app.domain.errors import InvalidRequest

_MOST_ERRORS = 20
_MOST_DESCRIBED = 1_000
"""Most errors that are described before the first `_MOST_ERRORS` of them are shown: Pydantic describes all or none, and
describing 40,000 blocks the event loop for 0.2 s."""
_LONGEST_WHERE = 200
_OF_A_KEY = "[key]"
"""The end of Pydantic's path if a key of an object is refused."""
DEEPEST = 64
MOST_VALUES = 100_000
MOST_VALUES_OF_IMPORT = 250_000
_INT64, _UINT64 = 2**63, 2**64
_WRITTEN_WITH_EXPONENT: Final = 1e16
"""From this number on floats are written with an exponent; Postgres returns them as integers."""
_TEXTS: Final = frozenset((
    "arguments", "content", "context", "data", "filename", "input", "instructions", "output", "prompt", "reasoning",
    "reasoning_content", "refusal", "summary_text", "system", "text", "thinking", "title",
))  # fmt: skip
"""The members that hold what people, tools and models have written, in all forms of a message."""
_CALL_INPUTS: Final = frozenset({"action", "input"})
"""The members whose objects a model has written: the inputs of its calls."""
_HALF: Final = re.compile(
    rb"\\u[dD](?:[89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][\da-fA-F]{2}\\u[dD])[c-fC-F][\da-fA-F]{2})"
)
"""An escape of half a surrogate pair, unless an escaped backslash is before it."""
_MOST_SURROGATES: Final = 16_384
"""Escapes of surrogates, in pairs or not, up to which halves are looked for: that blocks all threads for a few ms."""


def parse_body(raw: bytes, most_values: int = MOST_VALUES) -> Any:
    """The value of a JSON body that Postgres can store. Raises `InvalidRequest`, which does not quote the body.

    A body with too many values is refused before it is parsed, because parsing is one call that blocks all threads.
    orjson refuses NaN, Infinity, numbers beyond a double, bytes that are not UTF-8, and more than 1,024 levels of
    nesting. We also refuse integers beyond 64 bits (orjson would round them), and more than `DEEPEST` levels, which is
    deeper than any honest body. Numbers are as Postgres returns them: 1e16 is an integer, and -0.0 is 0.0.

    Postgres stores neither NUL characters nor halves of surrogate pairs. In the texts of messages they become U+FFFD:
    clients resend all messages, and would be refused for good for one file that a tool has read. Elsewhere, in ids,
    names and keys, they are refused.
    """
    if _has_more_values(raw, most_values):
        raise InvalidRequest(f"The body has more than {most_values} values.", ("body",))
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        if 0 < raw.count(rb"\ud") + raw.count(rb"\uD") <= _MOST_SURROGATES:
            raw = _HALF.sub(_nul_for_half, raw)
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            reason = f"The body is not valid JSON: {error.msg} at character {error.pos}."
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                reason = f"The body is not valid UTF-8 at byte {error.start}."
            raise InvalidRequest(reason, ("body",)) from None
    if _check(value, raw):
        value = _as_returned(value)
    if b"\\u0000" in raw:
        _replace_nul([value])
    return value


def parse_object(raw: bytes, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """The same for a body that has to be an object."""
    value = parse_body(raw, most_values)
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.", ("body",))
    return cast("dict[str, Any]", value)


def _has_more_values(raw: bytes, most: int) -> bool:
    """Whether a JSON text has more values: commas, lists and objects outside of strings. An empty list counts twice."""
    if _marks(raw, 0, len(raw)) < most:
        return False
    text = raw.replace(rb"\\", b"").replace(rb"\"", b"")  # now every string is between two quotes
    values, at = 1, 0
    while at < len(text) and values <= most:  # in steps, so that other threads can run between them
        quote = text.find(b'"', at)
        end = quote if quote >= 0 else len(text)
        values += _marks(text, at, end)
        at = text.find(b'"', end + 1) + 1 or len(text)
    return values > most


def _marks(raw: bytes, start: int, end: int) -> int:
    return raw.count(b",", start, end) + raw.count(b"[", start, end) + raw.count(b"{", start, end)


def _check(value: Any, raw: bytes) -> bool:
    """Checks every value once, level by level, without recursion, which could overflow the stack. Returns whether a
    number may be another one in Postgres."""
    level: list[Any] = [value]
    huge = changed = False
    for _depth in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
            elif isinstance(item, (int, float)):
                huge = huge or not -_INT64 < item < _INT64
                changed = changed or _is_returned_otherwise(item)
        if not below:
            if huge:
                json.loads(raw, parse_int=_refuse_huge_integer)
            return changed
        level = below
    raise InvalidRequest(f"The body nests deeper than {DEEPEST} levels.", ("body",))


def _as_returned(value: Any) -> Any:
    """The value with numbers as Postgres returns them from JSON. Recursive, but no deeper than `DEEPEST`."""
    if isinstance(value, dict):
        return {name: _as_returned(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_returned(each) for each in cast("list[Any]", value)]
    if _is_returned_otherwise(value):
        return int(value) if value else 0.0
    return value


def _is_returned_otherwise(value: object) -> bool:
    if not isinstance(value, float):
        return False
    if not value:
        return copysign(1, value) < 0
    return abs(value) >= _WRITTEN_WITH_EXPONENT and -_INT64 <= value < _UINT64


def _nul_for_half(half: re.Match[bytes]) -> bytes:
    """A NUL for half a surrogate pair, so that one rule applies to both."""
    before = half.start()
    while before and half.string[before - 1] == ord("\\"):
        before -= 1
    return half[0] if (half.start() - before) % 2 else rb"\u0000"


def _replace_nul(value: dict[str, Any] | list[Any], *, is_text: bool = False, is_input: bool = False) -> None:
    """Replaces NUL by U+FFFD, in place: in the members `_TEXTS` of an object, in a list that `is_text`, and in all of a
    call's input. Recursive, but no deeper than `DEEPEST`. Raises `InvalidRequest` for a NUL elsewhere."""
    names = value.keys() if isinstance(value, dict) else ()
    is_refused = any("\0" in name for name in names)
    for at, each in cast("Iterable[tuple[Any, Any]]", value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(each, str) and "\0" in each:
            value[at] = each.replace("\0", "\ufffd")
            is_refused = is_refused or not (is_input or (at in _TEXTS if names else is_text))
        elif isinstance(each, list):
            _replace_nul(cast("list[Any]", each), is_text=at in _TEXTS if names else is_text, is_input=is_input)
        elif isinstance(each, dict):
            _replace_nul(cast("dict[str, Any]", each), is_input=is_input or at in _CALL_INPUTS)
    if is_refused:
        raise InvalidRequest(
            "The body has a NUL character or half a surrogate pair outside of text, where it cannot be replaced.",
            ("body",),
        )


def _refuse_huge_integer(digits: str) -> int:
    """Only the text tells an integer from a large float: `1e30` is fine, but thirty digits would be rounded."""
    if len(digits) > 20 or not -_INT64 <= int(digits) < _UINT64:
        raise InvalidRequest("The body has an integer beyond 64 bits.", ("body",))
    return 0


def places(error: ValidationError, value: Any, *within: str) -> list[tuple[str, str]]:
    """The first places in `value` that Pydantic refused, each with its reason, never with what is there; of very many,
    the number."""
    if error.error_count() > _MOST_DESCRIBED:
        return [(where(*within), f"{error.error_count()} values are not valid, which is too many to describe")]
    found = error.errors(include_url=False, include_input=False)[:_MOST_ERRORS]
    return [(where(*within, *_path(each, value)), _message(each)) for each in found]


def _path(error: ErrorDetails, value: Any) -> Iterator[int | str]:
    """The error's path in the value. Pydantic's own also names the types of unions that it tried."""
    part: int | str = ""
    for part in error["loc"]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            continue
        yield part
    if error["type"] == "missing" or part == _OF_A_KEY:
        yield part


def where(*path: object) -> str:
    """The path of a field. Its length is limited, because keys come from the client."""
    joined = ".".join(map(str, path))
    return joined if len(joined) <= _LONGEST_WHERE else joined[:_LONGEST_WHERE] + "…"


def _message(error: ErrorDetails) -> str:
    """Pydantic's message, unless it would quote the input."""
    match error["type"]:
        case "union_tag_invalid":
            return f"Must be one of {error.get('ctx', {}).get('expected_tags', 'the known types')}"
        case "union_tag_not_found":
            return f"Field {error.get('ctx', {}).get('discriminator', 'type')} required"
        case "extra_forbidden":
            return "There is no such field"
        case "string_pattern_mismatch":
            return PATTERNS_IN_WORDS.get(error.get("ctx", {}).get("pattern", ""), error["msg"])
        case _:
            return error["msg"].removeprefix("Value error, ")
