"""The messages of a replay that left the window, found as the service's database finds them (`db/recall.py`)."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from app.domain.content import content_text
from app.domain.evicted import Evicted, Hit
from app.domain.types import Message, Turn
from app.engine.recall.ranking import GROUP_REACH, MOST_HITS, MOST_POSTINGS, REACH, rarity
from app.engine.recall.terms import query_terms, weighed_terms


class Shelf:
    """Postings of one session in memory, with the same bounds as the statement that reads them."""

    def __init__(self) -> None:
        self._postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self._messages: dict[int, tuple[Turn, Message]] = {}
        self._last_seq = 0

    def add(self, turns: Sequence[Turn]) -> None:
        """Turns that have left the window."""
        for turn in turns:
            for message in turn.messages:
                self._messages[message.seq] = turn, message
                self._last_seq = max(self._last_seq, message.seq)
                for term, weight in weighed_terms(content_text(message.content)).items():
                    insort(self._postings[term], (message.seq, weight))

    def find(self, asked: str, most_tokens: int) -> Evicted | None:
        """What may come back for what is asked, of messages of at most `most_tokens`; None when nothing can."""
        terms = query_terms(asked)
        if not terms or most_tokens <= 0:
            return None
        lists = {term: self._postings[term][-MOST_POSTINGS:] for term in terms if term in self._postings}
        seen_in = {term: self._seen_in(listed) for term, listed in lists.items()}
        sums: dict[int, list[float]] = {}
        for term, listed in lists.items():
            rare = rarity(seen_in[term], self._last_seq)
            if rare <= 0:
                continue
            for seq, weight in listed:
                of = sums.setdefault(seq, [0.0, 0.0])
                of[0] += rare * weight
                of[1] += rare
        found = sorted((Hit(seq, *of) for seq, of in sums.items()), key=lambda hit: (-hit.score, -hit.seq))
        hits = tuple(found[:MOST_HITS])
        return Evicted(terms, self._around(hits, most_tokens), hits, self._last_seq, seen_in)

    def _seen_in(self, listed: Sequence[tuple[int, float]]) -> int:
        """A list that is full was cut: its density holds for the part before."""
        if len(listed) < MOST_POSTINGS:
            return len(listed)
        return len(listed) * self._last_seq // (self._last_seq - listed[0][0] + 1)

    def _around(self, hits: Sequence[Hit], most_tokens: int) -> tuple[Turn, ...]:
        """The hits and their neighbours, of a tool group all that may belong to it, turn by turn."""
        near: set[int] = set()
        for hit in hits:
            message = self._messages[hit.seq][1]
            reach = GROUP_REACH if message.role == "tool" or message.tool_calls else REACH
            near.update(range(hit.seq - reach, hit.seq + reach + 1))
        by_turn: dict[int, tuple[Turn, list[Message]]] = {}
        for seq in sorted(near & self._messages.keys()):
            turn, message = self._messages[seq]
            if message.tokens <= most_tokens:
                by_turn.setdefault(turn.seq, (turn, []))[1].append(message)
        return tuple(replace(turn, messages=tuple(messages)) for turn, messages in by_turn.values())
