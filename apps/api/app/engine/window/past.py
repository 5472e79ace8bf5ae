"""A session's settled past as it may be sent. It depends only on the session's messages, not on policy or turn.

Tokens and messages of any range of turns are differences of prefix sums. The texts of turns that are kept as columns
become messages only when they are read. Rejected turns are in no past, since they are not sent: if they were protected,
a client that repeats an oversized message would push the real conversation out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import Any, Final, cast, overload

from app.domain.frozen import frozen
from app.domain.types import MessageId, Turn, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.window.columns import Columns
from app.engine.window.pieces import Piece, pieces_of
from app.engine.window.prompt import PromptItem, Run

_SHORT_MESSAGES: Final = 1_000
_SHORT_BYTES: Final = 1_048_576
_NO_TURNS: Final = Columns(0)
"""Columns that are never appended to."""


@frozen(slots=False)
class Past:
    """The turns before the current one, and the pieces of what may be sent of them, in time order.

    Those of `columns` from position `first_turn` to before `end_turn` are followed by the `newest`. For each of these,
    `tokens` (without framing) and `messages` are the sums of all pieces before it, kept ones included, with one more
    entry at the end.
    """

    columns: Columns = _NO_TURNS
    first_turn: int = 0
    end_turn: int = 0
    newest: tuple[Turn, ...] = ()
    newest_pieces: tuple[Piece, ...] = ()
    tokens: tuple[int, ...] = (0,)
    messages: tuple[int, ...] = (0,)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.turns_between(0, self.turn_count)

    def turns_between(self, first: int, end: int) -> tuple[Turn, ...]:
        """The turns from position `first` to before `end`. Kept turns are rebuilt from their columns at each call."""
        kept = self.kept_turns
        made = [self.columns.turn(self.first_turn + at) for at in range(first, min(end, kept))]
        return tuple(made) + self.newest[max(0, first - kept) : max(0, end - kept)]

    @property
    def is_long(self) -> bool:
        """Whether it takes more than a few ms to build its messages or to prune them: too long for an event loop."""
        return self.messages[-1] > _SHORT_MESSAGES or self.kept_bytes > _SHORT_BYTES

    @property
    def kept_bytes(self) -> int:
        return self.columns.wire_bytes if self.kept_turns else 0

    @property
    def kept_turns(self) -> int:
        return self.end_turn - self.first_turn

    @property
    def turn_count(self) -> int:
        return self.kept_turns + len(self.newest)

    @property
    def is_unresolved(self) -> bool:
        """Whether the latest turn is unresolved. No other can be (`db/messages.py`)."""
        return bool(self.newest) and self.newest[-1].unresolved

    @property
    def last_seq(self) -> int:
        """The number of the last message; without turns, the number after which the columns begin."""
        return self.newest[-1].messages[-1].seq if self.newest else self.columns.last_seq(self.end_turn)

    @property
    def _kept_pieces(self) -> tuple[int, int]:
        """The positions in the columns of the first kept piece, and behind the last."""
        return self.columns.first_pieces[self.first_turn], self.columns.first_pieces[self.end_turn]

    @property
    def pieces(self) -> Sequence[Piece]:
        return Pieces(self.columns, *self._kept_pieces, self.newest_pieces) if self.kept_turns else self.newest_pieces

    def extended(self, turns: Iterable[Turn]) -> Past:
        """A copy with these turns appended; an unresolved latest one is evaluated again."""
        same = len(self.newest) - self.is_unresolved
        settled = bisect_left(self.newest_pieces, True, key=lambda piece: piece.state != "settled")
        whole = self.newest + tuple([turn for turn in turns if turn.status is not TurnStatus.REJECTED])
        unresolved = whole[-1] if whole and whole[-1].unresolved else None
        new = [pieces_of(turn, "unresolved" if turn is unresolved else "settled") for turn in whole[same:]]
        # Adding tuples copies each once, a slice of a whole one nothing; unpacking with stars copies three times.
        return Past(
            self.columns,
            self.first_turn,
            self.end_turn,
            newest=whole,
            newest_pieces=self.newest_pieces[:settled] + tuple(chain.from_iterable(new)),
            tokens=_with_sums(self.tokens[: same + 1], [sum([piece.tokens for piece in each]) for each in new]),
            messages=_with_sums(self.messages[: same + 1], [sum([piece.messages for piece in each]) for each in new]),
        )

    def after(self, turn_seq: int) -> Past:
        """A copy without the turns through this number."""
        first = bisect_right(self.columns.turn_seqs, turn_seq, self.first_turn, self.end_turn)
        newest = [turn for turn in self.newest if turn.seq > turn_seq]
        return past_of_columns(self.columns, first, self.end_turn).extended(newest)

    def wire_tokens(self, first: int = 0) -> int:
        """Wire tokens of the turns from position `first` on."""
        return self._wire_before(self.turn_count) - self._wire_before(first)

    def completed_after(self, seq: int) -> int:
        """How many completed turns have a number above the given one."""
        first = bisect_right(self.columns.turn_seqs, seq, self.first_turn, self.end_turn)
        newest = sum(turn.status is TurnStatus.COMPLETED and turn.seq > seq for turn in self.newest)
        return self.columns.completed(first, self.end_turn) + newest

    def seq_from(self, turn: int) -> int:
        """The number of the first message of the turns from this position on, or one past the last message."""
        newest = turn - self.kept_turns
        if newest < 0:
            return self.columns.first_seq(self.first_turn + turn)
        return self.newest[newest].messages[0].seq if newest < len(self.newest) else self.last_seq + 1

    def place_of_turn(self, turn_seq: int) -> int:
        """The position of the first turn with at least this number."""
        at = bisect_left(self.columns.turn_seqs, turn_seq, self.first_turn, self.end_turn)
        if at < self.end_turn:
            return at - self.first_turn
        return self.kept_turns + bisect_left(self.newest, turn_seq, key=lambda turn: turn.seq)

    def pieces_citing(self, message_ids: frozenset[MessageId]) -> frozenset[int]:
        """The first `seq` of each piece that contains one of the messages."""
        if not message_ids:
            return frozenset()
        kept = self.columns.pieces_citing(message_ids, *self._kept_pieces)
        of_newest = [
            piece.seq
            for piece in self.newest_pieces
            if not message_ids.isdisjoint([item.message.id for item in piece.made if item.message])
        ]
        return frozenset((*kept, *of_newest))

    def others_between(self, first_seq: int, last_seq: int) -> int:
        """How many messages with a number between these two are not a user's."""
        of_columns, last_kept_seq = self.columns.other_seqs, self.columns.last_seq(self.end_turn)
        kept = bisect_left(of_columns, min(last_seq, last_kept_seq + 1)) - bisect_right(of_columns, first_seq)
        return max(0, kept) + bisect_left(self._other_seqs, last_seq) - bisect_right(self._other_seqs, first_seq)

    @cached_property
    def _other_seqs(self) -> list[int]:
        """Those in `newest`."""
        return [message.seq for turn in self.newest for message in turn.messages if message.role != "user"]

    def first_protected(self, protected_turns: int | None, room_tokens: int | None, end: int | None = None) -> int:
        """The position of the oldest protected turn if the past ended before the turn at position `end`.

        Protected are the newest `protected_turns`, as far as they fit into `room_tokens` on the wire (None: no bound);
        the newest of them even if it does not fit, and an unresolved latest turn under any policy.
        """
        end = self.turn_count if end is None else end
        most = end if protected_turns is None else protected_turns
        if end == self.turn_count and self.is_unresolved:
            most = max(most, 1)
        first = max(0, end - most)
        if room_tokens is None:
            return first
        in_room = bisect_left(range(end), self._wire_before(end) - room_tokens, first, key=self._wire_before)
        return max(first, min(in_room, end - 1))

    def _wire_before(self, turn: int) -> int:
        at = turn - self.kept_turns
        if at < 0:
            first_pieces = self.columns.first_pieces
            tokens, messages = self.columns.sums(first_pieces[self.first_turn], first_pieces[self.first_turn + turn])
        else:
            tokens, messages = self.tokens[at], self.messages[at]
        return tokens + MESSAGE_FRAMING_TOKENS * messages


