"""Bringing back what left the window: which older messages match the user's, whole and verbatim, and as many as fit.

A message is found by its words (BM25), counts for what it says per token, and its neighbours share in what it scores: a
question and its answer stand together. What is brought back is gated by the best score, so that a prompt is not filled
to the brim with the merely similar, and takes only room below the summary trigger (contract.md, section 8). Pure, and
by arrays: no text of the past is read to rank it, only what is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from app.domain.content import content_text
from app.domain.types import JsonObject, MessageId, Turn
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import Unit, sendable_units
from app.engine.policy.policy import Recall
from app.engine.recall.index import CALL, EMPTY, QUESTION_MARKS, RESULT, Floats, Index, Ints, Packed
from app.engine.recall.terms import MOST_TERMS_OF_A_MESSAGE, distinct_query_terms, query_terms, term_hash

MOST_HITS: Final = 64
"""Messages that matched, best first, of which one turn looks at the neighbourhood."""
MOST_CANDIDATES: Final = 192
"""Messages beside tool groups, best first, that one turn chooses from."""
MOST_SEEN_SHARE: Final = 0.8
LEAST_MESSAGES: Final = 8
SATURATION: Final = 1.2

_LENGTH_SHARE: Final = 0.4
_USUAL_TERMS: Final = 16
"""BM25 with a fixed usual length: what a message scores must not change when longer ones come (Robertson, Zaragoza)."""
_NEIGHBOURS: Final = np.arange(-3, 4)
_SHARES: Final = np.array((0.12, 0.25, 0.4, 1.0, 0.5, 0.25, 0.12))
"""The share of a hit's score that the messages before it get, itself, and those after it."""
_COVERAGE_POWER: Final = 0.6
"""How much more a message counts that has several of the query's words than one that has one of them often."""
_QUESTION_FACTOR: Final = 0.8
_LEAST_NEWS_SHARE: Final = 0.1
_TOKENS_OF_ANY: Final = 16
"""Added to a message's own tokens before they divide its score: a word alone is no bargain."""
_SENTENCE: Final = re.compile(r"[^.!?…。！？؟\n]*(?:[.!?…。！？؟\n]|$)")
_MOST_ASKED_CHARS: Final = 8_000
_TERMS_OF_A_QUESTION: Final = 8
_TERMS_OF_A_WISH: Final = 5
_LEAST_ASKED_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that comes back: `score` is what it was chosen by, `tokens` its cost on the wire."""

    message_id: MessageId
    score: float
    tokens: int

    def public(self) -> JsonObject:
        """The shape of a row of `recalled` in `context_trim_log`."""
        return {"message_id": str(self.message_id), "score": self.score, "tokens": self.tokens}


class Candidate(NamedTuple):
    """Messages that come back together or not at all, by number, and what speaks for them.

    `tokens` is what they cost on the wire as they were counted when they were stored. `is_new` is false of a message
    whose words are nearly all the query's own: the same question as once before, of which only the answer is wanted.
    """

    seqs: tuple[int, ...]
    score: float
    tokens: int
    text: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """What of the past is not in the raw window, through message `through_seq`, and may come back for a message.

    `candidates` are all that match or stand beside a match, best first; `turns` hold those that were read, in time
    order, a turn perhaps in part.
    """

    index: Index
    through_seq: int
    candidates: tuple[Candidate, ...] = ()
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Hits:
    """Messages that match by their positions, best first, with their scores; `shared_terms` is how many terms each of
    all that were searched shares with the text."""

    positions: Ints
    scores: Floats
    shared_terms: Ints


def wanted_share(text: str) -> float:
    """How much of the block's largest size the user's message calls for, 0 to 1.

    A short one and a question get all of it, so that several older messages can answer together. A long one
    brings its context along, and would match nearly everything by a word or two; if it asks something as well,
    that gets less the more there is around it, and never nothing.
    """
    terms = max(1, len(query_terms(text)))
    sentences = _SENTENCE.findall(text[:_MOST_ASKED_CHARS])
    asked = " ".join(sentence for sentence in sentences if sentence.endswith(QUESTION_MARKS))
    if not asked:
        return min(1.0, (_TERMS_OF_A_WISH / terms) ** 3)
    asked_terms = max(1, len(query_terms(asked)))
    of_the_text = max(_LEAST_ASKED_SHARE, min(1.0, 2 * asked_terms / terms) ** 2)
    return min(1.0, (_TERMS_OF_A_QUESTION / asked_terms) ** 2) * of_the_text


def most_recalled_tokens(text: str, recall: Recall, input_budget: int) -> int:
    """The largest block that may come back for the user's message."""
    return int(recall.max_share * wanted_share(text) * input_budget)


