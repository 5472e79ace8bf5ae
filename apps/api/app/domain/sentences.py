"""Properties of a single sentence: its words, what kind of statement it is, and how much information it has.

The cues of decisions, questions and promises (`cues.py`) are English; the rest works for any script.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

from app.domain import cues
from app.domain.statements import SENTENCE_END
from app.domain.types import SummaryList

QUESTION_MARKS: Final = ("?", "？", "؟")
_WORD: Final = re.compile(r"\w+(?:[-'’./:@]\w+)*")
_PLAIN_WORD: Final = re.compile(r"[a-z0-9_]+(?:[-'./:@][a-z0-9_]+)*")
_NUMBER: Final = re.compile(r"\d[\d.,:/-]*")
_IDENTIFIER: Final = re.compile(
    r"`[^`]+`|\b\w+_\w+|\b[a-z]+[A-Z]\w*|\b\w+\(\)|\b\w+@\w+\.\w+|https?://|(?:/[\w.-]+){2,}|\b[A-Z]{2,}-?\d*\b"
)
"""An alternative that begins with a word begins at its first letter: trying every letter would take quadratic time."""
_NAME: Final = re.compile(r" (?<=[\w,;:] )[^\W\d_a-z]\w+")
_CAPITAL_INSIDE: Final = re.compile(r"[A-Z](?<=[A-Za-z][A-Z])")


class Sentence(NamedTuple):
    """A sentence or another statement, with the properties that do not depend on its position.

    `words` are the different words in the order of the text: a set's order differs between processes, and so would sums
    and ties in that order. `kind` is the kind if a person wrote it and it has no answer yet. `leans` is whether it
    depends on the sentence before it. `standing` is `DEMAND`, 1 if it gives an exact value, else 0. `cues` are those
    that its words allow (`FINISHES`, `LIFTS`, `WANTS`). `value` is its information, `weight` a factor on it.
    """

    text: str
    words: tuple[str, ...]
    kind: SummaryList
    signals: float
    leans: bool
    standing: int
    cues: int
    value: float
    weight: float


_STANDING_VALUE: Final = 1.5
_LEANING_WEIGHT, _SHORT_WEIGHT = 0.7, 0.5

ReadSentence: TypeAlias = Callable[[str], Sentence]

DEMAND: Final = 2
"""The `standing` of a sentence that says what has to hold from now on."""
_PHRASES: Final = cues.ANYTHING + 1
"""Set for the last words of parts of several words, which are only looked for in a text with one of these."""
_LASTS: Final = cues.RULES | cues.NUMBERS | cues.ACTS | cues.FINISHES | cues.LIFTS
"""Cues of a demand, an exact value or a task, and of what closes one."""

_PARTS: Final = tuple((cue, part) for cue, parts in cues.PARTS.items() for part in parts)
_OF_A_WORD: Final = tuple((cue, part) for cue, part in _PARTS if " " not in part)
_OF_WORDS: Final = tuple((cue, part) for cue, part in _PARTS if " " in part)
_LAST_WORDS: Final = frozenset(part.split()[-1] for _, part in _OF_WORDS)
_ANY_PART: Final = re.compile("|".join(sorted(map(re.escape, {*_LAST_WORDS, *(part for _, part in _OF_A_WORD)}))))
_SEVERAL: Final = " "
_MOST_WORDS: Final = 8192
"""Words whose cues are cached: conversations repeat a small set of words."""
_LONGEST_KEPT_CHARS: Final = 1_024
"""Longest sentence whose words are cached: more than a statement has, but not an item or a line of a summary."""


@lru_cache(_MOST_WORDS)
def _cues_of(word: str) -> int:
    """The cues that an ASCII text with this word may have."""
    found = cues.RULES * (word in cues.RULE_WORDS)
    if _ANY_PART.search(word):  # most words have none
        found |= _PHRASES * any([part in word for part in _LAST_WORDS])  # noqa: C419 - a list is faster here
        for cue, part in _OF_A_WORD:
            if part in word:
                found |= cue
    return found


@lru_cache(_MOST_WORDS)
def _plain_word_of(text: str) -> str:
    """The word in a piece, without spaces, of a lower-case ASCII text: empty if there is none, or `_SEVERAL`."""
    words = _PLAIN_WORD.findall(text)
    return _SEVERAL if len(words) > 1 else "".join(words)


def _words_of(lower: str) -> tuple[str, ...]:
    """The different words of a lower-case ASCII text."""
    words = dict.fromkeys(map(_plain_word_of, lower.split()))
    if _SEVERAL in words:
        return tuple(dict.fromkeys(_PLAIN_WORD.findall(lower)))
    if "" in words:
        del words[""]
    return tuple(words)


def read_sentence(text: str) -> Sentence:
    """The properties of a sentence. Callers that read the same sentence repeatedly may cache the result."""
    return _read(text, *_worded(text))


def read_lasting(text: str) -> Sentence | None:
    """The same; None if the words show that it states nothing that lasts and closes nothing, as those of most do."""
    typed, lower, words, possible = _worded(text)
    return _read(text, typed, lower, words, possible) if possible & _LASTS or _may_identify(text) else None


def _may_identify(text: str) -> bool:
    return "/" in text or "_" in text or "`" in text or "@" in text or "()" in text


def _worded(text: str) -> tuple[str, str, tuple[str, ...], int]:
    """The text with plain apostrophes, in lower case, its different words, and the cues that these allow."""
    if not text.isascii() or len(text) > _LONGEST_KEPT_CHARS:
        typed = text.replace("’", "'")
        words = tuple(dict.fromkeys([word.lower() for word in _WORD.findall(typed)]))
        return typed, typed.lower(), words, cues.ANYTHING
    lower, possible = text.lower(), 0
    words = _words_of(lower)
    for of_word in filter(None, map(_cues_of, words)):
        possible |= of_word
    if possible & _PHRASES:
        for cue, part in _OF_WORDS:
            if part in lower:
                possible |= cue
    return text, lower, words, possible


def _read(text: str, typed: str, lower: str, words: tuple[str, ...], possible: int) -> Sentence:
    standing = DEMAND if possible & cues.RULES and _is_rule(lower) else 0
    may_identify = _may_identify(text)
    if not standing and (may_identify or possible & cues.NUMBERS):
        standing = 1 if cues.VALUE_OF.search(typed) else 0
    leans = text.endswith("!") or cues.LEANS.match(lower) is not None
    # Most plain sentences have no capital except their first letter.
    has_capital = not typed.isascii() or text[1:] != lower[1:]
    signals = _signals(typed, possible, may_identify=may_identify, has_capital=has_capital)
    if possible & cues.CONSTRAINS and cues.CONSTRAINT.search(lower):
        signals += 1.0
    weight = _LEANING_WEIGHT if leans else 1.0
    if len(words) < (4 if signals else 7) and text.isascii():
        weight *= _SHORT_WEIGHT  # thanks, greetings, agreement
    value = signals + _STANDING_VALUE * standing
    return Sentence(text, words, _kind(typed, lower, possible), signals, leans, standing, possible, value, weight)


def asks(text: str) -> bool:
    """Whether the text ends with a question mark, perhaps within quotation marks or brackets."""
    return text.rstrip("\"'”’) ").endswith(QUESTION_MARKS)


def demands(text: str) -> bool:
    """Whether the text states a constraint (always, never, only …), as far as the English cues show, or has a sentence
    that says what has to hold from now on."""
    lower, is_ascii = cues.plain(text), text.isascii()
    may_constrain = not is_ascii or any([part in lower for part in cues.PARTS[cues.CONSTRAINS]])  # noqa: C419 - faster than a generator
    if may_constrain and cues.CONSTRAINT.search(lower):
        return True
    if is_ascii and cues.RULE_WORDS.isdisjoint(_words_of(lower)):
        return False
    return any(map(_is_rule, chain.from_iterable(map(SENTENCE_END.split, lower.splitlines()))))


def _is_rule(lower: str) -> bool:
    return bool(cues.RULE.search(lower) or cues.RULE_ELSEWHERE.match(lower))


def may_finish(text: str) -> bool:
    """Whether a sentence of the text may have the cue `FINISHES`."""
    lower = text.lower()
    return not text.isascii() or any([part in lower for part in cues.PARTS[cues.FINISHES]])  # noqa: C419 - as above


def proposes_only(text: str) -> bool:
    """Whether a text that reads like a decision is only a proposal if an assistant wrote it."""
    return cues.DECIDED.search(cues.plain(text)) is None


def _kind(text: str, lower: str, possible: int) -> SummaryList:
    if asks(text) and not cues.NO_QUESTION.search(text, max(0, len(text) - cues.LONGEST_TAG_CHARS)):
        return "open_questions"
    if possible & cues.DECIDES and cues.DECIDED.search(lower):
        return "decisions"
    if possible & cues.PROPOSES and cues.PROPOSED.search(lower):
        return "decisions"
    return "action_items" if possible & cues.ACTS and cues.ACTION.search(lower) else "key_facts"


def _signals(text: str, possible: int, *, may_identify: bool, has_capital: bool) -> float:
    value = 0.0
    if possible & cues.NUMBERS:
        value += 0.75 * min(3, len(_NUMBER.findall(text)))
    if may_identify or not text.isascii() or (has_capital and _CAPITAL_INSIDE.search(text)):
        value += 1.5 * len(list(islice(_IDENTIFIER.finditer(text), 2))) / 2
    if has_capital:
        value += 0.5 * min(2, len(_NAME.findall(text)))
    return value
