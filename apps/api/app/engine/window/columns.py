"""A session's settled past as columns: what is sent of it as ready JSON, and its token counts as prefix sums.

Columns are only appended to, whole turns at a time. A reader (`past.Past`) reads up to its own end, so the readers of a
session can share one copy, and what they read does not change. Rejected turns are not stored in columns.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, Final
from uuid import UUID

import orjson

from app.domain.stored import StoredTexts
from app.domain.types import REASONING_FORMS, Message, MessageId, Role, Turn, TurnId, TurnStatus
from app.engine.messages.media import has_media
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import most_tokens_of, sendable_units
from app.engine.recall.dates import FIRST_INSTANT, day_of
from app.engine.recall.ranking import text_key
from app.engine.window.pieces import ANSWERED, MEDIA, NEWEST, UNIT_KINDS, Piece, traits_of, traits_of_letters
from app.engine.window.prompt import OPENING, PromptItem, Run, Stretch, message_json, message_of, text_format

_STATUSES: Final = tuple(TurnStatus)
_ROLES: Final[tuple[Role, ...]] = ("user", "assistant", "tool")
_MARKS: Final = {
    (role, form): at | of_form << 2 for at, role in enumerate(_ROLES) for of_form, form in enumerate(REASONING_FORMS)
}
_FORMATS: Final = {role[0]: text_format(role) for role in _ROLES}
"""By the letters of `StoredTexts.roles`."""
_MARKS_OF_LETTERS: Final = str.maketrans({role[0]: chr(_MARKS[role, None]) for role in _ROLES})
_NO_TIME: Final = -(2**63)
_MICROSECOND: Final = timedelta(microseconds=1)
_ID_BYTES: Final = 16
_MOST_KEPT_BYTES: Final = 65_536
"""Longest prefix before a run, in bytes, whose hash state is cached. A longer one is hashed each time (a few ms)."""


class Columns:
    """The settled turns of a session whose messages come after `from_seq`, in time order. Messages that no later prompt
    may contain are in no piece, but are stored with their turn too."""

    def __init__(self, from_seq: int) -> None:
        self.from_seq = from_seq
        # One entry per turn. The columns that begin with 0 have sums or positions before the turn, and one entry more.
        self._turn_ids = bytearray()
        self.turn_seqs = array("q")
        self._statuses = bytearray()
        self._turn_messages = array("q", [0])
        self.first_pieces = array("q", [0])
        self._most_tokens = array("q", [0])
        # One entry per message. Its JSON, with a leading comma, ends at `_ends` in `_wire`.
        self._ids = bytearray()
        self._seqs = array("q")
        self._message_tokens = array("q")
        self._said_at = array("q")
        self._marks = bytearray()
        self._text_keys = array("q")
        self._ends = array("q", [0])
        self._wire = bytearray()
        self.other_seqs = array("q")
        # One entry per piece, or one more as above.
        self._traits = bytearray()
        self._first_messages = array("q")
        self._longest = array("q")
        self.tokens = array("q", [0])
        self.messages = array("q", [0])
        # Stretches of consecutive numbers among the messages that may be sent: positions of messages, ends excluded.
        self._stretch_firsts = array("q")
        self._stretch_ends = array("q")
        self._hashed: tuple[bytes, int, int, Any] | None = None

    @property
    def turns(self) -> int:
        return len(self.turn_seqs)

    @property
    def last_message(self) -> tuple[int, MessageId] | None:
        """The number and the id of the last message, if there is one."""
        return (self._seqs[-1], self._message_id(len(self._seqs) - 1)) if self._seqs else None

    @property
    def wire_bytes(self) -> int:
        return len(self._wire)

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns, without the capacity that Python reserves for growth."""
        columns: list[Any] = [column for column in vars(self).values() if isinstance(column, (array, bytearray))]
        return sum([len(column) * getattr(column, "itemsize", 1) for column in columns])

    def copy(self) -> Columns:
        """A copy that can be appended to independently."""
        made = Columns(self.from_seq)
        for name, column in vars(self).items():
            setattr(made, name, column[:] if isinstance(column, (array, bytearray)) else column)
        return made

    def extend(self, turns: Iterable[Turn]) -> None:
        """Append settled turns, with tokens and reasoning form as they are sent. Turns that are stored already, or were
        rejected, are skipped."""
        last_seq = self.turn_seqs[-1] if self.turn_seqs else 0
        for turn in turns:
            if turn.seq > last_seq and turn.status is not TurnStatus.REJECTED:
                self._append(turn)

    def _append(self, turn: Turn) -> None:
        # Encoded before any change: a message without canonical JSON raises here, as it does where it is sent.
        wires = [message_json(message) for message in turn.messages]
        self._text_keys.extend([text_key(message) for message in turn.messages])
        at = len(self._seqs)
        for message, wire in zip(turn.messages, wires, strict=True):
            self._ids += message.id.bytes
            self._seqs.append(message.seq)
            self._message_tokens.append(message.tokens)
            said_at = message.said_at
            self._said_at.append(_NO_TIME if said_at is None else (said_at - FIRST_INSTANT) // _MICROSECOND)
            self._marks.append(_MARKS[message.role, message.reasoning_sent])
            self._wire += wire
            self._ends.append(len(self._wire))
            if message.role != "user":
                self.other_seqs.append(message.seq)
        units = sendable_units(turn)
        have_media = [any(has_media(message.content) for message in unit.messages) for unit in units]
        self._traits += traits_of([unit.kind for unit in units], have_media)
        for unit in units:
            tokens = [message.tokens for message in unit.messages]
            at = self._seqs.index(unit.messages[0].seq, at)
            self._first_messages.append(at)
            self._longest.append(max(tokens))
            self.tokens.append(self.tokens[-1] + sum(tokens))
            self.messages.append(self.messages[-1] + len(tokens))
            for _ in tokens:
                self._stretch(range(at, at + 1))
                at += 1
        self._turn_ids += turn.id.bytes
        self.turn_seqs.append(turn.seq)
        self._statuses.append(_STATUSES.index(turn.status))
        self._turn_messages.append(len(self._seqs))
        self.first_pieces.append(len(self._traits))
        self._most_tokens.append(self._most_tokens[-1] + sum(map(most_tokens_of, turn.messages)))

    def extend_texts(self, texts: StoredTexts) -> None:
        """Append completed turns that have only text: each message is a piece, with its stored token count."""
        count, place = len(texts.seqs), len(self._seqs)
        ends = [*accumulate(texts.turn_messages, initial=0)]
        wires = [_FORMATS[letter] % text for letter, text in zip(texts.roles, texts.contents, strict=True)]
        self._ids += texts.ids
        self._message_tokens.extend(texts.tokens)
        self._said_at.extend(texts.said_at)
        self._text_keys.extend(map(hash, texts.contents))
        self._seqs.extend(texts.seqs)
        self._marks += texts.roles.translate(_MARKS_OF_LETTERS).encode()
        self.other_seqs.extend([seq for seq, role in zip(texts.seqs, texts.roles, strict=True) if role != "u"])
        self._wire += b"".join(wires)
        _extend_sums(self._ends, map(len, wires))
        self._traits += b"".join([traits_of_letters(texts.roles[first:end]) for first, end in pairwise(ends)])
        self._first_messages.extend(range(place, place + count))
        self._longest.extend(texts.tokens)
        _extend_sums(self.tokens, texts.tokens)
        _extend_sums(self.messages, [1] * count)
        if count and texts.seqs[-1] - texts.seqs[0] == count - 1:
            self._stretch(range(place, place + count))
        else:
            for at in range(place, place + count):
                self._stretch(range(at, at + 1))
        self._turn_ids += texts.turn_ids
        self.turn_seqs.extend(texts.turn_seqs)
        self._statuses += bytes([_STATUSES.index(TurnStatus.COMPLETED)]) * len(texts.turn_seqs)
        _extend_sums(self._turn_messages, texts.turn_messages)
        _extend_sums(self.first_pieces, texts.turn_messages)
        most = [
            sum(tokens) + MESSAGE_FRAMING_TOKENS for tokens in zip(texts.tokens, texts.reasoning_tokens, strict=True)
        ]
        _extend_sums(self._most_tokens, [sum(most[first:end]) for first, end in pairwise(ends)])

    def _stretch(self, places: range) -> None:
        """Add these messages, which have one form, to the last stretch if they continue it, else to a new one."""
        seqs, marks, at = self._seqs, self._marks, places.start
        follows = bool(self._stretch_ends) and self._stretch_ends[-1] == at
        if follows and seqs[at] == seqs[at - 1] + 1 and marks[at] >> 2 == marks[at - 1] >> 2:
            self._stretch_ends[-1] = places.stop
        else:
            self._stretch_firsts.append(at)
            self._stretch_ends.append(places.stop)

    def turn(self, at: int) -> Turn:
        """The turn at this position with its messages, which contain no reasoning that is not sent."""
        turn_id = self._turn_id(at)
        messages = range(self._turn_messages[at], self._turn_messages[at + 1])
        status = _STATUSES[self._statuses[at]]
        return Turn(turn_id, self.turn_seqs[at], status, False, tuple([self._message(m, turn_id) for m in messages]))

    def completed(self, first_turn: int, end_turn: int) -> int:
        return self._statuses.count(_STATUSES.index(TurnStatus.COMPLETED), first_turn, end_turn)

    def most_tokens(self, first_turn: int, end_turn: int) -> int:
        """Wire tokens of all messages of these turns, including reasoning that is not sent."""
        return self._most_tokens[end_turn] - self._most_tokens[first_turn]

    def first_seq(self, turn: int) -> int:
        return self._seqs[self._turn_messages[turn]]

    def last_seq(self, end_turn: int) -> int:
        """The number of the last message before a turn; without one, the number after which the columns begin."""
        message = self._turn_messages[end_turn]
        return self._seqs[message - 1] if message else self.from_seq

    def turn_after(self, seq: int) -> int | None:
        """The position of the turn that begins with the first message after this number; None if that is inside one."""
        message = bisect_right(self._seqs, seq)
        turn = bisect_left(self._turn_messages, message)
        return turn if self._turn_messages[turn] == message else None

    def seq_of(self, piece: int) -> int:
        """The number of the first message of a piece."""
        return self._seqs[self._first_messages[piece]]

    def turn_of(self, piece: int) -> int:
        return bisect_right(self.first_pieces, piece) - 1

    def pieces_citing(self, message_ids: frozenset[MessageId], first: int, end: int) -> Iterator[int]:
        """The first `seq` of each piece from `first` to before `end` that contains one of the messages."""
        if first == end:
            return
        wanted = {message_id.bytes for message_id in message_ids}
        start, stop = self._bounds(first, end)
        ids = bytes(self._ids[start * _ID_BYTES : stop * _ID_BYTES])
        # One pass: most of what a summary cites has left the window, and each would be searched for in all of it.
        for at in range(0, len(ids), _ID_BYTES):
            if ids[at : at + _ID_BYTES] in wanted:
                message = start + at // _ID_BYTES
                piece = bisect_right(self._first_messages, message) - 1
                begin, behind = self._bounds(piece, piece + 1)
                if message < behind:
                    yield self._seqs[begin]

    def _bounds(self, first: int, end: int) -> tuple[int, int]:
        """The positions of the first message of these pieces, and behind their last."""
        in_last = self.messages[end] - self.messages[end - 1]
        return self._first_messages[first], self._first_messages[end - 1] + in_last

    def pieces(self, first: int, end: int) -> list[Piece]:
        """These pieces without their texts."""
        messages, turn = self._first_messages[first:end], self.turn_of(first)
        sizes = [after - before for before, after in pairwise(self.messages[first : end + 1])]
        turns: list[int] = []
        while len(turns) < end - first:
            turns += [self.turn_seqs[turn]] * (min(end, self.first_pieces[turn + 1]) - first - len(turns))
            turn += 1
        traits = self._traits[first:end]
        return list(
            map(
                Piece,
                [UNIT_KINDS[trait & 3] for trait in traits],
                repeat("settled"),
                [trait & NEWEST != 0 for trait in traits],
                [trait & ANSWERED != 0 for trait in traits],
                [trait & MEDIA != 0 for trait in traits],
                repeat("history"),
                turns,
                [self._seqs[message] for message in messages],
                [self._seqs[message + size - 1] for message, size in zip(messages, sizes, strict=True)],
                sizes,
                [after - before for before, after in pairwise(self.tokens[first : end + 1])],
                self._longest[first:end],
                repeat(()),
                repeat(self),
                range(first, end),
            )
        )

    def items(self, place: int) -> tuple[PromptItem, ...]:
        turn_id = self.turn_id(place)
        messages = [self._message(at, turn_id) for at in range(*self._bounds(place, place + 1))]
        return tuple([PromptItem("history", message.tokens, message=message) for message in messages])

    def ids_of_run(self, first: int, end: int) -> Iterator[tuple[int, MessageId, TurnId]]:
        """Tokens, id and turn id of each message of these pieces. Their texts are not read."""
        for place in range(first, end):
            turn_id = self.turn_id(place)
            for at in range(*self._bounds(place, place + 1)):
                yield self._message_tokens[at], self._message_id(at), turn_id

    def label(self, place: int) -> str:
        return f"message:{self._message_id(self._first_messages[place])}"

    def day(self, place: int) -> int | None:
        said_at = _instant_of(self._said_at[self._first_messages[place]])
        return None if said_at is None else day_of(said_at)

    def turn_id(self, place: int) -> TurnId:
        return self._turn_id(self.turn_of(place))

    def run(self, first: int, end: int) -> Run:
        return Run(self, first, end, *self.sums(first, end))

    def sums(self, first: int, end: int) -> tuple[int, int]:
        """The tokens (without framing) and the number of messages of these pieces."""
        return self.tokens[end] - self.tokens[first], self.messages[end] - self.messages[first]

    def json_of_run(self, first: int, end: int) -> bytes:
        """The canonical JSON of these pieces' messages, each with a leading comma."""
        # Slices and no view of it: while a view exists, in a thread, the columns cannot grow.
        wire, ends = self._wire, self._ends
        return b"".join([wire[ends[part.start] : ends[part.stop]] for part in self._stretches(first, end)])

    def stretches_of_run(self, first: int, end: int) -> Iterator[Stretch]:
        """The messages of these pieces in stretches."""
        for part in self._stretches(first, end):
            roles = self._marks[part.start : part.stop]
            users = next((at for at, mark in enumerate(roles) if mark & 3), len(roles))
            form = REASONING_FORMS[self._marks[part.start] >> 2]
            yield Stretch(form, self._seqs[part.start], self._seqs[part.stop - 1], users)

    def text_keys_of_run(self, first: int, end: int) -> Iterator[int]:
        """The `text_key` of each message of these pieces."""
        return chain.from_iterable([self._text_keys[part.start : part.stop] for part in self._stretches(first, end)])

    def _stretches(self, first: int, end: int) -> Iterator[range]:
        """The same as positions of messages."""
        start, stop = self._bounds(first, end)
        for at in range(bisect_right(self._stretch_firsts, start) - 1, len(self._stretch_firsts)):
            if self._stretch_firsts[at] >= stop:
                return
            yield range(max(start, self._stretch_firsts[at]), min(stop, self._stretch_ends[at]))

    def sha256_of_run(self, before: bytes, first: int, end: int, after: Iterable[bytes]) -> str:
        """The SHA-256 (hex) of a prompt that begins with the bytes `before`, continues with these pieces, and ends with
        `after`. A cached state of the same beginning is continued, so that a turn hashes only what is new."""
        start, stop = self._bounds(first, end)
        kept = self._hashed
        if kept is not None and kept[:2] == (before, start) and kept[2] <= stop:
            done, state = kept[2], kept[3].copy()
        else:
            done, state = start, hashlib.sha256(before)
        for part in self._stretches(first, end):
            if part.stop > done:
                at = self._ends[max(part.start, done)]
                # The first message of the list has no comma.
                at += at == self._ends[start] and before == OPENING
                state.update(self._wire[at : self._ends[part.stop]])
        if len(before) <= _MOST_KEPT_BYTES:
            self._hashed = before, start, stop, state.copy()
        for piece in after:
            state.update(piece)
        return state.hexdigest()

    def _turn_id(self, turn: int) -> TurnId:
        return TurnId(UUID(bytes=bytes(self._turn_ids[turn * _ID_BYTES : (turn + 1) * _ID_BYTES])))

    def _message_id(self, message: int) -> MessageId:
        return MessageId(UUID(bytes=bytes(self._ids[message * _ID_BYTES : (message + 1) * _ID_BYTES])))

    def _message(self, at: int, turn_id: TurnId) -> Message:
        return message_of(
            orjson.loads(self._wire[self._ends[at] + 1 : self._ends[at + 1]]),
            self._message_id(at),
            turn_id,
            self._seqs[at],
            self._message_tokens[at],
            reasoning_sent=REASONING_FORMS[self._marks[at] >> 2],
            said_at=_instant_of(self._said_at[at]),
        )


def _extend_sums(sums: array[int], more: Iterable[int]) -> None:
    """Append the running sums of these numbers to `sums`, continuing from its last entry."""
    sums.extend([*accumulate(more, initial=sums[-1])][1:])


def _instant_of(microseconds: int) -> datetime | None:
    return None if microseconds == _NO_TIME else FIRST_INSTANT + microseconds * _MICROSECOND