def rarities(seen_in: Ints, messages: int, most_seen_share: float = MOST_SEEN_SHARE) -> Floats:
    """What terms that so many of the messages have tell apart (BM25's inverse document frequency).

    Nothing where nearly all have one: a session that says the same again and again would match as a whole.
    """
    rare = np.log1p((messages - seen_in + 0.5) / (seen_in + 0.5))
    if messages >= LEAST_MESSAGES:
        rare[seen_in > most_seen_share * messages] = 0.0
    return rare


def summed(positions: Ints, parts: Floats, messages: int) -> Floats:
    """By message, the sum of its parts."""
    return np.bincount(positions, parts, messages).astype(np.float64, copy=False)


def term_scores(index: Index, seen_in: Ints, positions: Ints, counts: Ints, rare: Floats) -> tuple[Floats, Floats]:
    """By posting, as `Index.postings` gives them: its BM25 score, and the rarity of its term."""
    norm = (SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE / _USUAL_TERMS * index.lengths))[positions]
    of_posting = np.repeat(rare, seen_in)
    return of_posting * counts * (SATURATION + 1) / (counts + norm), of_posting


def search(
    index: Index, text: str, through_seq: int, *, most_hits: int = MOST_HITS, most_seen_share: float = MOST_SEEN_SHARE
) -> Hits:
    """The best of the messages through a number that have any of the text's terms; of equals the newer.

    One that has more of the terms counts more. Of a long text only some terms are looked for, and only so many as a
    message is packed with are compared.
    """
    messages = int(np.searchsorted(index.seqs, through_seq, "right"))
    terms = dict.fromkeys(map(term_hash, query_terms(text)))
    sought = len(terms)
    terms |= dict.fromkeys(map(term_hash, distinct_query_terms(text)[:MOST_TERMS_OF_A_MESSAGE]))
    seen_in, positions, counts = index.postings(terms, messages)
    rare = rarities(seen_in, messages, most_seen_share)
    rare[sought:] = 0.0
    scored, covered = term_scores(index, seen_in, positions, counts, rare)
    scores, coverage = summed(positions, scored, messages), summed(positions, covered, messages)
    found = np.flatnonzero(scores)
    if len(found):
        found = found[np.lexsort((-found, -scores[found]))[:most_hits]]
        scores = scores[found] * (coverage[found] / coverage[found].max()) ** _COVERAGE_POWER
        order = np.lexsort((-found, -scores))
        found, scores = found[order], scores[order]
    return Hits(found, scores[: len(found)], np.bincount(positions, minlength=messages))


def candidates(
    index: Index, text: str, through_seq: int, *, most_tokens: int, min_score_ratio: float
) -> tuple[Candidate, ...]:
    """What matches the text among the messages through a number, or stands beside a match, best per token first.

    Whole units whose messages have at most `most_tokens` each and that score at least `min_score_ratio` of the best;
    of equals the newer.
    """
    hits = search(index, text, through_seq)
    messages = len(hits.shared_terms)
    near = hits.positions[:, None] + _NEIGHBOURS
    inside = (near >= 0) & (near < messages)
    shares = summed(near[inside], (hits.scores[:, None] * _SHARES)[inside], messages)
    at = np.flatnonzero(shares)
    alone = at[(index.kinds[at] < CALL) & (index.tokens[at] <= most_tokens)]
    values = shares[alone] * np.where(index.asks[alone], _QUESTION_FACTOR, 1.0)
    values /= np.sqrt(index.tokens[alone] + (MESSAGE_FRAMING_TOKENS + _TOKENS_OF_ANY))
    groups = _groups(index, shares, at[index.kinds[at] >= CALL].tolist(), most_tokens)
    best = max([float(values.max(initial=0.0)), *(group.score for group in groups)])
    good = values >= min_score_ratio * best
    alone, values = alone[good], values[good]
    order = np.lexsort((-alone, -values))[:MOST_CANDIDATES]
    alone, values = alone[order], values[order]
    distinct = index.distinct[alone]
    rows = zip(
        zip(index.seqs[alone].tolist(), strict=True),
        values.tolist(),
        (index.tokens[alone] + MESSAGE_FRAMING_TOKENS).tolist(),
        index.texts[alone].tolist(),
        (distinct - hits.shared_terms[alone] > _LEAST_NEWS_SHARE * distinct).tolist(),
        strict=True,
    )
    found = [*map(Candidate._make, rows), *(group for group in groups if group.score >= min_score_ratio * best)]
    return tuple(sorted(found, key=lambda candidate: (-candidate.score, -candidate.seqs[-1])) if groups else found)


