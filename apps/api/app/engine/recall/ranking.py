"""Recall: which messages that left the window match the user's message. They are sent whole and verbatim, if they fit.

A message is found by its words (BM25) and ranked by its score per token. Its neighbours get a part of its score,
because a question is next to its answer. Recalled messages need a minimum share of the best score, so that a prompt is
not filled with merely similar text, and only use tokens below the prune threshold (contract.md, section 8). How much
is recalled depends on how much of the user's message is a question. No text of the past is read to rank it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import chain
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.domain.content import canonical_bytes, content_text, named
from app.domain.frozen import frozen, replace
from app.domain.types import Message, ReasoningRule, Turn
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import Unit, sendable_units, with_reasoning
from app.engine.policy.budget import part_of
from app.engine.policy.policy import Recall
from app.engine.recall.bm25 import Query, search, summed
from app.engine.recall.dates import day_said
from app.engine.recall.index import CALL, RESULT, Floats, Index, Ints
from app.engine.recall.requests import request_of
from app.engine.recall.terms import MOST_ASKED_CHARS, query_words, word_count
from app.engine.recall.vectors import Meaning

MOST_CANDIDATES: Final = 192
"""Most messages, best first and not counting tool groups, that one turn chooses from."""
_SHARES: Final = np.array((0.12, 0.25, 0.4, 1.0, 0.5, 0.25, 0.12))
"""The shares of a hit's score that the messages before it, the hit itself, and the messages after it get."""
_REACH: Final = len(_SHARES) // 2
_NEIGHBOURS: Final = np.arange(len(_SHARES))
_QUESTION_FACTOR: Final = 0.8
_TOKENS_OF_ANY: Final = 16
"""Added to a message's own tokens before its score is divided by them, so that a single word does not rank too high."""
MOST_RECALLED_TOKENS: Final = 6_400
"""Largest recalled block in any window: more would answer next to nothing (`docs/fidelity.md`)."""
_LEAST_RECALLED_TOKENS: Final = 32
"""Smallest budget for which a search is made: a message that is worth its note is not smaller."""
_TERMS_OF_A_QUESTION: Final = 8
_TERMS_WITHOUT_QUESTION: Final = 5
_SHARE_WITHOUT_QUESTION: Final = 0.125
_LEAST_ASKED_SHARE: Final = 0.03


@frozen
class Candidate:
    """Messages, by `seq`, that are recalled together or not at all, with their score, and for each message what it
    matched (`Hits.matched`)."""

    seqs: tuple[int, ...]
    score: float
    matched: tuple[tuple[str, ...], ...] = ()


@frozen
class Evicted:
    """The part of the past that is not in the raw window and may be recalled for a message: the best `candidates`, and
    the messages of them that were read, in `turns`, perhaps in part, in time order."""

    candidates: tuple[Candidate, ...] = ()
    turns: tuple[Turn, ...] = ()

    def with_reasoning(self, rule: ReasoningRule | None) -> Evicted:
        """The same, with its messages marked and counted as the model's rule says they are sent back."""
        return self if rule is None else replace(self, turns=tuple(with_reasoning(turn, rule) for turn in self.turns))


@lru_cache(maxsize=16)  # a turn needs it before it searches, and again when it puts the results into its prompt
def wanted_share(text: str) -> float:
    """How much of the largest recalled block the user's message gets, 0 to 1.

    A question gets all of it, so that several older messages can answer it together; less the longer it is, since a
    long one contains its own context, and much less the more other text surrounds it. A short message without a
    question gets a little, a long one next to nothing.
    """
    terms = max(1.0, word_count(text))
    question, asked_for = request_of(text)
    if not question:
        if not query_words(asked_for):
            return 0.0  # "ok, do it"
        return _SHARE_WITHOUT_QUESTION * min(1.0, (_TERMS_WITHOUT_QUESTION / terms) ** 3)
    question_terms = max(1.0, word_count(question))
    of_the_text = max(_LEAST_ASKED_SHARE, (question_terms / terms) ** 4)
    return min(1.0, (_TERMS_OF_A_QUESTION / question_terms) ** 2) * min(1.0, of_the_text)


def most_recalled_tokens(text: str, recall: Recall, input_budget: int) -> int:
    """The largest block in tokens that may be recalled for the user's message; 0 if nothing should be recalled."""
    wanted_tokens = MOST_RECALLED_TOKENS * wanted_share(text[:MOST_ASKED_CHARS])
    called_for = min(part_of(recall.max_share, input_budget), wanted_tokens)
    return int(called_for) if called_for >= _LEAST_RECALLED_TOKENS else 0


def candidates(index: Index, query: Query, room_tokens: int, min_score_ratio: float) -> tuple[Candidate, ...]:
    """The messages that match the query or are next to a match, the best score per token first, of equals the newer, as
    many as fit into `room_tokens` on the wire. They are whole units that score at least `min_score_ratio` of the best;
    no text is there twice."""
    hits = search(index, query)
    near, parts = hits.positions[:, None] + _NEIGHBOURS, hits.scores[:, None] * _SHARES
    shares = summed(near.ravel(), parts.ravel(), hits.messages + 2 * _REACH)[_REACH : hits.messages + _REACH]
    is_near, is_alone = shares != 0, index.kinds[: hits.messages] < CALL
    (alone,) = (is_near & is_alone & (index.tokens[: hits.messages] <= room_tokens)).nonzero()
    values = shares[alone] * np.where(index.questions[alone], _QUESTION_FACTOR, 1.0)
    values /= np.sqrt(index.tokens[alone] + (MESSAGE_FRAMING_TOKENS + _TOKENS_OF_ANY))
    order = values.argsort(kind="stable")[: -MOST_CANDIDATES - 1 : -1]  # of equals the newer first
    alone = alone[order]
    units = _Units(values[order], alone, alone + 1, index.tokens[alone] + MESSAGE_FRAMING_TOKENS, index.texts[alone])
    if groups := _groups(index, shares, (is_near & ~is_alone).nonzero()[0].tolist(), room_tokens):
        units = _Units._make(map(np.append, units, zip(*groups, strict=True)))
        units = units.at(np.lexsort((units.ends, units.scores))[::-1])
    good = np.count_nonzero(units.scores >= min_score_ratio * units.scores[:1])
    units = units.at(_with_room(units.tokens[:good].tolist(), units.texts, room_tokens))
    scores, firsts, ends = [column.tolist() for column in units[:3]]
    places = [*map(range, firsts, ends)]
    seqs = [tuple(index.seqs[place.start : place.stop].tolist()) for place in places]
    matched = hits.matched(chain.from_iterable(places))
    words = [tuple(map(matched.__getitem__, place)) for place in places]
    return tuple(map(Candidate, seqs, scores, words))


