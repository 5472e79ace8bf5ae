"""Words that mean much the same as those of a question, from a table that is made beforehand (`related_words/`).

English only. The table is part of the code, read as a module is: once, when it is first needed. What it was made from
and under which licence stands in `related_words.LICENSE.txt` beside it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_WORDS: Final = 16
"""A text with more different words is searched for by these alone: a question has fewer."""
RELATED_OF_A_WORD: Final = 8
LARGEST_WEIGHT: Final = 255
ROW: Final = np.dtype(
    [("term", "<u4"), ("related", "<u2", RELATED_OF_A_WORD), ("weight", "u1", RELATED_OF_A_WORD), ("word", "S16")]
)
"""Of a stem: its `term_hash`, by which rows are sorted; the numbers of the rows of its related stems, the nearest
first, with how near they are in parts of `LARGEST_WEIGHT`, 0 where there are no more; and its most frequent word."""


class Related(NamedTuple):
    """A term to look for besides a word of the question: its hash, its most frequent word, the question's word that it
    is related to by its place, and how near it is to that, 0 to 1."""

    term: int
    word: str
    of: int
    weight: float


def related_terms(terms: Mapping[int, str]) -> list[Related]:
    """What may be looked for besides the terms of a question, given as hashes; the farthest first.

    Each once, for the word that it is nearest to; none of the question's own terms, and none for a long text.
    """
    table = related_words()
    if len(terms) > MOST_WORDS:
        return []
    wanted = np.fromiter(terms, np.uint32, len(terms))
    at = np.minimum(np.searchsorted(table["term"], wanted), len(table) - 1)
    known = np.flatnonzero(table["term"][at] == wanted)
    rows = table[at[known]]
    found: dict[int, Related] = {}
    targets = table[rows["related"]]
    for of, others, weights in zip(known.tolist(), targets, rows["weight"].tolist(), strict=True):
        for term, word, weight in zip(others["term"].tolist(), others["word"].tolist(), weights, strict=True):
            if weight and term not in terms and (term not in found or found[term].weight < weight / LARGEST_WEIGHT):
                found[term] = Related(term, word.decode(), of, weight / LARGEST_WEIGHT)
    return sorted(found.values(), key=lambda related: related.weight)


@lru_cache(maxsize=1)
def related_words() -> npt.NDArray[np.void]:
    """The table: an array of `ROW`, over the bytes of its file."""
    data = pkgutil.get_data(__name__, "related_words.bin")
    if data is None:
        raise FileNotFoundError("related_words.bin is not beside its module")
    return np.frombuffer(data, ROW)
