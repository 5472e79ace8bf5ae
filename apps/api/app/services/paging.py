"""Pages of a list and the opaque cursor between them: the position of the last item shown (keyset paging), tied to the
list it came from. It is no permission: every query also filters by tenant or session."""

from __future__ import annotations

import hashlib
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Final, Generic, TypeVar
from uuid import UUID

from app.db.database import Fetched, PageBounds
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen

Item = TypeVar("Item")
Position = TypeVar("Position")
Bound = TypeVar("Bound", UUID, int)

FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
"""Below and above every id: where a list in either order begins."""

LAST_SEQ = 2**63 - 1
"""Above every `seq`."""

_SCOPE_BYTES = 6


@frozen
class Page(Generic[Item]):
    """Items in list order; `next_cursor` is None on the last page."""

    items: list[Item]
    next_cursor: str | None


@frozen
class PageRequest:
    """The page of a list that a client requests: at most `limit` items after a cursor, newest or oldest first."""

    limit: int
    cursor: str | None
    newest_first: bool


@frozen
class Order(Generic[Position]):
    """What the items of a list are ordered by: the value of it that is below all others, the one above them, and how a
    cursor has it. `of` reads it from an item. `decode` raises `ValueError` or `struct.error`."""

    first: Position
    last: Position
    encode: Callable[[Position], bytes]
    decode: Callable[[bytes], Position]
    of: Callable[[object], Position]


def _decoded_seq(raw: bytes) -> int:
    return struct.unpack(">q", raw)[0]


def _decoded_name(raw: bytes) -> str:
    name = raw.decode()
    if "\0" in name:
        raise ValueError("no name has a NUL")
    return name


BY_ID: Final = Order[UUID](FIRST_ID, LAST_ID, attrgetter("bytes"), lambda raw: UUID(bytes=raw), attrgetter("id"))
BY_SEQ: Final = Order[int](0, LAST_SEQ, struct.Struct(">q").pack, _decoded_seq, attrgetter("seq"))
BY_NAME: Final = Order[str]("", chr(0x10FFFF), str.encode, _decoded_name, attrgetter("name"))
BY_PLACE: Final = Order[tuple[UUID, int]](
    (FIRST_ID, 0),
    (LAST_ID, LAST_SEQ),
    lambda place: place[0].bytes + BY_SEQ.encode(place[1]),
    lambda raw: (UUID(bytes=raw[:16]), _decoded_seq(raw[16:])),
    attrgetter("session_id", "seq"),
)
"""By session, and by number in it."""


def page_of(order: Order[Position], scope: str, found: Fetched[Item]) -> Page[Item]:
    """The page, with the cursor that continues after its last item."""
    return Page(found.rows, cursor_at(order, scope, order.of(found.rows[-1])) if found.has_more else None)


def bounds_of(
    order: Order[Bound], scope: str, wanted: PageRequest, *, newest_by_default: bool, after: Bound | None = None
) -> tuple[str, PageBounds[Bound]]:
    """The scope of the list's cursors, which is a different one if the order is not the list's default, and the bounds
    of the page. The list begins above `after`, if that is given. Raises as `position_of`."""
    if wanted.newest_first != newest_by_default:
        scope += ":desc" if wanted.newest_first else ":asc"
    shown, first = position_of(order, scope, wanted.cursor), order.first if after is None else after
    above, below = (first, shown or order.last) if wanted.newest_first else (shown or first, order.last)
    return scope, PageBounds(above, below, wanted.limit, wanted.newest_first)


def cursor_at(order: Order[Position], scope: str, position: Position) -> str:
    """The cursor that continues after `position` in the list named `scope` (for example `turns:SESSION`)."""
    return urlsafe_b64encode(_scope_mark(scope) + order.encode(position)).rstrip(b"=").decode()


def position_of(order: Order[Position], scope: str, cursor: str | None) -> Position | None:
    """The cursor's position. Raises `InvalidRequest` if this list never issued the cursor."""
    if cursor is None:
        return None
    with suppress(ValueError, struct.error):
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        if raw[:_SCOPE_BYTES] == _scope_mark(scope):
            return order.decode(raw[_SCOPE_BYTES:])
    raise InvalidRequest("The cursor is not one that this list gave out.", ("query", "cursor"))


def _scope_mark(scope: str) -> bytes:
    return hashlib.sha256(scope.encode()).digest()[:_SCOPE_BYTES]
