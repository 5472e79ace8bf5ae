"""Words that mean much the same as those of a question, from a table that is made beforehand (`related_words/`).

It is English only. The table is part of the code and is read once, when it is first needed. Its source and its licence
are in `related_words.LICENSE.txt`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.engine.recall.index import Floats, Ints

MOST_RELATED_QUERY_TERMS: Final = 16
"""A text with more different words is searched without related words: a question has fewer."""
RELATED_OF_A_WORD: Final = 8
LARGEST_WEIGHT: Final = 255
_RELATED_FACTOR: Final = 0.9
"""Factor on the weight of every related word, so that even the nearest one counts less than the question's own word."""
_COMMON_SHARE: Final = 0.15
"""A word in a larger share of the messages gets no related words: it needs none and is often ambiguous ("get")."""
_FEW_MESSAGES: Final = 4
ROW: Final = np.dtype(
    [("term", "<u4"), ("related", "<u2", RELATED_OF_A_WORD), ("weight", "u1", RELATED_OF_A_WORD), ("word", "S16")]
)
"""The row of a stem: its `term_hash`, by which rows are sorted; the row numbers of its related stems, the nearest
first; how near each is, in parts of `LARGEST_WEIGHT`, 0 for an unused entry; and its most frequent word."""


class Related(NamedTuple):
    """A term to look for besides the question's own: its hash, its most frequent word, the question's word `of` that it
    is related to, and how near it is to that word, 0 to 1."""

    term: int
    word: str
    of: str
    weight: float


def related_terms(terms: Mapping[int, str]) -> tuple[Related, ...]:
    """The related terms to look for besides the terms of a question, which are given by hash: the farthest first, each
    once, for the word that it is nearest to. A long text gets none."""
    if len(terms) > MOST_RELATED_QUERY_TERMS:
        return ()
    found: dict[int, Related] = {}
    for other in chain.from_iterable(map(_related_to, terms, terms.values())):
        known = found.get(other.term)
        if known is None or known.weight < other.weight:
            found[other.term] = other
    for term in terms:
        found.pop(term, None)
    return tuple(sorted(found.values(), key=attrgetter("weight")))


@lru_cache(maxsize=2048)  # the words of questions are few, and come again
def _related_to(term: int, of: str) -> tuple[Related, ...]:
    """The related terms of a word's term, the nearest first."""
    terms, related, weights, words = _columns()
    at = int(terms.searchsorted(np.uint32(term)))
    if at == len(terms) or terms[at] != term:
        return ()
    others = related[at]
    named = zip(terms[others].tolist(), words[others].tolist(), weights[at].tolist(), strict=True)
    return tuple([Related(t, word.decode(), of, weight / LARGEST_WEIGHT) for t, word, weight in named if weight])


def places_of(words: Sequence[str], of: Sequence[str]) -> Ints:
    """For each related term, which is related to a word in `of`, the index of that word in the question's `words`."""
    place = {word: at for at, word in enumerate(words)}
    return np.array([place[word] for word in of], np.int64)


def weigh_related(rare: Floats, weights: Sequence[float], places: Ints, seen_in: Ints, messages: int) -> None:
    """Change the rarities of terms in place, where the related ones precede the question's. A related term's rarity is
    limited to that of its question's word and scaled by its weight; it is 0 if many messages have that word."""
    others = len(weights)
    nearness = _RELATED_FACTOR * np.array(weights)
    own = places + others
    is_rare = seen_in[own] <= max(_FEW_MESSAGES, _COMMON_SHARE * messages)
    rare[:others] = np.minimum(rare[:others], rare[own]) * nearness * is_rare


def one_of_a_word(places: Ints, seen_in: Ints, positions: Ints, messages: int) -> npt.NDArray[np.bool_]:
    """Whether each posting counts, in the order of `Index.postings`: of a message's postings for one word of the
    question only the nearest, which is the word itself if it has it."""
    own = len(seen_in) - len(places)
    of_term = np.concatenate((places, np.arange(own)))
    keys = of_term.repeat(seen_in) * messages + positions
    order = np.arange(len(keys), dtype=np.int32)
    last = np.empty(own * messages, np.int32)  # read only where it was written
    last[keys] = order  # of equal keys the last is stored, and the nearest comes last
    return last[keys] == order


@cache
def _columns() -> Sequence[npt.NDArray[Any]]:
    """The columns of the table: terms, related, weights, words. Making them takes as long as to look a word up."""
    return [related_words()[name] for name in ("term", "related", "weight", "word")]


@cache
def related_words() -> npt.NDArray[np.void]:
    """The table: an array of `ROW` over the bytes of its file. Raises `FileNotFoundError` if the file is missing."""
    return np.frombuffer(pkgutil.get_data(__name__, "related_words.bin") or b"", ROW)