def _groups(index: Index, shares: Floats, members: Sequence[int], most_tokens: int) -> list[Candidate]:
    """The tool groups that these positions belong to: each whole, by its best member's score, and taken as new."""
    found: dict[int, Candidate] = {}
    for member in members:
        first = member
        while first and index.kinds[first] == RESULT:
            first -= 1
        end = first + 1
        while end < len(shares) and index.kinds[end] == RESULT:
            end += 1
        tokens = index.tokens[first:end]
        if first in found or index.kinds[first] != CALL or tokens.max() > most_tokens:
            continue
        wire_tokens = int(tokens.sum(dtype=np.int64)) + MESSAGE_FRAMING_TOKENS * (end - first)
        score = float(shares[first:end].max()) / sqrt(wire_tokens + _TOKENS_OF_ANY)
        found[first] = Candidate(tuple(index.seqs[first:end].tolist()), score, wire_tokens, -first, is_new=True)
    return list(found.values())


def wanted_seqs(found: Sequence[Candidate], room_tokens: int) -> list[int]:
    """The messages to read, so that as many of the best as have room can come back; in time order."""
    wanted: list[int] = []
    texts: set[int] = set()
    for candidate in found:
        if candidate.is_new and candidate.tokens <= room_tokens and candidate.text not in texts:
            texts.add(candidate.text)
            room_tokens -= candidate.tokens
            wanted += candidate.seqs
    return sorted(wanted)


def evicted_among(
    index: Index, turn_of: Callable[[int], Turn], text: str, recall: Recall, input_budget: int
) -> Evicted:
    """What may come back for a message of all that is in the index, where all its messages are at hand: `turn_of` gives
    the turn of a message number."""
    room_tokens = most_recalled_tokens(text, recall, input_budget)
    found = candidates(index, text, index.through_seq, most_tokens=room_tokens, min_score_ratio=recall.min_score_ratio)
    seqs = wanted_seqs(found, room_tokens)
    whole = {turn.id: turn for turn in map(turn_of, seqs)}
    parts = (replace(turn, messages=tuple(m for m in turn.messages if m.seq in seqs)) for turn in whole.values())
    return Evicted(index, index.through_seq, found, tuple(parts))


def with_folded(
    evicted: Evicted, turns: Sequence[Turn], text: str, *, most_tokens: int, min_score_ratio: float
) -> Evicted:
    """The same when these turns have left the window too, since the search."""
    messages = [message for turn in turns for message in turn.messages]
    through_seq, index = messages[-1].seq, evicted.index
    new = [message for message in messages if message.seq > index.through_seq]
    if new:
        index = index.extended(Packed.of(new), through_seq)
    found = candidates(index, text, through_seq, most_tokens=most_tokens, min_score_ratio=min_score_ratio)
    return Evicted(index, through_seq, found, (*evicted.turns, *turns))


NOTHING_EVICTED: Final = Evicted(EMPTY, 0)


def choose(
    evicted: Evicted, *, sent: Collection[str], fits: Callable[[int, int], bool]
) -> tuple[tuple[Unit, float], ...]:
    """The units that come back and their scores, in time order.

    Best first, those whose text is not among those `sent` in the prompt; `fits(tokens, messages)` says whether so many
    tokens (without framing) in so many messages still have room. One that has none leaves it to the next.
    """
    units = {unit.messages[0].seq: unit for turn in evicted.turns for unit in sendable_units(turn)}
    texts = set(sent)
    chosen: list[tuple[Unit, float]] = []
    tokens = messages = 0
    for candidate in evicted.candidates:
        unit = units.get(candidate.seqs[0])
        if unit is None or not candidate.is_new:
            continue
        text = content_text(unit.messages[0].content) if unit.kind != "tool_group" else None
        more_tokens = tokens + sum(message.tokens for message in unit.messages)
        more_messages = messages + len(unit.messages)
        if text not in texts and fits(more_tokens, more_messages):
            chosen.append((unit, candidate.score))
            tokens, messages = more_tokens, more_messages
            if text is not None:
                texts.add(text)
    return tuple(sorted(chosen, key=lambda found: found[0].last_seq))
