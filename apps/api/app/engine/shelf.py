"""What left the window, kept in memory: for simulations and benches, found as `db/recall.py` finds it in the database.

A test holds the two against each other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from app.domain.evicted import Evicted, Hit
from app.domain.types import Message, Turn
from app.engine.recall import MOST_HITS, MOST_POSTINGS, REACH, rarity
from app.engine.recall_terms import query_terms, weighed_terms
from app.engine.tokens import content_text


class Shelf:
    """Postings of one session in memory, with the same bounds as the statement that reads them."""

    def __init__(self) -> None:
        self._postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self._turns: list[Turn] = []
        self._last_seq = 0

    def add(self, turns: Sequence[Turn]) -> None:
        """Turns that have left the window."""
        for turn in turns:
            self._turns.append(turn)
            for message in turn.messages:
                self._last_seq = max(self._last_seq, message.seq)
                for term, weight in weighed_terms(content_text(message.content)).items():
                    insort(self._postings[term], (message.seq, weight))

    def find(self, message: Message, most_tokens: int) -> Evicted:
        """What may come back for the user's message, of at most `most_tokens` each."""
        terms = query_terms(content_text(message.content))
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
        near = sorted({hit.seq + offset for hit in hits for offset in range(-REACH, REACH + 1)})

        def is_near(turn: Turn) -> bool:
            at = bisect_left(near, turn.messages[0].seq)
            return at < len(near) and near[at] <= turn.messages[-1].seq

        wanted = set(near)
        return tuple(
            replace(turn, messages=tuple(m for m in turn.messages if m.tokens <= most_tokens))
            for turn in self._turns
            if turn.messages and is_near(turn) and any(m.seq in wanted for m in turn.messages)
        )
