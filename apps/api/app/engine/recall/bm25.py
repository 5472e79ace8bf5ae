"""BM25 over an index: how much a term discriminates, what a message scores for it, and which messages match a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from app.domain.frozen import frozen
from app.domain.recalled import related_word, similar_mark
from app.engine.recall.dates import date_keys
from app.engine.recall.index import SATURATION, Floats, Index, Ints
from app.engine.recall.related import one_of_a_word, places_of, related_terms, weigh_related
from app.engine.recall.requests import request_of
from app.engine.recall.terms import MOST_ASKED_CHARS, query_terms, query_words, term_hash
from app.engine.recall.vectors import Meaning, with_similar

MOST_HITS: Final = 64
"""Most matching messages of a turn, best first, whose neighbours are scored too."""
MOST_SEEN_SHARE: Final = 0.8
LEAST_MESSAGES: Final = 8

_COVERAGE_POWER: Final = 0.6
"""How much more a message with several of the query's words counts than one that often has the same one."""
_GROUPS_A_HIT: Final = 4
_DATE_FACTOR: Final = 0.6
"""Weight of a date, relative to a word in equally many messages: a day has many messages, and few of them answer."""


def rarities(seen_in: Ints, messages: int, most_seen_share: float = MOST_SEEN_SHARE) -> Floats:
    """The inverse document frequency (BM25) of terms that occur in `seen_in` of the messages; 0 for a term in nearly
    all of them: else a session that keeps repeating a text would match as a whole."""
    rare = np.log1p((messages + 0.5 - seen_in) / (seen_in + 0.5))
    if messages >= LEAST_MESSAGES:
        rare[seen_in > most_seen_share * messages] = 0.0
    return rare


def summed(positions: Ints, parts: Floats, messages: int) -> Floats:
    """For each message position, the sum of its parts."""
    return np.bincount(positions, parts, messages).astype(np.float64, copy=False)


