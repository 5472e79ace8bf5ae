"""Pages of a list and the opaque cursor between them.

A cursor is the position of the last item shown (keyset paging), tied to the list it came from. It is no secret and no
permission: every query filters by tenant or session all the same.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from app.domain.errors import InvalidRequest

Item = TypeVar("Item")
Row = TypeVar("Row")

LAST_ID = UUID(int=2**128 - 1)
"""Above every id: where a list that runs newest first begins."""

_SCOPE_BYTES = 6
_LONGEST_CURSOR = 2048


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Items in list order; `next_cursor` is None on the last page."""

    items: list[Item]
    next_cursor: str | None


def page_of(
    scope: str,
    rows: Sequence[Row],
    limit: int,
    item: Callable[[Row], Item],
    position: Callable[[Row], UUID | int | str],
) -> Page[Item]:
    """Makes a page of rows that were fetched with `LIMIT limit + 1`: the extra row only shows that more follow."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page([item(row) for row in shown], encode_cursor(scope, position(shown[-1])) if more else None)


def encode_cursor(scope: str, position: UUID | int | str) -> str:
    """The cursor that continues after `position` in the list named `scope` (for example `turns:SESSION`)."""
    match position:
        case UUID():
            raw = position.bytes
        case int():
            raw = position.to_bytes(8, "big", signed=True)
        case str():
            raw = position.encode()
    return urlsafe_b64encode(_scope_mark(scope) + raw).rstrip(b"=").decode()


def after_id(scope: str, cursor: str | None) -> UUID | None:
    """Position of a list ordered by id. Raises `InvalidRequest` for what this list never gave out."""
    raw = _decode(scope, cursor)
    if raw is None:
        return None
    if len(raw) != 16:
        raise _no_cursor()
    return UUID(bytes=raw)


def after_seq(scope: str, cursor: str | None) -> int | None:
    """Position of a list ordered by `seq`. Raises `InvalidRequest` for what this list never gave out."""
    raw = _decode(scope, cursor)
    if raw is None:
        return None
    if len(raw) != 8:
        raise _no_cursor()
    return int.from_bytes(raw, "big", signed=True)


def after_name(scope: str, cursor: str | None) -> str | None:
    """Position of a list ordered by name. Raises `InvalidRequest` for what this list never gave out."""
    raw = _decode(scope, cursor)
    if raw is None:
        return None
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise _no_cursor() from None
    if "\0" in name:
        raise _no_cursor()
    return name


def _decode(scope: str, cursor: str | None) -> bytes | None:
    if cursor is None:
        return None
    if not cursor.isascii() or len(cursor) > _LONGEST_CURSOR:
        raise _no_cursor()
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except (binascii.Error, ValueError):
        raise _no_cursor() from None
    if raw[:_SCOPE_BYTES] != _scope_mark(scope):
        raise _no_cursor()
    return raw[_SCOPE_BYTES:]


def _scope_mark(scope: str) -> bytes:
    return hashlib.sha256(scope.encode()).digest()[:_SCOPE_BYTES]


def _no_cursor() -> InvalidRequest:
    return InvalidRequest("The cursor is none that this list gave out.", ("query", "cursor"))
