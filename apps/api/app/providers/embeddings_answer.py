"""The vectors of an answer of `/embeddings`, as OpenAI and the servers that follow it write them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.domain.errors import ProviderDown
from app.providers.base import Embedded
from app.providers.wire import fields_of, list_of, token_count

MOST_DIMENSIONS: Final = 4096


def read_embeddings(answer: Any, count: int, label: str) -> Embedded:
    """A vector for each of `count` texts. Raises `ProviderDown` for what is no such answer of one dimension."""
    items = [fields_of(item) for item in list_of(fields_of(answer).get("data"))]
    indexes = [item.get("index", at) for at, item in enumerate(items)]
    if sorted(index for index in indexes if type(index) is int) != list(range(count)) or len(items) != count:
        raise _unusable(label, f"it has other vectors than one for each of {count} texts")
    rows = [list_of(item.get("embedding")) for _, item in sorted(zip(indexes, items, strict=True), key=_first)]
    if {len(row) for row in rows} - set(range(1, MOST_DIMENSIONS + 1)) or len({len(row) for row in rows}) != 1:
        raise _unusable(label, f"its vectors have not all the same 1 to {MOST_DIMENSIONS} dimensions")
    if not all(type(value) in (float, int) for row in rows for value in row):
        raise _unusable(label, "its vectors are not made of numbers")
    with np.errstate(all="ignore"):
        try:
            vectors = np.array(rows, np.float64).astype(np.float32)
        except OverflowError as error:
            raise _unusable(label, "its vectors are not made of numbers") from error
    usage = fields_of(fields_of(answer).get("usage"))
    return Embedded(vectors, token_count(usage.get("prompt_tokens", usage.get("total_tokens"))))


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _unusable(label: str, why: str) -> ProviderDown:
    return ProviderDown(f"The answer of the provider of {label!r} cannot be used: {why}.")
