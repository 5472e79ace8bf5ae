"""Words that mean much the same as those of a question, from a table that is made beforehand (`related_words/`).

English only. The table is part of the code, read as a module is: once, when it is first needed. What it was made from
and under which licence stands in `related_words.LICENSE.txt` beside it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.engine.recall.index import Floats, Ints

MOST_RELATED_QUERY_TERMS: Final = 16
"""A text with more different words is searched for by these alone: a question has fewer."""
RELATED_OF_A_WORD: Final = 8
LARGEST_WEIGHT: Final = 255
_RELATED_FACTOR: Final = 0.9
"""Of what a related word is worth, beside how near it is: less than the question's own word in any case."""
_COMMON_SHARE: Final = 0.15
"""Of all messages: what more have needs nothing that stands for it, and often has a second meaning ("give", "get")."""
_FEW_MESSAGES: Final = 4
ROW: Final = np.dtype(
    [("term", "<u4"), ("related", "<u2", RELATED_OF_A_WORD), ("weight", "u1", RELATED_OF_A_WORD), ("word", "S16")]
)
"""Of a stem: its `term_hash`, by which rows are sorted; the numbers of the rows of its related stems, the nearest
first, with how near they are in parts of `LARGEST_WEIGHT`, 0 where there are no more; and its most frequent word."""


class LookedFor(NamedTuple):
    """A word that is looked for because of one of the question's: that word itself, or one that is related to it."""

    word: str
    of: str


class Related(NamedTuple):
    """A term to look for besides a word of the question: its hash, its most frequent word with the question's that it
    is related to, and how near it is to that, 0 to 1."""

    term: int
    looked_for: LookedFor
    weight: float


def related_terms(terms: Mapping[int, str]) -> tuple[Related, ...]:
    """What may be looked for besides the terms of a question, given as hashes; the farthest first.

    Each once, for the word that it is nearest to; none of the question's own terms, and none for a long text.
    """
    if len(terms) > MOST_RELATED_QUERY_TERMS:
        return ()
    found: dict[int, Related] = {}
    for term, word in terms.items():
        for other in _related_to(term, word):
            if other.term not in terms and (other.term not in found or found[other.term].weight < other.weight):
                found[other.term] = other
    return tuple(sorted(found.values(), key=attrgetter("weight")))


@lru_cache(maxsize=2048)  # the words of questions are few, and come again
def _related_to(term: int, of: str) -> tuple[Related, ...]:
    """The related terms of a word's term, the nearest first."""
    table = related_words()
    at = int(table["term"].searchsorted(np.uint32(term)))
    if at == len(table) or table["term"][at] != term:
        return ()
    row = table[at]
    others = table[row["related"]]
    named = zip(others["term"].tolist(), others["word"].tolist(), row["weight"].tolist(), strict=True)
    return tuple(
        [Related(t, LookedFor(word.decode(), of), weight / LARGEST_WEIGHT) for t, word, weight in named if weight]
    )


def places_of(related: Sequence[Related], terms: Mapping[int, str]) -> Ints:
    """By related term, the place of the question's word that it stands for."""
    place = {word: at for at, word in enumerate(terms.values())}
    return np.array([place[other.looked_for.of] for other in related], np.int64)


def weigh_related(rare: Floats, related: Sequence[Related], places: Ints, seen_in: Ints, messages: int) -> None:
    """Changes the rarities of terms, the related ones first and then the question's: a related one tells apart no more
    than the word that it stands for, and less by how far it is from it; and nothing where many messages have that."""
    others = len(related)
    nearness = [_RELATED_FACTOR * other.weight for other in related]
    own = others + places
    is_rare = seen_in[own] <= max(_FEW_MESSAGES, _COMMON_SHARE * messages)
    rare[:others] = np.minimum(rare[:others], rare[own]) * nearness * is_rare


def one_of_a_word(places: Ints, seen_in: Ints, positions: Ints, messages: int) -> npt.NDArray[np.bool_]:
    """By posting, as `Index.postings` gives them for the related terms and then the question's, whether it counts: of
    those that a message has for one word of the question the nearest does, and that is the word itself if it has it."""
    own = len(seen_in) - len(places)
    of_term = np.concatenate((places, np.arange(own)))
    keys = of_term.repeat(seen_in) * messages + positions
    order = np.arange(len(keys), dtype=np.int32)
    last = np.empty(own * messages, np.int32)  # read only where it was written
    last[keys] = order  # of equal keys the last is stored, and the nearest comes last
    return last[keys] == order


@lru_cache(maxsize=1)
def related_words() -> npt.NDArray[np.void]:
    """The table: an array of `ROW`, over the bytes of its file."""
    data = pkgutil.get_data(__name__, "related_words.bin")
    if data is None:
        raise FileNotFoundError("related_words.bin is not beside its module")
    return np.frombuffer(data, ROW)
