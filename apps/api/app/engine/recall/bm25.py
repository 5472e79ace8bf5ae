"""BM25 over an index: what a term tells apart, and what a message scores for having it."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.engine.recall.index import Floats, Index, Ints

MOST_SEEN_SHARE: Final = 0.8
LEAST_MESSAGES: Final = 8
SATURATION: Final = 1.2

_LENGTH_SHARE: Final = 0.4
_USUAL_TERMS: Final = 16
"""BM25 with a fixed usual length: what a message scores must not change when longer ones come (Robertson, Zaragoza)."""


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
    norm = SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE / _USUAL_TERMS * index.lengths[positions])
    of_posting = np.repeat(rare, seen_in)
    return of_posting * counts * (SATURATION + 1) / (counts + norm), of_posting
