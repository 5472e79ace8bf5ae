"""Transactions that the database rolled back in favour of others, done again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from app.domain.errors import TransactionConflict

_PAUSES_S = (0.02, 0.1, 0.5)
P = ParamSpec("P")
T = TypeVar("T")


def retried(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The work, done again a little later where its transaction was rolled back for a conflict; three times at most.

    For work that has no effect but its transactions', of which none is committed where it raises, or may be done twice.
    """

    @wraps(work)
    async def again(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause_s in _PAUSES_S:
            try:
                return await work(*args, **kwargs)
            except TransactionConflict:
                await asyncio.sleep(random.uniform(0.5, 1.5) * pause_s)  # noqa: S311 - no secret, it keeps two apart
        return await work(*args, **kwargs)

    return again