@frozen
class Hits:
    """Matching messages among the first `messages`: `positions`, best first, and `scores`. `similar` has the cosines of
    those that are near in meaning, by position. `words` were looked for, each with the text's word that it is the same
    as or related to: the related ones first, the least related at the beginning. `postings` are, word after word, the
    `seen_in` positions of the messages that have it or were sent on the days that it names."""

    messages: int
    positions: Ints
    scores: Floats
    similar: Mapping[int, float]
    words: tuple[tuple[str, str], ...]
    seen_in: Ints
    postings: Ints

    def matched(self, positions: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Why messages were found, by position: the words that a message has, related ones in place of those that it
        lacks, and the mark of one that is near in meaning; sorted."""
        found: dict[int, dict[str, str]] = {at: {} for at in positions}
        is_wanted = np.zeros(self.messages, np.bool_)
        is_wanted[list(found)] = True
        (theirs,) = is_wanted[self.postings].nonzero()
        of_word = self.seen_in.cumsum().searchsorted(theirs, "right")
        for at, place in zip(self.postings[theirs].tolist(), of_word.tolist(), strict=True):
            word, of = self.words[int(place)]
            found[at][of] = related_word(word, of)
        for at in found.keys() & self.similar.keys():
            mark = similar_mark(self.similar[at])
            found[at][mark] = mark
        return {at: tuple(sorted(words.values())) for at, words in found.items()}


@frozen
class Query:
    """What is looked for among the messages through `through_seq`: a text, whose relative days are resolved against
    `said_day`, and its `meaning`, if it is known."""

    text: str
    through_seq: int
    said_day: int | None = None
    meaning: Meaning | None = None

    @property
    def terms(self) -> _Terms:
        return _terms_of(self.text[:MOST_ASKED_CHARS])

    def messages_in(self, index: Index) -> int:
        """How many messages of the index are searched: the first ones."""
        return int(index.seqs.searchsorted(self.through_seq, "right"))


def posting_count(index: Index, query: Query) -> int:
    """The number of postings that a search reads, on which most of its time depends."""
    return index.posting_count(query.terms.wanted, query.messages_in(index))


def search(index: Index, query: Query, *, most_hits: int = MOST_HITS, most_seen_share: float = MOST_SEEN_SHARE) -> Hits:
    """The best of the messages that have any of the text's terms, or were sent on a day that it names, or are near in
    meaning; of equals the newer first. For a term that a message lacks, the nearest related term that it has counts,
    with a lower weight. Of a long text only some terms are looked for."""
    most_hits *= 1 if query.meaning is None else 2  # this many each for words and for meaning
    messages, terms = query.messages_in(index), query.terms
    dates = () if query.said_day is None else date_keys(query.text, query.said_day)
    seen_in, positions, counts = index.postings(terms.wanted, messages)
    if dates:
        dated = [index.said_between(date.first_day, date.last_day, messages) for date in dates]
        seen_in = np.append(seen_in, [len(found) for found in dated])
        positions = np.concatenate((positions, *dated))
        counts = np.append(counts, np.ones(len(positions) - len(counts)))
    rare = rarities(seen_in, messages, most_seen_share)
    if dates:
        rare[len(terms.words) :] *= _DATE_FACTOR
    if terms.weights:
        weigh_related(rare, terms.weights, terms.places, seen_in, messages)
    covered = rare.repeat(seen_in)
    if terms.weights:
        covered *= one_of_a_word(terms.places, seen_in, positions, messages)
    scored = covered * counts * (SATURATION + 1) / (counts + index.norms[positions])  # BM25
    found, scores = _best(summed(positions, scored, messages), summed(positions, covered, messages), most_hits)
    found, scores, similar = with_similar(index, query.meaning, query.through_seq, found, scores)
    return Hits(
        messages=messages,
        positions=found[:most_hits],
        scores=scores[:most_hits],
        similar=similar,
        words=(*terms.words, *[(date.words, date.words) for date in dates]),
        seen_in=seen_in,
        postings=positions,
    )


def _best(scores: Floats, coverage: Floats, most_hits: int) -> tuple[Ints, Floats]:
    """The positions of the messages that match best, best first, and their scores, weighted by coverage of the text."""
    least = _least_of_best(scores, most_hits)
    (found,) = (scores >= least if least else scores != 0).nonzero()  # on booleans it takes a fifth of the time
    if len(found) > most_hits:
        of_found = scores[found]
        found = found[of_found >= np.partition(of_found, -most_hits)[-most_hits]]
    if len(found) > most_hits:  # of equals the newest
        found = np.sort(found[scores[found].argsort(kind="stable")[-most_hits:]])
    covered = coverage[found]
    scores = scores[found] * (covered / covered.max(initial=0.0)) ** _COVERAGE_POWER
    order = scores.argsort(kind="stable")[::-1]
    return found[order], scores[order]


def _least_of_best(scores: Floats, most_hits: int) -> float:
    """A score that at least `most_hits` messages reach, or 0: of the best score of each of some groups of messages, the
    one at that place. To look for the best among all matches of a long session would take longest in a search."""
    messages_each = len(scores) // (_GROUPS_A_HIT * most_hits)
    if messages_each < 2:
        return 0.0
    grouped = scores[: len(scores) // messages_each * messages_each].reshape(messages_each, -1)
    return float(np.partition(grouped.max(0), -most_hits)[-most_hits])


class _Terms(NamedTuple):
    """The hashes of a query's terms, those of the related ones first, and their words; for each related term its weight
    and, in `places`, the index of the query's term that it is related to."""

    wanted: tuple[int, ...]
    weights: tuple[float, ...]
    places: Ints
    words: tuple[tuple[str, str], ...]


@lru_cache(maxsize=16)  # one message is searched for several times in a turn
def _terms_of(text: str) -> _Terms:
    wanted = request_of(text).asked_for
    wanted = wanted if query_words(wanted) else text
    words = query_words(wanted)
    own = {term_hash(term): words[term] for term in query_terms(wanted)}
    of_own = [*own.values()]
    found = related_terms(own)
    hashes, related, of, weights = zip(*found, strict=True) if found else ((), (), (), ())
    named = *zip(related, of, strict=True), *zip(of_own, of_own, strict=True)
    return _Terms((*hashes, *own), weights, places_of(of_own, of), named)
