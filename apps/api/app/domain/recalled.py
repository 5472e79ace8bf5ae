"""What recall brought into a prompt: as it is answered, a row a message, and as it is stored, packed.

A row of the answer takes a hundred bytes, and a prompt may have recalled hundreds of messages. Stored is what the
messages themselves do not have, four small numbers each: which message it is, what it cost, what it scored, and which
of the user's words it has; and these words once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.domain.types import REASONING_FORMS, JsonObject, MessageId, ReasoningForm

RECALLED: Final = "r"
"""The kind of the reference that has a prompt's recalled messages, packed."""
_SIMILAR: Final = "≈"
_RELATED: Final = "~"
"""Between a word that a message has and the user's word that it is related to; in no word itself."""
_BITS: Final = 7
_MORE: Final = 1 << _BITS


class Recalled(NamedTuple):
    """A message that came back: `score` is what it was chosen by, in hundredths, `tokens` its cost on the wire, and
    `form` that of the reasoning it was sent with. `matched` are the user's words that it has, sorted and each once,
    in the place of some a `related_word`, and where it is near in meaning a `similar_mark`; one that has none stands
    beside one that has some."""

    seq: int
    message_id: MessageId
    form: ReasoningForm | None
    score: int
    tokens: int
    matched: tuple[str, ...] = ()

    def public(self) -> JsonObject:
        """The shape of a row of `recalled` in `context_trim_log`."""
        return public_row(self.message_id, self.score, self.tokens, self.matched)


class PackedRow(NamedTuple):
    """The same as it is stored."""

    seq: int
    form: ReasoningForm | None
    score: int
    tokens: int
    matched: tuple[str, ...]


def related_word(word: str, of: str) -> str:
    """The word of a message that was found for a word of the user's, as `matched` has it."""
    return word if word == of else f"{word}{_RELATED}{of}"


def similar_mark(cosine: float) -> str:
    """How near a message is to the user's in meaning, in tenths, as one of what it `matched`: no word has its sign."""
    return f"{_SIMILAR}{cosine:.1f}"


def public_row(message_id: UUID, score: int, tokens: int, matched: Sequence[str]) -> JsonObject:
    """The row of a message that was recalled, with the reasons that there are."""
    row: JsonObject = {"message_id": str(message_id), "score": score / 100, "tokens": tokens}
    for name, reason in reasons_of(matched).items():
        if reason not in ([], None):
            row[name] = reason
    return row


def reasons_of(matched: Sequence[str]) -> JsonObject:
    """Why a message was found: the user's words that it has (`matched`), the words that it has instead of others
    (`related`), and how near it is in meaning (`similarity`), None where it is not."""
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
    """The reference of rows in the order of their messages: `["r", packed, word, ...]`.

    Packed is base64 of numbers of 7 bits a byte, the lowest first. A row is the distance from the message before and
    the form of its reasoning in the lowest 2 bits; the tokens; the score; and a bit a word that it matched.
    """
    sets = {row.matched for row in rows}
    places = {word: place for place, word in enumerate(sorted({word for words in sets for word in words}))}
    bits = {words: sum([1 << places[word] for word in words]) for words in sets}
    numbers: list[int] = []
    before = 0
    for row in rows:
        numbers += ((row.seq - before) << 2 | REASONING_FORMS.index(row.form), row.tokens, row.score, bits[row.matched])
        before = row.seq
    found = bytearray()
    for number in numbers:
        rest = number
        while rest >= _MORE:
            found.append(rest & (_MORE - 1) | _MORE)
            rest >>= _BITS
        found.append(rest)
    return [RECALLED, b64encode(found).decode(), *places]


def rows_of(ref: Sequence[Any]) -> Iterator[PackedRow]:
    """The rows of a reference that `recalled_ref` gave."""
    _, text, *words = ref
    seq = 0
    numbers = _numbers(b64decode(text))
    for distance, tokens, score, bits in zip(numbers, numbers, numbers, numbers, strict=True):
        seq += distance >> 2
        matched = tuple(word for place, word in enumerate(words) if bits >> place & 1)
        yield PackedRow(seq, REASONING_FORMS[distance & 3], score, tokens, matched)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & (_MORE - 1)) << shift
        shift += _BITS
        if byte < _MORE:
            yield number
            number = shift = 0


def recalled_rows(refs: Mapping[str, Any]) -> list[PackedRow]:
    """The messages that the references of a prompt have as recalled."""
    return [row for ref in refs["items"] if ref[0] == RECALLED for row in rows_of(ref)]
