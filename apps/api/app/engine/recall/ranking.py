"""Bringing back what left the window: which older messages match the user's, whole and verbatim, and as many as fit.

A message is found by its words (BM25), counts for what it says per token, and its neighbours share in what it scores: a
question and its answer stand together. What is brought back is gated by the best score, so that a prompt is not filled
to the brim with the merely similar, and takes only room below the summary trigger (contract.md, section 8). Pure: where
the matches come from is the caller's matter, a database's postings or messages at hand.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

from app.domain.content import content_text
from app.domain.evicted import Evicted, Hit
from app.domain.types import JsonObject, Message, MessageId, Turn
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import Unit, sendable_units
from app.engine.recall.terms import query_terms, terms_of, weighed_terms

MOST_HITS: Final = 64
"""Messages that matched, best first, of which one turn looks at the neighbourhood."""
MOST_POSTINGS: Final = 200
"""Newest messages that are looked at for each of the query's terms: what bounds the cost of a common one."""
MOST_SEEN_SHARE: Final = 0.8
LEAST_MESSAGES: Final = 8
NEIGHBOURS: Final[Mapping[int, float]] = {-3: 0.12, -2: 0.25, -1: 0.4, 1: 0.5, 2: 0.25, 3: 0.12}
"""The share of a hit's score that messages so many places after it get."""
REACH: Final = max(NEIGHBOURS)
GROUP_REACH: Final = 12
"""How far around a hit in a tool group its other messages are looked for: it comes back whole or not at all."""

_COVERAGE_POWER: Final = 0.6
"""How much more a message counts that has several of the query's words than one that has one of them often."""
_QUESTION_FACTOR: Final = 0.8
_LEAST_NEWS_SHARE: Final = 0.1
_TOKENS_OF_ANY: Final = 16
"""Added to a message's own tokens before they divide its score: a word alone is no bargain."""
_QUESTION: Final = re.compile(r"[^.!?…。！？؟\n]*[?？؟]")
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """Messages that come back together or not at all, and what speaks for them."""

    unit: Unit
    score: float

    @property
    def tokens(self) -> int:
        """Without framing."""
        return sum(message.tokens for message in self.unit.messages)


def wanted_share(text: str) -> float:
    """How much of the block's largest size the user's message calls for, 0 to 1.

    A short one and a question get all of it, so that several older messages can answer together. One that tells at
    length brings its context along, and would match nearly everything by a word or two; if it asks something as well,
    that gets less the more there is around it, and never nothing.
    """
    terms = max(1, len(query_terms(text)))
    asked = " ".join(_QUESTION.findall(text[:_MOST_ASKED_CHARS]))
    if not asked:
        return min(1.0, (_TERMS_OF_A_WISH / terms) ** 3)
    asked_terms = max(1, len(query_terms(asked)))
    of_the_text = max(_LEAST_ASKED_SHARE, min(1.0, 2 * asked_terms / terms) ** 2)
    return min(1.0, (_TERMS_OF_A_QUESTION / asked_terms) ** 2) * of_the_text


def rarity(seen_in: float, messages: float, most_seen_share: float = MOST_SEEN_SHARE) -> float:
    """What a term that so many of the messages have tells apart (BM25's inverse document frequency).

    Nothing where nearly all of them have it: a session that says the same again and again would match as a whole.
    """
    if messages >= LEAST_MESSAGES and seen_in > most_seen_share * messages:
        return 0.0
    return log(1 + (messages - seen_in + 0.5) / (seen_in + 0.5))


def with_more_evicted(evicted: Evicted, turns: Sequence[Turn], most_seen_share: float = MOST_SEEN_SHARE) -> Evicted:
    """The same when these turns have left the window too, which no index knows yet."""
    messages = [message for turn in turns for unit in sendable_units(turn) for message in unit.messages]
    weighed = {message.seq: weighed_terms(content_text(message.content)) for message in messages}
    total = evicted.messages + len(messages)
    seen_in = Counter(evicted.seen_in) + Counter(
        term for weights in weighed.values() for term in evicted.terms if term in weights
    )
    hits = match(
        evicted.terms, weighed, {term: rarity(seen_in[term], total, most_seen_share) for term in evicted.terms}
    )
    return Evicted(evicted.terms, (*evicted.turns, *turns), (*evicted.hits, *hits), total, seen_in)


