"""The terms by which a message is found: words, folded and lightly stemmed.

It works for any script: terms are words, or pairs of characters in scripts that do not separate words (Chinese,
Japanese, Korean, Thai). Stemming removes English endings and keeps the first six letters, which joins most inflections
of most inflected languages. French and Italian elisions (`l'hôtel`) and Arabic prefixes are removed. English stop words
are left out of messages and queries, those of other languages (`function_words.txt`) only of queries.
"""

from __future__ import annotations

import pkgutil
import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from string import ascii_letters, ascii_lowercase, digits
from typing import Final
from zlib import crc32

MOST_TERMS_OF_A_MESSAGE: Final = 400
"""Most different terms of one message: a tool output of a megabyte is found only by its first ones."""
MOST_TERMS_OF_A_QUERY: Final = 48
_MOST_CHARS: Final = 64_000
MOST_ASKED_CHARS: Final = 8_000
LONGEST_TERM_CHARS: Final = 32
_FOLDED_AT_ONCE: Final = 256
"""Characters. One call sorts marks without a letter in quadratic time, and blocks all threads meanwhile: 64,000 of them
took 6 s."""
_STEM_CHARS: Final = 6
_LONGEST_WORD_CHARS: Final = 64
"""Longer ones, such as lines of a hex dump, are cut, so that what is kept by word has a bound."""

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_MARKS: Final = "\u0300-\u036f\u064b-\u065f\u0900-\u0dff"
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_IN_WORDS: Final = f"{ascii_lowercase}{digits}'"
_ONLY_WORDS: Final = bytes([ord(each if each in _IN_WORDS else " ") for each in map(str.lower, map(chr, range(256)))])
"""A table for `bytes.translate`: every ASCII character in lower case, or a blank if it is in no word."""
_ANY_WORD: Final = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}])(?:[^\W_]|[{_MARKS}]))+(?:['’][^\W\d_]+)?")
_HUMP: Final = re.compile("[A-Z](?<=[a-z][A-Z])")
_NAME: Final = re.compile("[A-Za-z]+")
_CASES: Final = bytes.maketrans(ascii_letters.encode(), b"a" * 26 + b"A" * 26)
_IS_UNSPACED: Final = re.compile(rf"[{_UNSPACED}]")
_PAIRS_OF_A_WORD: Final = 2
_PAIRS_OF_A_LONG_WORD: Final = 4
_IS_LONG: Final = re.compile("[\u0e00-\u17ff]")
"""Pairs of Thai, Lao, Burmese and Khmer, which write words with more characters than Chinese and Japanese."""
_PREFIX: Final = re.compile(
    r"(?:[cdjlmnst]|(?:jus|lors|puis)?qu|un|(?:d|n|qu)?ell|d?all|sull)['’](?=\w)"
    r"|(?:[وفبكل]?ال|لل|و(?=\w{4}))(?=\w{3})"
)
"""What is written before a word and together with it: an elision, an Arabic article, preposition or conjunction."""
_SEEMING_SHARE: Final = 1 / 3
"""Least share of a query's words that are function words of its language."""
_SHOWN_WORD: Final = re.compile(r"\w+(?:['’]\w+)?")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_POSSESSIVES: Final = ("'s", "’s")
_ENDINGS: Final = {
    "s": (("ies", "y"), ("sses", "ss"), ("es", "e"), ("s", "")),
    "g": (("ing", ""),),
    "d": (("ied", "y"), ("ed", "")),
    "y": (("ly", ""),),
}
"""By their last letter: each ending, and what replaces it."""
_STOP_TEXT: Final = """
    a about after all also am an and any are as at be because been before being but by can could did do does doing don't
    down each for from had has have having he her here hers him his how i i'd i'll i'm i've if in into is isn't it it's
    its just may me might more most must my no nor not of off on once only or other our ours out over own same shall she
    should so some such than that that's the their theirs them then there these they they're this those through to too
    under until up very was wasn't we we're we've were what what's when where which while who whom whose why will with
    would you you'd you'll you're you've your yours
"""
_STOP_WORDS: Final = frozenset((_STOP_TEXT + _STOP_TEXT.replace("'", "’")).split())
"""With either apostrophe: phones and models write the printer's."""


def terms_of(text: str) -> list[str]:
    """The terms of a text in order, with repetitions; only its first 64,000 characters are read."""
    return [*filter(None, map(_term, _words_of(text)))]


def _words_of(text: str) -> list[str]:
    """The folded words, and pairs of characters, that may have a term. The parts of names such as `userName` follow."""
    text = text[:_MOST_CHARS]
    if _has_humps(text):
        names = [name for name in _NAME.findall(text) if len(name) <= _LONGEST_WORD_CHARS and _HUMP.search(name)]
        text += " " + _HUMP.sub(r" \g<0>", " ".join(names))
    found: list[str] = []
    if text.isascii() or (text := _fold(text)).isascii():
        words = text.encode().translate(_ONLY_WORDS).decode()  # an expression takes several times as long
        found = words.split()
        if "'" in words:
            found = [word for piece in found for word in (_ASCII_WORD.findall(piece) if "'" in piece else (piece,))]
    else:
        for word in _ANY_WORD.findall(text):
            pairs = range(max(1, len(word) - 1)) if _IS_UNSPACED.match(word) else ()
            found += [word[at : at + 2] for at in pairs] if pairs else [word]
    if [word for word in found if len(word) > _LONGEST_WORD_CHARS]:  # takes a third of the time of `max`
        found = [word[:_LONGEST_WORD_CHARS] for word in found]
    return found


def _has_humps(text: str) -> bool:
    return b"aA" in text.encode("ascii", "replace").translate(_CASES)  # an expression takes several times as long


def text_hash(text: str) -> int:
    """A hash of 27 bits. Two of a session's thousands of texts or terms hardly ever collide; then a score is wrong."""
    return crc32(text.encode(errors="surrogatepass")) >> 5


term_hash: Final = lru_cache(maxsize=65_536)(text_hash)


def query_terms(text: str) -> tuple[str, ...]:
    """The different terms to look for; of a long text the likely most telling: those with digits, then the longest."""
    terms = tuple(query_words(text))
    if len(terms) <= MOST_TERMS_OF_A_QUERY:
        return terms
    telling = sorted(terms, key=lambda term: (not any(map(str.isdigit, term)), -len(term), term))
    kept = frozenset(telling[:MOST_TERMS_OF_A_QUERY])
    return tuple(term for term in terms if term in kept)


def query_words(text: str) -> Mapping[str, str]:
    """All different terms of a query, in order, each with the first word that it stands for."""
    return _query_words(text[:MOST_ASKED_CHARS])


@lru_cache(maxsize=16)  # one message is searched for several times in a turn
def _query_words(text: str) -> Mapping[str, str]:
    found = dict.fromkeys(_words_of(text))
    language = _language_of(found)
    others: Mapping[str, tuple[str, ...]] = _languages() if language else {}
    words: dict[str, str] = {}
    for word in found:
        if (term := _term(word)) and language not in others.get(word, ()):
            words.setdefault(term, word[:LONGEST_TERM_CHARS])
            if _without_prefix(word) != word:  # in messages stored before November 2026 it is part of the term
                words.setdefault(_whole_term(word), word[:LONGEST_TERM_CHARS])
    return words


def word_count(text: str) -> float:
    """About how many different words are looked for, at most `MOST_TERMS_OF_A_QUERY`."""
    words = set(query_words(text.lower() if _has_humps(text) else text).values())  # a name is one word
    pairs = [] if text.isascii() else [word for word in words if _IS_UNSPACED.match(word)]
    of_long = sum([_IS_LONG.match(pair) is not None for pair in pairs])
    count = len(words) - len(pairs) + (len(pairs) - of_long) / _PAIRS_OF_A_WORD + of_long / _PAIRS_OF_A_LONG_WORD
    return min(MOST_TERMS_OF_A_QUERY, count)


def _language_of(words: Collection[str]) -> str | None:
    """The language with the most function words among these different words; None if it is English or uncertain."""
    of_word = _languages()
    found: dict[str, int] = {}
    for language in chain.from_iterable(filter(None, map(of_word.get, words))):
        found[language] = found.get(language, 0) + 1  # a `Counter` takes longer to make than these few to count
    if not found:
        return None
    language, count = max(found.items(), key=itemgetter(1))
    least = max(2, _SEEMING_SHARE * len(words), 1 + sum([word in _STOP_WORDS for word in words]))
    return language if count >= least else None


@cache
def _languages() -> Mapping[str, tuple[str, ...]]:
    """Each function word, folded, with the languages that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for line in (pkgutil.get_data(__name__, "function_words.txt") or b"").decode().splitlines():
        language, *words = line.split()
        for word in dict.fromkeys(map(_fold, words)):
            found[word] = (*found.get(word, ()), language)
    return found


def excerpt(text: str, terms: Collection[str], most_chars: int) -> str:
    """At most `most_chars` of a text, from a little before the first word that has one of the terms; `…` marks cuts."""
    if len(text) <= most_chars:
        return text
    wanted = frozenset(terms)

    @cache  # most words of a long text are repeated
    def is_wanted(word: str) -> bool:
        return not wanted.isdisjoint(terms_of(word))

    found = next((word for word in _SHOWN_WORD.finditer(text[:_MOST_CHARS]) if is_wanted(word[0])), None)
    return cut_from(text, found.start() - most_chars // 4 if found else 0, most_chars)


def cut_from(text: str, place: int, most_chars: int) -> str:
    """At most `most_chars` characters of a text from a position, or an earlier one near its end; `…` marks cuts."""
    if len(text) <= most_chars:
        return text
    start = max(0, min(place, len(text) - most_chars + 1))
    room = most_chars - (start > 0) - (start + most_chars - 1 < len(text))
    return "…" * (start > 0) + text[start : start + room] + "…" * (start + room < len(text))


def _fold(text: str) -> str:
    folded = ""
    for at in range(0, len(text), _FOLDED_AT_ONCE):
        apart = unicodedata.normalize("NFKD", text[at : at + _FOLDED_AT_ONCE].casefold())
        folded += unicodedata.normalize("NFC", _ACCENTS.sub("", apart))
        if len(folded) >= _MOST_CHARS:  # one character may become 18
            break
    return folded


@lru_cache(maxsize=16_384)
def _term(word: str) -> str:
    """The word's stem; empty for a stop word."""
    if word in _STOP_WORDS:
        return ""
    return _whole_term(_without_prefix(word))


def _without_prefix(word: str) -> str:
    may_have_one = "'" in word or not word.isascii()  # the expression takes ten times as long
    prefix = _PREFIX.match(word) if may_have_one else None
    return word[prefix.end() :] if prefix else word


def _whole_term(word: str) -> str:
    bare = word[:-2] if word.endswith(_POSSESSIVES) else word
    if not bare.isalpha():
        return bare[:LONGEST_TERM_CHARS]
    return _stem(bare)[:_STEM_CHARS]


def _stem(word: str) -> str:
    """Remove plural and tense endings and undo the doubled or dropped letters: Porter's first step, much shortened."""
    if len(word) == 4 and word[-1] == "s" and word[-2] != "s":
        return word[:-1]
    if len(word) <= 4:
        return word
    for ending, rest in _ENDINGS.get(word[-1], ()):
        if word.endswith(ending) and not word.endswith("ss") and len(word) - len(ending) + len(rest) >= 3:
            word = word[: -len(ending)] + rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] == "e" else word
