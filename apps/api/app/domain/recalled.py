"""The messages that were recalled into a prompt: as rows for answers, and packed for storage.

A prompt may have hundreds of recalled messages. Stored are only four small numbers for each (which message it is, its
tokens, its score, and which of the user's words it has), and these words once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from app.domain.frozen import frozen
from app.domain.types import REASONING_FORMS, JsonObject, MessageId, ReasoningForm

RECALLED: Final = "r"
"""The kind of the prompt reference that has the packed recalled messages."""
_SIMILAR: Final = "≈"
_RELATED: Final = "~"
"""Separates a word that a message has from the user's word that it is related to; no word contains it."""
_BITS: Final = 7
_MORE: Final = 1 << _BITS


@frozen
class Recalled:
    """A recalled message; in a stored row `message_id` is None. `score` is what it was chosen by, in hundredths;
    `tokens` are on the wire; `form` is that of its reasoning. `matched` has the user's words that it has, sorted and
    once each, with a `related_word` in place of some, and a `similar_mark` if it is near in meaning; nothing for a
    message that is only next to one that matched."""

    seq: int
    message_id: MessageId | None
    form: ReasoningForm | None
    score: int
    tokens: int
    matched: tuple[str, ...] = ()

    def public(self) -> JsonObject:
        """The row of `recalled` in `context_trim_log`, without reasons that are empty."""
        row: JsonObject = {"message_id": str(self.message_id), "score": self.score / 100, "tokens": self.tokens}
        reasons = "".join(self.matched)
        if _RELATED in reasons or _SIMILAR in reasons:
            row |= {name: reason for name, reason in reasons_of(self.matched).items() if reason not in ([], None)}
        elif reasons:
            row["matched"] = [*self.matched]
        return row


def related_word(word: str, of: str) -> str:
    """The entry of `matched` for a word of a message that was found for the user's word `of`."""
    return word if word == of else f"{word}{_RELATED}{of}"


def similar_mark(cosine: float) -> str:
    """The entry of `matched` that says how near a message is in meaning, in tenths; no word contains its sign."""
    return f"{_SIMILAR}{cosine:.1f}"


def reasons_of(matched: Sequence[str]) -> JsonObject:
    """Why a message was found: the user's words that it has (`matched`), the words that it has instead of others
    (`related`), and how near it is in meaning (`similarity`), None if it is not near."""
    words: list[str] = []
    related: list[JsonObject] = []
    similarity: float | None = None
    for reason in matched:
        if reason[:1] == _SIMILAR:
            similarity = float(reason[1:])
        elif _RELATED in reason:
            word, of = reason.split(_RELATED)
            related.append({"word": word, "of": of})
        else:
            words.append(reason)
    return {"matched": words, "related": related, "similarity": similarity}


def recalled_ref(rows: Sequence[Recalled]) -> list[Any]:
    """The prompt reference of rows that are in the order of their messages: `["r", packed, word, ...]`.

    `packed` is base64 of numbers with 7 bits per byte, the lowest first. A row is four numbers: the distance from the
    previous `seq`, with the reasoning's form in the lowest 2 bits; the tokens; the score; and a bit per matched word.
    """
    sets = {row.matched for row in rows}
    bit_of = {word: 1 << place for place, word in enumerate(sorted(set(chain.from_iterable(sets))))}
    bits = {words: sum(map(bit_of.__getitem__, words)) for words in sets}
    numbers: list[int] = []
    before = 0
    for row in rows:
        numbers += ((row.seq - before) << 2 | REASONING_FORMS.index(row.form), row.tokens, row.score, bits[row.matched])
        before = row.seq
    return [RECALLED, b64encode(b"".join(map(_packed, numbers))).decode(), *bit_of]


@lru_cache(maxsize=1024)
def _packed(number: int) -> bytes:
    found = bytearray()
    while number >= _MORE:
        found.append(number & (_MORE - 1) | _MORE)
        number >>= _BITS
    found.append(number)
    return bytes(found)


def rows_of(ref: Sequence[Any]) -> Iterator[Recalled]:
    """The rows of a reference that `recalled_ref` made."""
    _, text, *words = ref
    seq = 0
    numbers = _numbers(b64decode(text))
    for distance, tokens, score, bits in zip(numbers, numbers, numbers, numbers, strict=True):
        seq += distance >> 2
        matched = tuple(word for place, word in enumerate(words) if bits >> place & 1)
        yield Recalled(seq, None, REASONING_FORMS[distance & 3], score, tokens, matched)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & (_MORE - 1)) << shift
        shift += _BITS
        if byte < _MORE:
            yield number
            number = shift = 0


def recalled_rows(refs: Mapping[str, Any]) -> list[Recalled]:
    return [row for ref in refs["items"] if ref[0] == RECALLED for row in rows_of(ref)]