def match(
    terms: Iterable[str], weighed: Mapping[int, Mapping[str, float]], rarities: Mapping[str, float]
) -> tuple[Hit, ...]:
    """The best of the messages, given by `seq` with their weighed terms, that have any of the query's terms."""
    scores: dict[int, list[float]] = {}
    for term in terms:
        if rarities[term] <= 0:
            continue
        for seq, weights in weighed.items():
            if term in weights:
                sums = scores.setdefault(seq, [0.0, 0.0])
                sums[0] += rarities[term] * weights[term]
                sums[1] += rarities[term]
    found = sorted((Hit(seq, *sums) for seq, sums in scores.items()), key=lambda hit: (-hit.score, -hit.seq))
    return tuple(found[:MOST_HITS])


def ranked(evicted: Evicted) -> list[tuple[int, float]]:
    """The `seq` of each message that matches with its score, best first; one that has more of the words counts more."""
    most = max((hit.coverage for hit in evicted.hits), default=0.0)
    if most <= 0:
        return []
    scored = [(hit.seq, hit.score * (hit.coverage / most) ** _COVERAGE_POWER) for hit in evicted.hits]
    return sorted(scored, key=lambda found: (-found[1], -found[0]))


def candidates(evicted: Evicted) -> list[Candidate]:
    """Every whole unit that matches or stands beside a match, best per token first; of equals the newer."""
    shared: defaultdict[int, float] = defaultdict(float)
    for seq, score in ranked(evicted):
        shared[seq] += score
        for offset, share in NEIGHBOURS.items():
            shared[seq + offset] += share * score
    found = [
        Candidate(unit, _value(unit, shared))
        for turn in evicted.turns
        for unit in sendable_units(turn)
        if any(shared[message.seq] > 0 for message in unit.messages)
    ]
    return sorted(found, key=lambda candidate: (-candidate.score, -candidate.unit.last_seq))


def _value(unit: Unit, shared: Mapping[int, float]) -> float:
    best = max(shared[message.seq] for message in unit.messages)
    wire_tokens = sum(message.tokens + MESSAGE_FRAMING_TOKENS for message in unit.messages)
    asks = unit.kind != "tool_group" and _asks(unit.messages[0])
    return best * (_QUESTION_FACTOR if asks else 1.0) / sqrt(wire_tokens + _TOKENS_OF_ANY)


def _asks(message: Message) -> bool:
    return content_text(message.content).rstrip("\"'”’) ").endswith(("?", "？", "؟"))


def choose(
    found: Sequence[Candidate],
    *,
    min_score_ratio: float,
    said: AlreadyInPrompt,
    fits: Callable[[int, int], bool],
) -> tuple[Candidate, ...]:
    """The candidates that come back, in time order.

    Best first, those that score at least `min_score_ratio` of the best and say what is not `said` in the prompt;
    `fits(tokens, messages)` says whether so many tokens (without framing) in so many messages still have room. One that
    has none leaves it to the next.
    """
    chosen: list[Candidate] = []
    tokens = messages = 0
    for candidate in found:
        if candidate.score < min_score_ratio * found[0].score:
            break
        more_tokens, more_messages = tokens + candidate.tokens, messages + len(candidate.unit.messages)
        if fits(more_tokens, more_messages) and said.lacks(candidate.unit):
            chosen.append(candidate)
            tokens, messages = more_tokens, more_messages
    return tuple(sorted(chosen, key=lambda candidate: candidate.unit.last_seq))


class AlreadyInPrompt:
    """What a prompt says already. `texts` are those of its messages, `asked` the newest."""

    def __init__(self, texts: Iterable[str], asked: str) -> None:
        self._texts = set(texts)
        self._asked = frozenset(terms_of(asked))

    def lacks(self, unit: Unit) -> bool:
        """Whether the unit says anything new; it counts as said from now on.

        The same text says nothing, nor does one whose words are nearly all the newest message's own: the same question
        as once before, of which only the answer is wanted. Tool groups are taken as new.
        """
        if unit.kind == "tool_group":
            return True
        text = content_text(unit.messages[0].content)
        terms = frozenset(terms_of(text))
        if text in self._texts or len(terms - self._asked) <= _LEAST_NEWS_SHARE * len(terms):
            return False
        self._texts.add(text)
        return True
