"""How relevant pins are to a turn where none is given: BM25 of their words against the goal's and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from app.domain.content import content_text
from app.domain.types import Pin, Turn
from app.engine.recall.bm25 import SATURATION, rarities, summed, term_scores
from app.engine.recall.index import EMPTY, Packed, packed_text
from app.engine.recall.terms import distinct_query_terms, term_hash

MOST_TERMS: Final = 16_384
"""Of all pins together, each having the same part of them: what bounds the work to about 25 ms."""
_MOST_CHARS: Final = 8 * MOST_TERMS
_MOST_QUERY_TERMS: Final = 256


def relevances(pins: Sequence[Pin], query: str) -> tuple[float, ...]:
    """The relevance of each pin, 0 to 1: the given one, or else how much of the query its text has.

    Computed is BM25 over these pins, divided by what a text could score that has nothing but the query's words: 0 for a
    pin that has none of them, never quite 1. The same input gives the same figures.
    """
    if all(pin.relevance is not None for pin in pins):
        return tuple(pin.relevance or 0.0 for pin in pins)
    chars = _MOST_CHARS // len(pins)
    scored = _scored(tuple(f"{pin.name} {pin.content[:chars]}" for pin in pins), query)
    return tuple(score if pin.relevance is None else pin.relevance for pin, score in zip(pins, scored, strict=True))


def question_of(goal: str | None, turn: Turn) -> str:
    """What pins are held against: the goal and what the user says in the turn."""
    words = [content_text(message.content) for message in turn.messages if message.role == "user"]
    return "\n".join((goal or "", *words))


@lru_cache(maxsize=16)  # a turn is decided several times: before and after a summary, and once a tool round
def _scored(texts: tuple[str, ...], query: str) -> tuple[float, ...]:
    packed = b"".join(packed_text(text, most_terms=max(1, MOST_TERMS // len(texts))) for text in texts)
    index = EMPTY.extended(Packed(np.arange(len(texts)), np.zeros(len(texts), np.int64), packed), len(texts))
    terms = dict.fromkeys(map(term_hash, distinct_query_terms(query)[:_MOST_QUERY_TERMS]))
    seen_in, positions, counts = index.postings(terms, len(texts))
    rare = rarities(seen_in, len(texts), most_seen_share=1.0)
    most = (SATURATION + 1) * float(rare[seen_in > 0].sum())
    scored, _ = term_scores(index, seen_in, positions, counts, rare)
    scores = summed(positions, scored, len(texts))
    return tuple((scores / most).tolist()) if most else (0.0,) * len(texts)
