"""Properties of a single sentence: its words, what kind of statement it is, and how much information it has.

The cues of decisions, demands, questions and promises are English; the rest works for any script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from string import digits
from typing import Final, NamedTuple, TypeAlias

from app.domain.types import SummaryList

_WORD: Final = re.compile(r"\w+(?:[-'’./:@]\w+)*")
_PLAIN_WORD: Final = re.compile(r"[a-z0-9_]+(?:[-'./:@][a-z0-9_]+)*")
"""A word of ASCII text in lower case."""
_NUMBER: Final = re.compile(r"\d[\d.,:/-]*")
_IDENTIFIER: Final = re.compile(
    r"`[^`]+`|\b\w+_\w+|\b[a-z]+[A-Z]\w*|\b\w+\(\)|\b\w+@\w+\.\w+|https?://|(?:/[\w.-]+){2,}|\b[A-Z]{2,}-?\d*\b"
)
"""An alternative that begins with a word begins at its first letter: trying every letter would take quadratic time."""
_NAME: Final = re.compile(r" (?<=[\w,;:] )[^\W\d_a-z]\w+")
# The expressions of cues are for lower-case text: one that ignores case takes up to three times as long.
_DECIDED: Final = re.compile(
    r"\b(?:(?:we|i|they)(?:'ve| have)? (?:decided|agreed|chose|settled)|decision|decided (?:to|on|that)"
    r"|agreed|settled? on|^settled|^new (?:\w+ ){0,2}(?:date|day|time|plan|price|deadline)"
    r"|instead of|(?:moved|changed|switched) (?:it )?to)\b"
)
_PROPOSED: Final = re.compile(
    r"\blet'?s (?:use|go|keep|stick|make|do|take|switch)\b|\bgo(?:ing)? with\b|\bwe(?:'ll| will) use\b"
)
"""A decision if a person writes it, a proposal if an assistant does."""
_CONSTRAINT: Final = re.compile(
    r"\b(?:always|never|must(?:n't)?|required?|only|at most|at least|no more than|don't|do not|cannot|can't|prefers?"
    r"|budget|deadline|allergic|important|remember|note that)\b"
)
_COMMANDS: Final = (
    r"do not |only |make sure |never (?!been|had|seen|heard|tried|done|thought|knew)"
    r"|don't (?!know|think|mind|worry|have|forget)|niemals |immer |jamais |toujours "
)
_RULE: Final = re.compile(
    rf"(?:^|[.,;:–-] |\b(?:please|now on|must|may|should|shall|will) )(?:always |{_COMMANDS})\w"
    rf"|\b(?:(?:and|but|so|can) (?:{_COMMANDS})\w|must(?: not|n't)? (?!have|be (?!\w+(?:ed|en)\b)))"
)
_RULE_WORDS: Final = frozenset(
    ["always", "never", "must", "mustn't", "don't", "only", "sure", "niemals", "immer", "jamais", "toujours"]
)
"""`_RULE` finds clauses that say what has to hold from now on: commands, not reports of the past. Each has one of these
words, or "do not", which is one of the phrases below."""
_VALUE_OF: Final = re.compile(
    r"(?:\b(?:is|are|called|named|at|on|use|run|file|path|command|host|url)|[:=])\s+[\"'(]?(?:`[^`\n]+`|https?://\w"
    r"|/\w[\w.-]*/\w|[\w.+-]+@[\w-]+\.\w|\w[\w-]*(?:\.[\w-]+)*\.[a-z]{2,}\b|[A-Z]{2}[A-Z0-9]*-?\d)"
    r"|\b(?:number|[iI][dD]|code|port|key)\s+(?:is\s+)?#?[\w-]*\d{3}",
)
"""The value of something: a command, a path, an address, a reference number."""
_ACTION: Final = re.compile(
    r"\bi(?:'ll| will)\b|\bto-?do\b|\bnext(?: step|,|:)|\baction item|\bneeds? to\b|\bremind (?:me|us) (?:to|about)\b"
    r"|\bfollow up\b|\bwe(?:'ll| will| should)\b"
)
_MAY_DECIDE: Final = (
    "decid", "decis", "agreed", "chose", "settle", "instead", "moved", "changed", "switched", "new",
)  # fmt: skip
_MAY_PROPOSE: Final = ("let's", "lets", "go with", "going with", "'ll use", "will use")
_MAY_DEMAND: Final = (
    "always", "never", "must", "requir", "only", "at most", "at least", "no more", "don't", "do not", "cannot", "can't",
    "prefer", "budget", "deadline", "allergic", "important", "remember", "note that",
)  # fmt: skip
_MAY_ACT: Final = ("'ll", "will", "should", "todo", "to-do", "next", "action", "need", "remind", "follow")
_MAY_FINISH: Final = (
    "done", "finish", "complet", "ready", "sent", "fixed", "merged", "closed", "shipped", "ordered", "paid", "signed",
    "booked", "delivered", "solved", "cancel", "longer",
)  # fmt: skip
_MAY_LIFT: Final = ("longer", "more", "now", "instead", "lifted", "mind", "again", "after")
_MAY_WANT: Final = (
    "want", "need", "like", "love", "look", "try", "plan", "hope", "build", "mov", "work", "open", "have", "help",
    "goal", "aim", "task",
)  # fmt: skip
"""Every ASCII text that the regular expression of a cue matches contains, in lower case, one of the cue's parts above.
Looking for these is much faster than the expression, and a cached lookup by word is faster still. Parts of several
words are only looked for if the text has the last word of one."""
_CAPITAL_INSIDE: Final = re.compile(r"[A-Z](?<=[A-Za-z][A-Z])")
_LEANS: Final = re.compile(
    r"(?:[a-z]\w+: )?(?:and|but|so|then|also|because|he|she|it|they|that|this|these|those|which|there|yes|yep|yeah|no"
    r"|nope|oh|ok(?:ay)?|well|great|sure|thanks|hey|haha|wow|cool|nice|agreed|totally|glad|noted|good|excellent|perfect|understood|aw+)\b(?!-)"
)
"""A sentence that begins like this depends on the one before it, and states little alone."""
_NO_QUESTION: Final = re.compile(
    r"\b(?:right|huh|eh|ok(?:ay)?|you know(?: what)?|might ask|(?:is|does|do)n't (?:it|they))\?$"
)
"""Question tags that do not expect an answer."""
_LONGEST_TAG_CHARS: Final = 16


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
FINISHES: Final = 64
"""A cue: a question or a task may be finished."""
LIFTS: Final = 128
"""A cue: a demand may no longer hold."""
WANTS: Final = 256
"""A cue: the sentence may say what a person wants."""
_DECIDES, _PROPOSES, _ACTS, _DEMANDS, _NUMBERS, _RULES, _ANYTHING, _PHRASES = 1, 2, 4, 8, 16, 32, 511, 512
_LASTS: Final = _RULES | _NUMBERS | _ACTS | FINISHES | LIFTS
"""Cues of a demand, an exact value or a task, and of what closes one."""

_PARTS: Final[tuple[tuple[int, Sequence[str]], ...]] = (
    (_DECIDES, _MAY_DECIDE),
    (_PROPOSES, _MAY_PROPOSE),
    (_ACTS, _MAY_ACT),
    (_DEMANDS, _MAY_DEMAND),
    (_NUMBERS, digits),
    (_RULES, ("do not",)),
    (FINISHES, _MAY_FINISH),
    (LIFTS, _MAY_LIFT),
    (WANTS, _MAY_WANT),
)
_OF_A_WORD: Final = tuple((cue, part) for cue, parts in _PARTS for part in parts if " " not in part)
_OF_WORDS: Final = tuple((cue, part) for cue, parts in _PARTS for part in parts if " " in part)
_LAST_WORDS: Final = frozenset(part.split()[-1] for _, part in _OF_WORDS)
_ANY_PART: Final = re.compile("|".join(sorted(map(re.escape, {*_LAST_WORDS, *(part for _, part in _OF_A_WORD)}))))


class _Possible(dict[str, int]):
    """The cues that an ASCII text with a word may have, cached by word: conversations repeat a small set of words."""

    def __missing__(self, word: str) -> int:
        cues = _RULES * (word in _RULE_WORDS)
        if _ANY_PART.search(word):  # most words have none
            cues |= _PHRASES * any([part in word for part in _LAST_WORDS])  # noqa: C419 - a list is faster here
            for cue, part in _OF_A_WORD:
                if part in word:
                    cues |= cue
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = cues
        return cues


class _PlainWord(dict[str, str]):
    """The word of a piece without spaces of a lower-case ASCII text, cached by piece: empty if the piece has no word,
    `_SEVERAL` if it has more than one."""

    def __missing__(self, text: str) -> str:
        words = _PLAIN_WORD.findall(text)
        word = _SEVERAL if len(words) > 1 else "".join(words)
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[text] = word
        return word


_SEVERAL: Final = " "
_MOST_WORDS: Final = 8192
_LONGEST_KEPT_CHARS: Final = 1_024
"""Longest sentence whose words are cached: more than a statement has, but not an item or a line of a summary."""
_possible: Final = _Possible()
_plain_word: Final = _PlainWord()


def _words_of(lower: str) -> tuple[str, ...]:
    """The different words of a lower-case ASCII text."""
    words = dict.fromkeys(map(_plain_word.__getitem__, lower.split()))
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
        return typed, typed.lower(), words, _ANYTHING
    lower, possible = text.lower(), 0
    words = _words_of(lower)
    for cues in filter(None, map(_possible.__getitem__, words)):
        possible |= cues
    if possible & _PHRASES:
        for cue, part in _OF_WORDS:
            if part in lower:
                possible |= cue
    return text, lower, words, possible


def _read(text: str, typed: str, lower: str, words: tuple[str, ...], possible: int) -> Sentence:
    standing = DEMAND if possible & _RULES and _RULE.search(lower) else 0
    may_identify = _may_identify(text)
    if not standing and (may_identify or possible & _NUMBERS):
        standing = 1 if _VALUE_OF.search(typed) else 0
    leans = text.endswith("!") or _LEANS.match(lower) is not None
    # Most plain sentences have no capital except their first letter.
    has_capital = not typed.isascii() or text[1:] != lower[1:]
    signals = _signals(typed, possible, may_identify=may_identify, has_capital=has_capital)
    if possible & _DEMANDS and _CONSTRAINT.search(lower):
        signals += 1.0
    weight = _LEANING_WEIGHT if leans else 1.0
    if len(words) < (4 if signals else 7) and text.isascii():
        weight *= _SHORT_WEIGHT  # thanks, greetings, agreement
    value = signals + _STANDING_VALUE * standing
    return Sentence(text, words, _kind(typed, lower, possible), signals, leans, standing, possible, value, weight)


def demands(text: str) -> bool:
    """Whether the text states a constraint (always, never, only …), as far as the English cues show."""
    lower = text.lower()
    if text.isascii() and not any([part in lower for part in _MAY_DEMAND]):  # noqa: C419 - faster than a generator
        return False
    return _CONSTRAINT.search(lower) is not None


def may_finish(text: str) -> bool:
    """Whether a sentence of the text may have the cue `FINISHES`."""
    lower = text.lower()
    return not text.isascii() or any([part in lower for part in _MAY_FINISH])  # noqa: C419 - as above


def proposes_only(text: str) -> bool:
    """Whether a text that reads like a decision is only a proposal if an assistant wrote it."""
    return _DECIDED.search(text.lower()) is None


def _kind(text: str, lower: str, possible: int) -> SummaryList:
    may_ask = ("?" in text or "？" in text) and text.rstrip("\"'”’) ").endswith(("?", "？"))
    if may_ask and not _NO_QUESTION.search(text, max(0, len(text) - _LONGEST_TAG_CHARS)):
        return "open_questions"
    if (possible & _DECIDES and _DECIDED.search(lower)) or (possible & _PROPOSES and _PROPOSED.search(lower)):
        return "decisions"
    return "action_items" if possible & _ACTS and _ACTION.search(lower) else "key_facts"


def _signals(text: str, possible: int, *, may_identify: bool, has_capital: bool) -> float:
    value = 0.0
    if possible & _NUMBERS:
        value += 0.75 * min(3, len(_NUMBER.findall(text)))
    if may_identify or not text.isascii() or (has_capital and _CAPITAL_INSIDE.search(text)):
        value += 1.5 * len(list(islice(_IDENTIFIER.finditer(text), 2))) / 2
    if has_capital:
        value += 0.5 * min(2, len(_NAME.findall(text)))
    return value
