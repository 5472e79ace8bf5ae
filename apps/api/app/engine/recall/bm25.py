"""BM25 over an index: how much a term discriminates, what a message scores for it, and which messages match a text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from app.domain.frozen import frozen
from app.domain.recalled import similar_mark
from app.engine.recall.dates import date_keys
from app.engine.recall.index import U64, Floats, Index, Ints, Postings
from app.engine.recall.related import (
    LookedFor,
    Related,
    outdone,
    own_word,
    places_of,
    related_terms,
    weigh_related,
)
from app.engine.recall.requests import request_of
from app.engine.recall.terms import query_terms, query_words, term_hash
from app.engine.recall.vectors import Meaning, with_similar

MOST_HITS: Final = 64
"""Most matching messages of a turn, best first, whose neighbours are scored too."""
MOST_ASKED_CHARS: Final = 8_000
MOST_SEEN_SHARE: Final = 0.8
LEAST_MESSAGES: Final = 8
SATURATION: Final = 1.2

_LENGTH_SHARE: Final = 0.4
_USUAL_TERMS: Final = 16
"""Usual length in BM25, fixed so that longer new messages do not change a message's score (Robertson, Zaragoza)."""
_COVERAGE_POWER: Final = 0.6
"""How much more a message with several of the query's words counts than one that often has the same one."""
_DATE_FACTOR: Final = 0.6
"""Weight of a date, relative to a word in equally many messages: a day has many messages, and few of them answer."""


def rarities(seen_in: Ints, messages: int, most_seen_share: float = MOST_SEEN_SHARE) -> Floats:
    """The inverse document frequency (BM25) of terms that occur in `seen_in` of the messages.

    It is 0 for a term in nearly all messages: else a session that keeps repeating a text would match as a whole.
    """
    rare = np.log1p((messages - seen_in + 0.5) / (seen_in + 0.5))
    if messages >= LEAST_MESSAGES:
        rare[seen_in > most_seen_share * messages] = 0.0
    return rare


def summed(positions: Ints, parts: Floats, messages: int) -> Floats:
    """For each message position, the sum of its parts."""
    return np.bincount(positions, parts, messages).astype(np.float64, copy=False)


def term_scores(index: Index, found: Postings, rare: Floats) -> tuple[Floats, Floats]:
    """For each posting: its BM25 score, and the rarity of its term."""
    below = SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE / _USUAL_TERMS * index.lengths(found.positions))
    below += found.counts
    of_posting = rare.take(found.of_term)
    scored = of_posting * found.counts
    scored *= SATURATION + 1
    scored /= below
    return scored, of_posting