class _Units(NamedTuple):
    """Messages, and tool groups, by columns: the score of each, the position of its first message, that behind its
    last, its wire tokens, and the hash of its text."""

    scores: Floats
    firsts: Ints
    ends: Ints
    tokens: npt.NDArray[np.int32]
    texts: npt.NDArray[np.int32]

    def at(self, places: Ints) -> _Units:
        return _Units._make([column[places] for column in self])


def _with_room(tokens: Sequence[int], texts: npt.NDArray[np.int32], room_tokens: int) -> Ints:
    """The places of the units that fit into `room_tokens` together, chosen in their order."""
    chosen: list[int] = []
    sent: set[int] = set()
    for place, wire_tokens in enumerate(tokens):
        if wire_tokens <= room_tokens and (text := int(texts[place])) not in sent:
            sent.add(text)
            room_tokens -= wire_tokens
            chosen.append(place)
            if room_tokens <= MESSAGE_FRAMING_TOKENS:
                break
    return np.array(chosen, np.int64)


def _groups(
    index: Index, shares: Floats, members: Sequence[int], most_tokens: int
) -> list[tuple[float, int, int, int, int]]:
    """The tool groups that these positions belong to, as rows of `_Units`: each whole, by its best member's score,
    never a repeated text."""
    found: dict[int, tuple[float, int, int, int, int]] = {}
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
        found[first] = (score, first, end, wire_tokens, -end)
    return list(found.values())


def seqs_of(found: Sequence[Candidate]) -> list[int]:
    """The messages of the candidates by `seq`, in time order."""
    return sorted([seq for candidate in found for seq in candidate.seqs])


def evicted_among(
    index: Index,
    turn_of: Callable[[int], Turn],
    message: Message,
    recall: Recall,
    input_budget: int,
    meaning: Meaning | None = None,
) -> Evicted:
    """What may be recalled for a message from everything in the index; `turn_of` gives the turn of a message `seq`."""
    text = content_text(message.content)
    room_tokens = most_recalled_tokens(text, recall, input_budget)
    if not room_tokens:
        return Evicted()
    query = Query(text, index.through_seq, day_said(message), meaning)
    found = candidates(index, query, room_tokens, recall.min_score_ratio)
    seqs = seqs_of(found)
    whole, wanted = {turn.seq: turn for turn in map(turn_of, seqs)}, frozenset(seqs)
    return Evicted(found, tuple([_part_of(turn, wanted) for turn in whole.values()]))


def _part_of(turn: Turn, seqs: frozenset[int]) -> Turn:
    messages = tuple([message for message in turn.messages if message.seq in seqs])
    return turn if len(messages) == len(turn.messages) else replace(turn, messages=messages)


def text_key(message: Message) -> int:
    """A number that tells this process whether two messages have the same text of the same speaker: its JSON's hash."""
    return hash(canonical_bytes(named(message.name, content_text(message.content))))


def nobodys_day(_message: Message) -> None:
    """None, for a prompt that does not show days."""


def choose(
    evicted: Evicted,
    *,
    sent: Collection[int],
    fits: Callable[[int, int, Collection[int | None]], bool],
    day: Callable[[Message], int | None] = nobodys_day,
) -> tuple[tuple[Unit, Candidate], ...]:
    """The recalled units with their candidates, in time order, chosen best first from those that were read, without
    those whose text's key is in `sent`. `fits(tokens, messages, days)` says whether so many tokens
    (without framing) in so many messages of these days still fit. A unit that does not is skipped for the next ones."""
    units = {unit.messages[0].seq: unit for turn in evicted.turns for unit in sendable_units(turn)}
    found = [(units[each.seqs[0]], each) for each in evicted.candidates if each.seqs[0] in units]
    new = [each for each in found if each[0].messages[1:] or text_key(each[0].messages[0]) not in sent]
    tokens = [message.tokens for unit, _ in new for message in unit.messages]
    if not fits(sum(tokens), len(tokens), {day(unit.messages[0]) for unit, _ in new}):  # nearly always all fit
        new = _fitting(new, fits, day)
    return tuple(sorted(new, key=lambda found: found[0].messages[0].seq))


def _fitting(
    found: Sequence[tuple[Unit, Candidate]],
    fits: Callable[[int, int, Collection[int | None]], bool],
    day: Callable[[Message], int | None],
) -> list[tuple[Unit, Candidate]]:
    chosen: list[tuple[Unit, Candidate]] = []
    tokens = messages = 0
    days = frozenset[int | None]()
    for unit, candidate in found:
        more_tokens = tokens + sum([message.tokens for message in unit.messages])
        more = more_tokens, messages + len(unit.messages), days | {day(unit.messages[0])}
        if fits(*more):
            chosen.append((unit, candidate))
            tokens, messages, days = more
    return chosen
