"""A session's settled past as it may be sent: built of its messages alone, whatever the policy, the model or the turn.

What it costs, how much of it a cut takes away and how many messages it has are differences of prefix sums. A past is
only ever appended to (`extended`), save that the latest turn may be unresolved and is looked at again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, TypeAlias

from app.domain.types import Message, Region, Turn, TurnId, TurnStatus
from app.engine.messages.media import has_media
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import Unit, UnitKind, latest_unresolved, sendable_units
from app.engine.window.prompt import PromptItem

PieceState: TypeAlias = Literal["settled", "unresolved", "running"]
"""Of its turn; unresolved is only the latest turn of the past."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of the history with the items it became.

    `newest` says that none of its kind follows in its turn, `answered` that an assistant spoke after it there.
    `tokens` are without framing, `longest_tokens` those of its dearest item, `seq` is its first message's.
    """

    unit: Unit
    items: tuple[PromptItem, ...]
    state: PieceState
    newest: bool
    answered: bool
    has_media: bool
    seq: int
    tokens: int
    longest_tokens: int

    @property
    def kind(self) -> UnitKind:
        return self.unit.kind

    @property
    def wire_tokens(self) -> int:
        return self.tokens + MESSAGE_FRAMING_TOKENS * len(self.items)

    @property
    def turn_id(self) -> TurnId:
        return self.unit.messages[0].turn_id

    def with_items(self, now: Iterable[PromptItem]) -> Piece:
        """The piece with these in the place of its items of the same messages."""
        by_seq = {item.message.seq: item for item in now if item.message}
        items = tuple(by_seq.get(item.message.seq, item) if item.message else item for item in self.items)
        tokens = [item.tokens for item in items]
        return replace(self, items=items, tokens=sum(tokens), longest_tokens=max(tokens))


@dataclass(frozen=True, slots=True)
class Past:
    """The turns before the current one, and the pieces of what may be sent of them, in time order.

    `first_piece` has the place of each turn's first piece, `tokens` (without framing) and `messages` the sums of all
    pieces before a place; all three are one longer than what they count. `sent_turns` are the places of the turns that
    were not rejected, `other_seqs` the `seq` of all messages that are no user's, sent or not.
    """

    turns: tuple[Turn, ...] = ()
    pieces: tuple[Piece, ...] = ()
    first_piece: tuple[int, ...] = (0,)
    tokens: tuple[int, ...] = (0,)
    messages: tuple[int, ...] = (0,)
    sent_turns: tuple[int, ...] = ()
    other_seqs: tuple[int, ...] = ()

    def extended(self, turns: Iterable[Turn]) -> Past:
        """The same with these turns after it; only a latest turn that is unresolved is looked at again."""
        unresolved = latest_unresolved(self.turns)
        kept = len(self.turns) if unresolved is None else self.turns.index(unresolved)
        whole = (*self.turns, *turns)
        unresolved = latest_unresolved(whole)
        new = [pieces_of(turn, "unresolved" if turn is unresolved else "settled") for turn in whole[kept:]]
        end, first_new = self.first_piece[kept], first_seq(whole[kept:])
        pieces = [piece for of_turn in new for piece in of_turn]
        tokens = accumulate((piece.tokens for piece in pieces), initial=self.tokens[end])
        messages = accumulate((len(piece.items) for piece in pieces), initial=self.messages[end])
        return Past(
            turns=whole,
            pieces=(*self.pieces[:end], *pieces),
            first_piece=(*self.first_piece[:kept], *accumulate(map(len, new), initial=end)),
            tokens=(*self.tokens[:end], *tokens),
            messages=(*self.messages[:end], *messages),
            sent_turns=(
                *self.sent_turns[: bisect_left(self.sent_turns, kept)],
                *(at for at in range(kept, len(whole)) if whole[at].status is not TurnStatus.REJECTED),
            ),
            other_seqs=(
                *self.other_seqs[: bisect_left(self.other_seqs, first_new) if first_new else None],
                *(message.seq for turn in whole[kept:] for message in turn.messages if message.role != "user"),
            ),
        )

    def wire_tokens(self, first: int = 0, end: int | None = None) -> int:
        """What the turns from the place `first` to before `end` cost on the wire."""
        return self._wire_before(len(self.turns) if end is None else end) - self._wire_before(first)

    def first_protected(self, protected_turns: int | None, room_tokens: int | None, end: int | None = None) -> int:
        """The place of the oldest turn that is protected when the turns before `end` are the past; a turn is never cut.

        Protected are at most `protected_turns`, and of them as many as `room_tokens` on the wire have room for, the
        newest in any case; None is no bound. Rejected turns do not count, since they send nothing: a client that tries
        an oversized message again and again would push the real conversation out. An unresolved latest turn is
        protected by any policy.
        """
        end = len(self.turns) if end is None else end
        most = end if protected_turns is None else protected_turns
        sent = bisect_left(self.sent_turns, end)
        if sent and self.turns[self.sent_turns[sent - 1]].unresolved:
            most = max(most, 1)
        if not most:
            return end
        first = max(0, sent - most)
        if room_tokens is not None:
            least = self._wire_before(end) - room_tokens
            first = max(first, min(bisect_left(self.sent_turns, least, 0, sent, key=self._wire_before), sent - 1))
        if sent - first == most:
            return self.sent_turns[first]
        return self.sent_turns[first - 1] + 1 if first > 0 else 0

    def _wire_before(self, turn: int) -> int:
        at = self.first_piece[turn]
        return self.tokens[at] + MESSAGE_FRAMING_TOKENS * self.messages[at]


def past_of(turns: Iterable[Turn]) -> Past:
    """The past that these turns are, in time order."""
    return Past().extended(turns)


def first_seq(turns: Iterable[Turn]) -> int:
    """Of the first message of the turns; 0 where they have none."""
    return next((turn.messages[0].seq for turn in turns if turn.messages), 0)


def pieces_of(turn: Turn, state: PieceState) -> list[Piece]:
    """What may be sent of a turn."""
    pieces: list[Piece] = []
    later: set[UnitKind] = set()
    for unit in reversed(sendable_units(turn)):
        region: Region = "user" if state == "running" and unit.kind == "user" else "history"
        pieces.append(_piece(unit, region, state, later))
        later.add(unit.kind)
    pieces.reverse()
    return pieces


def _piece(unit: Unit, region: Region, state: PieceState, later: set[UnitKind]) -> Piece:
    messages: Sequence[Message] = unit.messages
    tokens = [message.tokens for message in messages]
    return Piece(
        unit=unit,
        items=tuple([PromptItem(region, message.tokens, message=message) for message in messages]),
        state=state,
        newest=unit.kind not in later,
        answered=bool(later) and later != {"user"},
        has_media=any(has_media(message.content) for message in messages),
        seq=messages[0].seq,
        tokens=sum(tokens),
        longest_tokens=max(tokens),
    )
