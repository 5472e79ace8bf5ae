"""Pages of a list and the opaque cursor between them: the position of the last item shown (keyset paging), tied to the
list it came from. It is no permission: every query also filters by tenant or session."""

from __future__ import annotations

import hashlib
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Generic, TypeVar
from uuid import UUID

from app.db.database import Fetched, PageBounds
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen

Item = TypeVar("Item")
Position = TypeVar("Position")

FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
"""Below and above every id: where a list in either order begins."""

LAST_SEQ = 2**63 - 1
"""Above every `seq`."""

_SCOPE_BYTES = 6
_LONGEST_CURSOR = 2048


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


def page_of(scope: str, found: Fetched[Item], position: Callable[[Item], UUID | int | str]) -> Page[Item]:
    """The page, with the cursor that continues after its last item."""
    return Page(found.rows, encode_cursor(scope, position(found.rows[-1])) if found.has_more else None)


def in_order(scope: str, wanted: PageRequest, *, newest_by_default: bool) -> str:
    """The scope of a list's cursors. It is a different one if the order is not the list's default."""
    if wanted.newest_first == newest_by_default:
        return scope
    return f"{scope}:{'desc' if wanted.newest_first else 'asc'}"


def between_ids(scope: str, wanted: PageRequest) -> PageBounds[UUID]:
    """The bounds of a page of a list ordered by id. Raises as `after_id`."""
    shown = after_id(scope, wanted.cursor)
    after, before = (FIRST_ID, shown or LAST_ID) if wanted.newest_first else (shown or FIRST_ID, LAST_ID)
    return PageBounds(after, before, wanted.limit, wanted.newest_first)


def between_seqs(scope: str, wanted: PageRequest, first_seq: int = 1) -> PageBounds[int]:
    """The bounds of a page of a list ordered by `seq`. Raises as `after_seq`."""
    shown, first = after_seq(scope, wanted.cursor), first_seq - 1
    after, before = (first, shown or LAST_SEQ) if wanted.newest_first else (shown or first, LAST_SEQ)
    return PageBounds(after, before, wanted.limit, wanted.newest_first)


def encode_cursor(scope: str, position: UUID | int | str | tuple[UUID, int]) -> str:
    """The cursor that continues after `position` in the list named `scope` (for example `turns:SESSION`)."""
    match position:
        case UUID():
            raw = position.bytes
        case int():
            raw = struct.pack(">q", position)
        case str():
            raw = position.encode()
        case (of, seq):
            raw = of.bytes + struct.pack(">q", seq)
    return urlsafe_b64encode(_scope_mark(scope) + raw).rstrip(b"=").decode()


def after_id(scope: str, cursor: str | None) -> UUID | None:
    """The cursor's position in a list ordered by id. Raises `InvalidRequest` if this list never issued the cursor."""
    return _decode(scope, cursor, lambda raw: UUID(bytes=raw))


def after_seq(scope: str, cursor: str | None) -> int | None:
    """The cursor's position in a list ordered by `seq`. Raises as `after_id`."""
    return _decode(scope, cursor, lambda raw: int(struct.unpack(">q", raw)[0]))


def after_place(scope: str, cursor: str | None) -> tuple[UUID, int] | None:
    """The cursor's position in a list ordered by an id and a `seq` within it. Raises as `after_id`."""
    return _decode(scope, cursor, lambda raw: (UUID(bytes=raw[:16]), int(struct.unpack(">q", raw[16:])[0])))


def after_name(scope: str, cursor: str | None) -> str | None:
    """The cursor's position in a list ordered by name. Raises as `after_id`."""
    return _decode(scope, cursor, _name)


def _name(raw: bytes) -> str:
    name = raw.decode()
    if "\0" in name:
        raise ValueError("no name has a NUL")
    return name


def _decode(scope: str, cursor: str | None, read: Callable[[bytes], Position]) -> Position | None:
    """The position that follows the scope's mark. Raises `InvalidRequest` for bytes that `read` cannot parse."""
    if cursor is None:
        return None
    try:
        return read(_bytes_of(scope, cursor))
    except (ValueError, struct.error):
        raise InvalidRequest("The cursor is not one that this list gave out.", ("query", "cursor")) from None


def _bytes_of(scope: str, cursor: str) -> bytes:
    if not cursor.isascii() or len(cursor) > _LONGEST_CURSOR:
        raise ValueError("no cursor is so long")
    raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    if raw[:_SCOPE_BYTES] != _scope_mark(scope):
        raise ValueError("the cursor is of another list")
    return raw[_SCOPE_BYTES:]


def _scope_mark(scope: str) -> bytes:
    return hashlib.sha256(scope.encode()).digest()[:_SCOPE_BYTES]
