"""An index of a session's messages by their terms. Each message is packed when it is stored, and searched in arrays.

A message's packed terms are little-endian words of 32 bits: a header, a hash of its text, and one word for each
distinct term. A term's word has 27 bits of its hash above 5 bits of its count, which is never 0; the low 5 bits of a
header are always 0. So the concatenated packed terms of many messages can be split by one array expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from struct import pack
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from app.domain.content import content_text, named
from app.domain.frozen import frozen
from app.domain.incoming import IncomingMessage
from app.domain.sentences import asks
from app.domain.types import Content, Message, Role
from app.engine.recall.dates import day_said
from app.engine.recall.terms import MOST_TERMS_OF_A_MESSAGE, term_hash, terms_of, text_hash

U64: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

USER, ASSISTANT, CALL, RESULT = range(4)
_HEADER_WORDS: Final = 2
_MOST_COUNT: Final = 31
_MOST_LENGTH: Final = 0xFFFF
_MOST_TOKENS: Final = 2**31 - 1
_POSITION_SHIFT: Final = np.uint64(5)
_TERM_SHIFT: Final = np.uint64(37)
SATURATION: Final = 1.2
_COPIED_KEYS: Final = 65_536
"""Most keys that are copied whenever an index is extended, which takes a fraction of a millisecond."""
_KEYS_A_NEW_ONE: Final = 16
"""More keys than these are copied when there are at most so many for each new one."""
_MESSAGE_BYTES: Final = 30
_KEY_BYTES: Final = 8
_LENGTH_SHARE: Final = 0.4
_USUAL_TERMS: Final = 16
"""Usual length in BM25, fixed so that longer new messages do not change a message's score (Robertson, Zaragoza)."""
NO_DAY: Final = -(2**31)


def packed_terms(role: Role, content: Content, *, has_calls: bool = False, name: str | None = None) -> bytes:
    """A message's terms as stored with it, its speaker's name first; at most `MOST_TERMS_OF_A_MESSAGE`."""
    kind = RESULT if role == "tool" else USER if role == "user" else CALL if has_calls else ASSISTANT
    return packed_text(named(name, content_text(content)), kind)


def terms_of_message(message: Message | IncomingMessage) -> bytes:
    return packed_terms(message.role, message.content, has_calls=bool(message.tool_calls), name=message.name)


def packed_text(text: str, kind: int = USER, most_terms: int = MOST_TERMS_OF_A_MESSAGE) -> bytes:
    terms = terms_of(text)
    header = min(len(terms), _MOST_LENGTH) << 10 | kind << 6 | asks(text) << 5
    words = [header, text_hash(text) << 5 | 1]
    counts = islice(Counter(map(term_hash, terms)).items(), most_terms)
    words += [term << 5 | (count if count < _MOST_COUNT else _MOST_COUNT) for term, count in counts]  # noqa: FURB136 - `min` takes longer
    return pack(f"<{len(words)}I", *words)


def index_bytes(messages: int, terms_bytes: int) -> int:
    """The size of an index of so many messages, whose packed terms have `terms_bytes`."""
    return _MESSAGE_BYTES * messages + _KEY_BYTES * (terms_bytes // 4 - _HEADER_WORDS * messages)


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
            b"".join(map(terms_of_message, messages)),
            np.array([NO_DAY if (day := day_said(message)) is None else day for message in messages], np.int64),
        )


