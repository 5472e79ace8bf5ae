"""Parameters that several routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query

Limit = Annotated[int, Query(ge=1, le=200, description="Most items of one page.")]
Cursor = Annotated[str | None, Query(max_length=2048, description="`next_cursor` of the page before.")]
Round = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Tool round; the last one when absent.")]
Words = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="Only what has these words, in any case, in its id, goal, labels, metadata or first message.",
    ),
]
Figures = Annotated[bool, Query(description="Each with its newest window, its use and its state.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,255}$",
        description="1 to 255 visible ASCII characters: the same key with the same body is one turn.",
    ),
]
DEFAULT_LIMIT = 50