def _with_sums(sums: tuple[int, ...], more: Iterable[int]) -> tuple[int, ...]:
    return sums + tuple(accumulate(more, initial=sums[-1]))[1:]


class Turns(Sequence[Turn]):
    """Consecutive turns of a past, which are built when one of them is first read: a due summary may not be made. Those
    of a long past are built at once, on the thread that decides about it."""

    def __init__(self, past: Past, first: int, end: int) -> None:
        self._past = past
        self._places = range(first, end)
        if past.is_long:
            _ = self._built

    @cached_property
    def _built(self) -> tuple[Turn, ...]:
        return self._past.turns_between(self._places.start, self._places.stop)

    def __len__(self) -> int:
        return len(self._places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._built == tuple(cast("Sequence[object]", other))

    def __hash__(self) -> int:
        return hash(self._built)

    def __getitem__(self, at: Any) -> Any:
        return cast(Any, self._built)[at]


class Pieces(Sequence[Piece]):
    """Consecutive pieces of a past: some of columns, each built only when it is read, then the newest."""

    def __init__(self, columns: Columns, first: int, end: int, newest: Sequence[Piece]) -> None:
        self._columns = columns
        self._first, self._end = first, end
        self._newest = newest

    def __len__(self) -> int:
        return self._end - self._first + len(self._newest)

    def __iter__(self) -> Iterator[Piece]:
        yield from self._columns.pieces(self._first, self._end)
        yield from self._newest

    @overload
    def __getitem__(self, at: int) -> Piece: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Piece]: ...
    def __getitem__(self, at: int | slice) -> Piece | Sequence[Piece]:
        kept = self._end - self._first
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            assert step == 1, "neighbours stay such"
            first, end = (self._first + min(place, kept) for place in (start, max(start, stop)))
            return Pieces(self._columns, first, end, self._newest[max(0, start - kept) : max(0, stop - kept)])
        place = range(len(self))[at]
        if place >= kept:
            return self._newest[place - kept]
        return self._columns.pieces(self._first + place, self._first + place + 1)[0]

    def place_from(self, seq: int) -> int:
        """The position of the first piece with at least this number."""
        columns, kept = self._columns, range(self._first, self._end)
        at = bisect_left(kept, seq, key=columns.seq_of)
        return at + bisect_left(self._newest, seq, key=attrgetter("seq"))

    def parts(self) -> list[PromptItem | Run]:
        run = [self._columns.run(self._first, self._end)] if self._first < self._end else []
        return [*run, *(item for piece in self._newest for item in piece.items)]


