"""An index of a session's messages by their terms. Each message is packed when it is stored, and searched in arrays.

A message's packed terms are little-endian words of 32 bits: a header, a hash of its text, and one word for each
distinct term. A term's word has 27 bits of its hash above 5 bits of its count, which is never 0; the low 5 bits of a
header are always 0. So the concatenated packed terms of many messages can be split by one array expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from struct import pack
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from app.domain.content import content_text, named
from app.domain.frozen import frozen
from app.domain.types import Content, Message, Role
from app.engine.recall.dates import day_said
from app.engine.recall.terms import MOST_TERMS_OF_A_MESSAGE, term_hash, terms_of, text_hash

U64: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.void]

USER, ASSISTANT, CALL, RESULT = range(4)
_HEADER_WORDS: Final = 2
_MOST_COUNT: Final = 31
_MOST_LENGTH: Final = 0xFFFF
_MOST_TOKENS: Final = 2**31 - 1
_COUNT_MASK: Final = np.uint64(31)
_POSITION_MASK: Final = np.uint64(0xFFFFFFFF)
_POSITION_SHIFT: Final = np.uint64(5)
_TERM_SHIFT: Final = np.uint64(37)
NO_DAY: Final = -(2**31)
QUESTION_MARKS: Final = ("?", "？", "؟")


def packed_terms(role: Role, content: Content, *, has_calls: bool = False, name: str | None = None) -> bytes:
    """A message's terms as they are stored with it, those of its speaker's name first; at most the first
    `MOST_TERMS_OF_A_MESSAGE`."""
    kind = RESULT if role == "tool" else USER if role == "user" else CALL if has_calls else ASSISTANT
    return packed_text(named(name, content_text(content)), kind)


def packed_text(text: str, kind: int = USER, most_terms: int = MOST_TERMS_OF_A_MESSAGE) -> bytes:
    """The packed terms of a text."""
    counted = Counter(map(term_hash, terms_of(text)))
    questions = text.rstrip("\"'”’) ").endswith(QUESTION_MARKS)
    header = min(counted.total(), _MOST_LENGTH) << 10 | kind << 6 | questions << 5
    some = list(counted.items())[:most_terms]
    words = (header, text_hash(text) << 5 | 1, *[term << 5 | min(count, _MOST_COUNT) for term, count in some])
    return pack(f"<{len(words)}I", *words)


@frozen
class Packed:
    """Messages to add to an index: their `seq` (ascending), token counts, and concatenated packed terms; and the days
    on which they were sent, counted from 1970-01-01 in UTC, None if no search needs them."""

    seqs: Ints
    tokens: Ints
    terms: bytes
    days: Ints | None = None

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Packed:
        """Pack messages that are in memory, in time order."""
        return cls(
            np.array([message.seq for message in messages], np.int64),
            np.array([message.tokens for message in messages], np.int64),
            b"".join(packed_terms(m.role, m.content, has_calls=bool(m.tool_calls), name=m.name) for m in messages),
            np.array([NO_DAY if (day := day_said(message)) is None else day for message in messages], np.int64),
        )


class Postings(NamedTuple):
    """Which messages have which of some terms: the index of the term, the message's position, and how often it has the
    term. Those of one message are in the order of the terms. `seen_in` is how many messages have each term."""

    seen_in: Ints
    of_term: Ints
    positions: Ints
    counts: Floats

    def with_terms(self, positions: Sequence[Ints]) -> Postings:
        """With more terms; for each, the positions of the messages that have it once."""
        seen_in = np.array([len(each) for each in positions])
        of_term = np.arange(len(self.seen_in), len(self.seen_in) + len(positions)).repeat(seen_in)
        return Postings(
            np.concatenate((self.seen_in, seen_in)),
            np.concatenate((self.of_term, of_term)),
            np.concatenate((self.positions, *positions)),
            np.concatenate((self.counts, np.ones(len(of_term)))),
        )


_ROW: Final = np.dtype([("seq", "<i8"), ("tokens", "<i4"), ("day", "<i4"), ("header", "<i4"), ("text", "<i4")])
_FEW_KEYS: Final = 16_384
"""As many keys are cheaper to copy than to search in two parts."""
_MOST_NEWEST_KEYS: Final = 4_096


@frozen(eq=False)
class Index:
    """All messages of a session through `through_seq`; a message's position is its index in `rows`.

    It is immutable: extending it returns another. Each row has a message's `seq`, its tokens, the day on which it was
    sent (as in `Packed`, or `NO_DAY` if unknown), and its header and text's hash as packed. `keys` are sorted and have
    one word for each term of a message: 27 bits of hash, 32 of position, 5 of count. So have `newest_keys`, of the last
    messages, so that a new message copies few keys. `room` yields the array of which the rows are the beginning, and
    behind which there is room, to the first that extends the index.
    """

    through_seq: int
    rows: Rows
    keys: U64
    newest_keys: U64
    room: Iterator[Rows]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> int:
        """The size in memory."""
        rows = self.rows if self.rows.base is None else self.rows.base
        return rows.nbytes + self.keys.nbytes + self.newest_keys.nbytes

    @property
    def seqs(self) -> Ints:
        return self.rows["seq"]

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self.rows["tokens"]

    def lengths(self, positions: Ints) -> npt.NDArray[np.signedinteger]:
        """The number of terms of the messages at these positions, with repetitions."""
        return self.rows["header"][positions] >> 10

    def kinds(self, positions: Ints) -> npt.NDArray[np.signedinteger]:
        return self.rows["header"][positions] >> 6 & 3

    def kind(self, position: int) -> int:
        return int(self.rows["header"][position]) >> 6 & 3

    def ask(self, positions: Ints) -> npt.NDArray[np.bool_]:
        """Whether the messages at these positions end with a question mark."""
        return (self.rows["header"][positions] & 1 << 5).astype(np.bool_)

    def texts(self, positions: Ints) -> npt.NDArray[np.signedinteger]:
        """The hashes of the texts at these positions."""
        return self.rows["text"][positions]

    def extended(self, new: Packed, through_seq: int) -> Index:
        """The index with newer messages added, which must be all messages after its own through `through_seq`."""
        words = np.frombuffer(new.terms, "<u4")
        is_header = (words & 31) == 0
        at = np.flatnonzero(is_header)
        if len(at) != len(new.seqs):
            raise ValueError(f"packed terms of {len(at)} messages for {len(new.seqs)}")
        rows = self._room_for(len(at))
        added = rows[len(self) : len(self) + len(at)]
        added["seq"] = new.seqs
        added["tokens"] = np.minimum(new.tokens, _MOST_TOKENS)
        added["day"] = NO_DAY if new.days is None else new.days
        added["header"], added["text"] = words[at], words[at + 1] >> 5
        position = (is_header.cumsum() + (len(self) - 1)).view(np.uint64)
        is_header[at + 1] = True
        terms, position = words[~is_header].astype(np.uint64), position[~is_header]
        keys = (terms >> _POSITION_SHIFT) << _TERM_SHIFT | position << _POSITION_SHIFT | terms & _COUNT_MASK
        older, newest = self.keys, _merged(self.newest_keys, np.sort(keys))
        if len(older) <= _FEW_KEYS or len(newest) > _MOST_NEWEST_KEYS:
            older, newest = _merged(older, newest), newest[:0]
        return Index(through_seq, rows[: len(self) + len(at)], older, newest, iter((rows,)))

    def _room_for(self, more: int) -> Rows:
        """An array that begins with the rows and has room for `more`: the index's own if nothing was added there yet,
        else a copy."""
        rows, size = next(self.room, self.rows), len(self) + more
        if len(rows) >= size and rows is not self.rows:
            return rows
        rows = np.empty(size + size // 16, _ROW)
        rows[: len(self)] = self.rows
        return rows

    def said_between(self, first_day: int, last_day: int, messages: int) -> Ints:
        """The positions of the messages, among the first `messages`, that were sent from `first_day` to `last_day`."""
        days = self.rows["day"][:messages]
        return np.flatnonzero((days >= first_day) & (days <= last_day))

    def posting_count(self, terms: U64, messages: int) -> int:
        """The number of `postings` of the terms."""
        return sum([int(seen_in.sum()) for _, seen_in, _ in self._ranges(terms, messages)])

    def postings(self, terms: U64, messages: int) -> Postings:
        """The postings of the terms in the first `messages`."""
        every = [
            (seen_in, np.arange(len(terms)).repeat(seen_in), _joined(keys, seen_in, ends))
            for keys, seen_in, ends in self._ranges(terms, messages)
        ]
        seen_in, of_term, keys = every[0]
        for more, of_more, more_keys in every[1:]:
            seen_in, of_term = seen_in + more, np.concatenate((of_term, of_more))
            keys = np.concatenate((keys, more_keys))
        positions = keys >> _POSITION_SHIFT & _POSITION_MASK
        return Postings(seen_in, of_term, positions.view(np.int64), (keys & _COUNT_MASK).astype(np.float64))

    def _ranges(self, terms: U64, messages: int) -> list[tuple[U64, Ints, Ints]]:
        """For each part of the keys: these keys, how many are of each term and the first `messages`, and where such
        keys end."""
        begin = terms << _TERM_SHIFT
        end = begin | np.uint64(messages << 5)
        parts = (self.keys, self.newest_keys) if len(self.newest_keys) else (self.keys,)
        ends = [keys.searchsorted(end) for keys in parts]
        return [(keys, at - keys.searchsorted(begin), at) for keys, at in zip(parts, ends, strict=True)]


def _joined(keys: U64, sizes: Ints, ends: Ints) -> U64:
    """Ranges of the keys, one after the other."""
    total = sizes.cumsum()
    return keys.take((ends - total).repeat(sizes) + np.arange(total[-1] if len(total) else 0))


def _merged(keys: U64, added: U64) -> U64:
    """Both, which are sorted: much faster than to sort them again."""
    return np.insert(keys, keys.searchsorted(added), added) if len(keys) else added


_NO_KEYS: Final = np.zeros(0, np.uint64)
EMPTY: Final = Index(0, np.zeros(0, _ROW), _NO_KEYS, _NO_KEYS, iter(()))