@frozen
class Hits:
    """Matching messages among the first `messages`: `positions`, best first, and `scores`. `similar` has the cosines of
    those that are near in meaning, by position. `words` are the words that were looked for: the related ones first, the
    least related at the beginning. `found` are the messages that have them or were sent on the days that they name."""

    messages: int
    positions: Ints
    scores: Floats
    similar: Mapping[int, float]
    words: tuple[LookedFor, ...]
    found: Postings

    def matched(self, positions: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Why messages were found, by position: the words of the text that a message has, its related words in place of
        those that it lacks, and the mark of one that is near in meaning; sorted."""
        found: dict[int, dict[str, str]] = {at: {} for at in positions}
        is_wanted = np.zeros(self.messages, np.bool_)
        is_wanted[list(found)] = True
        (theirs,) = is_wanted[self.found.positions].nonzero()
        terms: list[int] = self.found.of_term[theirs].tolist()
        for at, term in zip(self.found.positions[theirs].tolist(), terms, strict=True):
            _, of, reason = self.words[term]
            found[at][of] = reason
        for at in found.keys() & self.similar.keys():
            mark = similar_mark(self.similar[at])
            found[at][mark] = mark
        return {at: tuple(sorted(words.values())) if words else () for at, words in found.items()}


@frozen
class Query:
    """What is looked for among the messages through `through_seq`: a text and its `meaning`, None if it is not known.
    Relative days in the text are resolved against `said_day`."""

    text: str
    through_seq: int
    said_day: int | None = None
    meaning: Meaning | None = None

    @property
    def terms(self) -> _Terms:
        return _terms_of(self.text[:MOST_ASKED_CHARS])

    def messages_in(self, index: Index) -> int:
        """How many messages of the index are searched: the first ones."""
        return bisect_right(index.seqs, self.through_seq)


def posting_count(index: Index, query: Query) -> int:
    """The number of postings that a search reads, on which most of its time depends."""
    return index.posting_count(query.terms.wanted, query.messages_in(index))


def search(index: Index, query: Query, *, most_hits: int = MOST_HITS, most_seen_share: float = MOST_SEEN_SHARE) -> Hits:
    """The best of the messages that have any of the text's terms, or were sent on a day that it names; of equals the
    newer first.

    A message that has more of the terms scores more, and so does one that is near in meaning. For a term that a message
    lacks, the nearest related term that it has counts, with a lower weight. Of a long text only some terms are looked
    for.
    """
    most_hits *= 1 if query.meaning is None else 2  # this many each for words and for meaning
    messages, terms = query.messages_in(index), query.terms
    dates = () if query.said_day is None else date_keys(query.text, query.said_day)
    found = index.postings(terms.wanted, messages)
    if dates:
        found = found.with_terms([index.said_between(date.first_day, date.last_day, messages) for date in dates])
    rare = rarities(found.seen_in, messages, most_seen_share)
    rare[len(terms.words) :] *= _DATE_FACTOR
    if terms.related:
        weigh_related(rare, terms.related, terms.places, found.seen_in, messages)
    scored, covered = term_scores(index, found, rare)
    if terms.related:
        out = outdone(terms.places, found, messages)
        scored[out] = covered[out] = 0.0
    scores, coverage = summed(found.positions, scored, messages), summed(found.positions, covered, messages)
    best, scores = _best(scores, coverage, most_hits)
    best, scores, similar = with_similar(index, query.meaning, query.through_seq, best, scores)
    return Hits(
        messages=messages,
        positions=best[:most_hits],
        scores=scores[:most_hits],
        similar=similar,
        words=(*terms.words, *[own_word(date.words) for date in dates]) if dates else terms.words,
        found=found,
    )


def best_first(scores: Floats) -> Ints:
    """The order of scores, the best first; of equals the one that is first now."""
    return (-scores).argsort(kind="stable")


def _best(scores: Floats, coverage: Floats, most_hits: int) -> tuple[Ints, Floats]:
    """The positions of the messages that match best, best first, and their scores, weighted by coverage of the text."""
    found = np.flatnonzero(scores != 0)[::-1]  # on booleans it takes a fifth of the time
    scores = scores.take(found)
    if len(found) > most_hits:  # sorting all matches would be the slowest part of a search
        good = np.flatnonzero(scores >= np.partition(scores, -most_hits)[-most_hits])
        if len(good) > most_hits:
            good = good[best_first(scores[good])[:most_hits]]
        found, scores = found[good], scores[good]
    coverage = coverage.take(found)
    scores *= (coverage / coverage.max(initial=0.0)) ** _COVERAGE_POWER
    order = best_first(scores)
    return found[order], scores[order]


class _Terms(NamedTuple):
    """The terms of a query: `wanted` are their hashes, those of the `related` ones before the query's own, and `words`
    their words. `places` has, for each related term, the index of the query's term that it is related to."""

    wanted: U64
    related: tuple[Related, ...]
    places: Ints
    words: tuple[LookedFor, ...]


@lru_cache(maxsize=16)  # one message is searched for several times in a turn
def _terms_of(text: str) -> _Terms:
    wanted = request_of(text).asked_for
    wanted = wanted if query_words(wanted) else text
    words = query_words(wanted)
    own = {term_hash(term): words[term] for term in query_terms(wanted)}
    related = related_terms(own)
    return _Terms(
        np.array([*[other.term for other in related], *own], np.uint64),
        related,
        places_of(related, own),
        (*[other.looked_for for other in related], *map(own_word, own.values())),
    )