@frozen(eq=False)
class Index:
    """All messages of a session after `after_seq`, which is 0 unless it is very long, through `through_seq`: one array
    per column; a message's position is its index there.
    `keys` are sorted and have one word for each term of a message: 27 bits of hash, 32 of position, 5 of count. Those
    of the newest messages may be in `new_keys` instead, sorted too, so that many are not copied for a few.
    `norms` are what BM25 adds to a count for a message's number of terms. `days` are as in `Packed`, or `NO_DAY` if
    unknown."""

    after_seq: int
    through_seq: int
    seqs: Ints
    tokens: npt.NDArray[np.int32]
    norms: Floats
    texts: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    questions: npt.NDArray[np.bool_]
    days: npt.NDArray[np.int32]
    keys: U64
    new_keys: U64

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def size_bytes(self) -> int:
        of_messages = (self.seqs, self.tokens, self.norms, self.texts, self.kinds, self.questions, self.days)
        return sum([column.nbytes for column in (*of_messages, self.keys, self.new_keys)])

    def extended(self, new: Packed, through_seq: int) -> Index:
        """The index with newer messages added, which must be all messages after its own through `through_seq`."""
        words = np.frombuffer(new.terms, "<u4")
        at = np.flatnonzero((words & 31) == 0)
        if len(at) != len(new.seqs):
            raise ValueError(f"packed terms of {len(at)} messages for {len(new.seqs)}")
        header, distinct = words[at], np.diff(at, append=len(words)) - _HEADER_WORDS
        norms = SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE / _USUAL_TERMS * (header >> 10).astype(np.float64))
        is_term = np.ones(len(words), np.bool_)
        is_term[at] = is_term[at + 1] = False
        terms = words[is_term].astype(np.uint64)
        position = np.repeat(np.arange(len(self), len(self) + len(at), dtype=np.uint64), distinct)
        days = np.full(len(at), NO_DAY) if new.days is None else new.days
        added = (terms >> _POSITION_SHIFT) << _TERM_SHIFT | position << _POSITION_SHIFT | terms & np.uint64(31)
        keys, new_keys = self.keys, np.sort(np.concatenate((self.new_keys, added)))
        if len(keys) <= max(_COPIED_KEYS, _KEYS_A_NEW_ONE * len(new_keys)):
            # Much faster than to sort them all again.
            keys, new_keys = np.insert(keys, keys.searchsorted(new_keys), new_keys), new_keys[:0]
        return Index(
            after_seq=self.after_seq,
            through_seq=through_seq,
            seqs=np.concatenate((self.seqs, new.seqs)),
            tokens=np.concatenate((self.tokens, np.minimum(new.tokens, _MOST_TOKENS).astype(np.int32))),
            norms=np.concatenate((self.norms, norms)),
            texts=np.concatenate((self.texts, (words[at + 1] >> 5).astype(np.int32))),
            kinds=np.concatenate((self.kinds, (header >> 6 & 3).astype(np.uint8))),
            questions=np.concatenate((self.questions, (header >> 5 & 1).astype(np.bool_))),
            days=np.concatenate((self.days, days.astype(np.int32))),
            keys=keys,
            new_keys=new_keys,
        )

    def ends_with(self, terms: bytes | None) -> bool:
        """Whether these are the packed terms of its last message, by the hash of the text."""
        return terms is not None and np.frombuffer(terms, "<u4")[1] >> 5 == self.texts[-1]

    def said_between(self, first_day: int, last_day: int, messages: int) -> Ints:
        """The positions of the messages, among the first `messages`, that were sent from `first_day` to `last_day`."""
        days = self.days[:messages]
        return np.flatnonzero((days >= first_day) & (days <= last_day))

    def posting_count(self, terms: Iterable[int], messages: int) -> int:
        return int(self._ranges(terms, messages)[1].sum())

    def postings(self, terms: Iterable[int], messages: int) -> tuple[Ints, Ints, Floats]:
        """How many of the first `messages` have each term; and, term by term, their positions and its counts there."""
        first, seen_in = self._ranges(terms, messages)
        places = (first - seen_in.cumsum() + seen_in).repeat(seen_in)
        places += np.arange(len(places))
        every = self.keys.take(places, mode="clip")
        if len(self.new_keys):
            (newer,) = (places >= len(self.keys)).nonzero()
            every[newer] = self.new_keys[places[newer] - len(self.keys)]
            seen_in = seen_in[::2] + seen_in[1::2]
        positions = every >> _POSITION_SHIFT & np.uint64(0xFFFFFFFF)
        return seen_in, positions.view(np.int64), (every & np.uint64(31)).astype(np.float64)

    def _ranges(self, terms: Iterable[int], messages: int) -> tuple[Ints, Ints]:
        """Where the keys of each term begin, and how many of them are of the first `messages`; with new keys, these two
        of the term's new ones follow, as if they came after all others."""
        wanted = np.fromiter(terms, np.uint64) << _TERM_SHIFT
        last = wanted | np.uint64(messages << 5)
        first = self.keys.searchsorted(wanted)
        seen_in = self.keys.searchsorted(last) - first
        if not len(self.new_keys):
            return first, seen_in
        new = self.new_keys.searchsorted(wanted)
        new_seen_in = self.new_keys.searchsorted(last) - new
        return np.stack((first, new + len(self.keys)), 1).ravel(), np.stack((seen_in, new_seen_in), 1).ravel()


EMPTY: Final = Index(0, 0, *(np.zeros(0, kind) for kind in ("i8", "i4", "f8", "i4", "u1", "?", "i4", "u8", "u8")))
