"""Pages of lists: statements whose rows are bounded in number and in bytes, and what they fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from app.db.sql import Statement, sql
from app.domain.frozen import frozen

_PAGE_BYTES = 8 * 1024 * 1024
"""Most bytes of a page's rows: with messages of 4 MB, a page of 200 would take gigabytes on its way to the client."""
R = TypeVar("R")
Made = TypeVar("Made")


@frozen
class Fetched(Generic[R]):
    """The rows of a page in list order, and whether more follow."""

    rows: list[R]
    has_more: bool

    def of(self, made: Callable[[R], Made]) -> Fetched[Made]:
        """The same page of other values."""
        return Fetched(list(map(made, self.rows)), self.has_more)


def first_of(rows: list[R], limit: int) -> Fetched[R]:
    """The first `limit` of rows that were fetched with `LIMIT limit + 1`."""
    return Fetched(rows[:limit], len(rows) > limit)


def in_both_orders(text: str) -> Mapping[bool, Statement]:
    """A list's paged statement by whether the newest come first: fills in `{order}`, and `{beyond}` to compare a
    position."""
    orders = ((False, "ASC", ">"), (True, "DESC", "<"))
    return {newest: paged(text.replace("{order}", order).replace("{beyond}", sign)) for newest, order, sign in orders}


def paged(text: str) -> Statement:
    """A list's statement for `Transaction.fetch_page`. `rows_read` is how many rows it has without a bound on bytes. It
    ends before the row with which they would have more than `_PAGE_BYTES`, but not before two rows: of a message with
    several items, a client may have got a part.
    """
    return sql(f"""
        SELECT * FROM (
            SELECT r.*, count(*) OVER () AS rows_read, row_number() OVER () AS row_number,
                sum(octet_length(CAST(r AS text))) OVER (ROWS UNBOUNDED PRECEDING) AS bytes_through
            FROM ({text}) AS r
        ) AS sized
        WHERE row_number <= 2 OR bytes_through <= {_PAGE_BYTES}
        """)
