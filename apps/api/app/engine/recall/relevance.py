"""How relevant pins are to a turn where nobody said: BM25 of their words against the goal's and the user's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, Final, cast

from lunr.builder import Builder
from lunr.idf import idf as _untyped_idf  # pyright: ignore[reportUnknownVariableType] - lunr has no types

from app.domain.content import content_text
from app.domain.types import Pin, Turn

MOST_TERMS: Final = 16_384
"""Of all pins together, each having the same part of them: what bounds the work to about 25 ms."""
_MOST_CHARS: Final = 8 * MOST_TERMS
_MOST_QUERY_CHARS: Final = 8_000
_MOST_QUERY_TERMS: Final = 256
_SATURATION: Final = 1.2
_TERM: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A word, or one character of a script that writes no spaces."""
_OTHER_TERM: Final = "_"
_FIELD: Final = "content"
_rarity: Final = cast("Callable[[Any, int], float]", _untyped_idf)


def relevances(pins: Sequence[Pin], query: str) -> tuple[float, ...]:
    """The relevance of each pin, 0 to 1: the given one, or else how much of the query its text has.

    Computed is BM25 (by lunr, over these pins) divided by what a text could score that has nothing but the query's
    words: 0 for a pin that has none of them, never quite 1. The same input gives the same figures.
    """
    if all(pin.relevance is not None for pin in pins):
        return tuple(pin.relevance or 0.0 for pin in pins)
    chars = _MOST_CHARS // len(pins)
    scored = _scored(tuple(f"{pin.name} {pin.content[:chars]}" for pin in pins), query[:_MOST_QUERY_CHARS])
    return tuple(score if pin.relevance is None else pin.relevance for pin, score in zip(pins, scored, strict=True))


def question_of(goal: str | None, turn: Turn) -> str:
    """What pins are held against: the goal and what the user says in the turn."""
    words = [content_text(message.content) for message in turn.messages if message.role == "user"]
    return "\n".join((goal or "", *words))


@lru_cache(maxsize=16)  # a turn is decided several times: before and after a summary, and once a tool round
def _scored(texts: tuple[str, ...], query: str) -> tuple[float, ...]:
    asked = list(dict.fromkeys(_terms(query)))[:_MOST_QUERY_TERMS]
    builder = _index(texts, frozenset(asked))
    known = [term for term in asked if term in builder.inverted_index]
    if not known:
        return (0.0,) * len(texts)
    index = builder.build()
    asking = index.create_query()
    for term in known:
        asking.term(term)
    scores = {match["ref"]: match["score"] for match in index.query(asking)}
    most = (
        (_SATURATION + 1) * sum(_rarity(builder.inverted_index[term], len(texts)) for term in known) / sqrt(len(known))
    )
    return tuple(min(1.0, max(0.0, scores.get(str(at), 0.0) / most)) for at in range(len(texts)))


def _index(texts: Sequence[str], asked: frozenset[str]) -> Any:
    """An index in which all terms that nobody asks for are one: the scores are the same, for a sixth of the work."""
    builder = cast(Any, Builder())
    builder.k1(_SATURATION)
    builder.field(_FIELD)
    most_terms = max(1, MOST_TERMS // len(texts))
    for at, text in enumerate(texts):
        terms = [term if term in asked else _OTHER_TERM for term in _terms(text)[:most_terms]]
        builder.add({"id": str(at), _FIELD: terms})
    return builder


def _terms(text: str) -> list[str]:
    return _TERM.findall(text.casefold())
