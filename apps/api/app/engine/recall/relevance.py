"""The relevance of pins to a turn if it is not given: the search that finds messages is applied to pins, for the words
of the goal and of the user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from app.domain.content import content_text
from app.domain.types import Pin, Turn
from app.engine.recall.bm25 import Hits, Query, rarities, search
from app.engine.recall.index import EMPTY, SATURATION, Index, Packed, packed_text
from app.engine.recall.vectors import Meaning

MOST_TERMS: Final = 16_384
"""Terms that are indexed of all pins together, in equal shares; this limits the work to about 25 ms."""
_MOST_CHARS: Final = 8 * MOST_TERMS


class Relevance(NamedTuple):
    """A pin's relevance, 0 to 1; and why it was found, as in `Hits.matched`, if the relevance is computed."""

    value: float
    matched: tuple[str, ...] = ()


def relevances(pins: Sequence[Pin], query: str, meaning: Meaning | None = None) -> tuple[Relevance, ...]:
    """The relevance of each pin: the given one, or else its score in a search over these pins for the query, divided by
    that of a text of only the query's words. It is 0 for a pin that has no word of the query, no related word, and is
    not near in `meaning` (which has the pins by position)."""
    if all(pin.relevance is not None for pin in pins):
        return tuple(Relevance(pin.relevance or 0.0) for pin in pins)
    chars = _MOST_CHARS // len(pins)
    index = _index_of(tuple(text_of(pin, chars) for pin in pins))
    hits = search(index, Query(query, len(pins), meaning=meaning), most_hits=len(pins), most_seen_share=1.0)
    most = _most_score(hits, len(pins)) or 1.0
    scores = dict(zip(hits.positions.tolist(), hits.scores.tolist(), strict=True))
    matched = hits.matched(scores)
    return tuple(
        Relevance(min(1.0, scores.get(at, 0.0) / most), matched.get(at, ()))
        if pin.relevance is None
        else Relevance(pin.relevance)
        for at, pin in enumerate(pins)
    )


def text_of(pin: Pin, most_chars: int) -> str:
    """The text of a pin that is compared with a turn."""
    return f"{pin.name} {pin.content[:most_chars]}"


def question_of(goal: str | None, turn: Turn) -> str:
    """The text that pins are compared with: the goal and the user's messages of the turn."""
    words = [content_text(message.content) for message in turn.messages if message.role == "user"]
    return "\n".join((goal or "", *words))


def _most_score(hits: Hits, texts: int) -> float:
    """The highest possible score: that of a text with each query word that any text has, itself or as a related one."""
    rare = rarities(hits.seen_in, texts, most_seen_share=1.0).tolist()
    had = {of for (_, of), seen in zip(hits.words, hits.seen_in.tolist(), strict=True) if seen}
    own = {of: worth for (word, of), worth in zip(hits.words, rare, strict=True) if word == of}
    return (SATURATION + 1) * sum(own[of] for of in sorted(had))


@lru_cache(maxsize=16)  # a turn is decided several times: before and after a summary, and once a tool round
def _index_of(texts: tuple[str, ...]) -> Index:
    packed = b"".join(packed_text(text, most_terms=max(1, MOST_TERMS // len(texts))) for text in texts)
    return EMPTY.extended(Packed(np.arange(len(texts)), np.zeros(len(texts), np.int64), packed), len(texts))