def pieces_from(pieces: Sequence[Piece], seq: int) -> Sequence[Piece]:
    """Those of the pieces, which are in time order, with at least this number."""
    at = pieces.place_from(seq) if isinstance(pieces, Pieces) else bisect_left(pieces, seq, key=attrgetter("seq"))
    return pieces[at:]


def parts_of(pieces: Sequence[Piece]) -> list[PromptItem | Run]:
    """The parts of a prompt that these pieces become, in order. Consecutive kept pieces sent whole are one `Run`."""
    if isinstance(pieces, Pieces):
        return pieces.parts()
    parts: list[PromptItem | Run] = []
    for _, run in groupby(enumerate(pieces), _neighbours):
        of_run = [piece for _, piece in run]
        stored = of_run[0].stored
        if stored is None:
            parts += [item for piece in of_run for item in piece.items]
        else:
            parts.append(stored.run(of_run[0].place, of_run[-1].place + 1))
    return parts


def _neighbours(numbered: tuple[int, Piece]) -> int | None:
    """A key that is equal for consecutive kept pieces; None for pieces that are not kept."""
    at, piece = numbered
    return None if piece.stored is None else piece.place - at


def past_of(turns: Iterable[Turn]) -> Past:
    """The past made of these turns, which are in time order."""
    return Past().extended(turns)


def past_of_columns(columns: Columns, first_turn: int = 0, end_turn: int = 0) -> Past:
    """The past made of the turns of columns from position `first_turn` to before `end_turn`."""
    tokens, messages = columns.sums(columns.first_pieces[first_turn], columns.first_pieces[end_turn])
    return Past(columns, first_turn, end_turn, tokens=(tokens,), messages=(messages,))
