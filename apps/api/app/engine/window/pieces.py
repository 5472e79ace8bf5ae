"""What later prompts may contain of a turn, in pieces that are kept or dropped as a whole, each with its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from app.domain.types import Message, Region, Turn, TurnId
from app.engine.messages.media import has_media
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import UnitKind, sendable_units
from app.engine.recall.dates import day_said
from app.engine.window.prompt import PromptItem, StoredPieces, whole_message_block

UNIT_KINDS: Final[tuple[UnitKind, ...]] = ("user", "assistant", "tool_group")
NEWEST, ANSWERED, MEDIA = 4, 8, 16
"""The traits of a settled piece as bits of a byte, whose lowest two have its kind."""
PieceState: TypeAlias = Literal["settled", "unresolved", "running"]
"""State of the turn that a piece belongs to. Only the latest turn of the past may be unresolved."""


class Piece(NamedTuple):
    """A unit of the history with its tokens. Its items are `made`, or read from the `stored` columns at `place`.

    `newest` means that no piece of its kind follows in its turn, `answered` that assistant content follows there.
    `tokens` are without framing; `longest_tokens` are those of its largest item. `seq` and `last_seq` are the numbers
    of its first and last message.
    """

    kind: UnitKind
    state: PieceState
    newest: bool
    answered: bool
    has_media: bool
    region: Region
    turn_seq: int
    seq: int
    last_seq: int
    messages: int
    tokens: int
    longest_tokens: int
    made: tuple[PromptItem, ...] = ()
    stored: StoredPieces | None = None
    place: int = 0

    @property
    def items(self) -> tuple[PromptItem, ...]:
        """Its messages as they are sent."""
        return self.stored.items(self.place) if self.stored else self.made

    @property
    def stored_messages(self) -> list[Message]:
        return [item.message for item in self.items if item.message]

    @property
    def turn_id(self) -> TurnId:
        return self.stored.turn_id(self.place) if self.stored else self.stored_messages[0].turn_id

    @property
    def label(self) -> str:
        """The name of its first message in trim logs."""
        return self.stored.label(self.place) if self.stored else self.made[0].label

    @property
    def day(self) -> int | None:
        """The day of its first message; None if its time is not known."""
        return self.stored.day(self.place) if self.stored else day_said(self.stored_messages[0])

    @property
    def wire_tokens(self) -> int:
        """Its tokens including the framing of its messages."""
        return self.tokens + MESSAGE_FRAMING_TOKENS * self.messages

    def with_items(self, now: Iterable[PromptItem]) -> Piece:
        """The piece in which these replace its items of the same messages."""
        by_seq = {item.message.seq: item for item in now if item.message}
        items = tuple(by_seq.get(item.message.seq, item) if item.message else item for item in self.items)
        tokens = [item.tokens for item in items]
        return self._replace(tokens=sum(tokens), longest_tokens=max(tokens), made=items, stored=None)


def pieces_of(turn: Turn, state: PieceState) -> list[Piece]:
    """The pieces of a turn that may be sent."""
    units = sendable_units(turn)
    places = newest_and_answered([unit.kind for unit in units])
    pieces: list[Piece] = []
    for unit, (newest, answered) in zip(units, places, strict=True):
        kind, messages = unit.kind, unit.messages
        region: Region = "user" if state == "running" and kind == "user" else "history"
        tokens = [message.tokens for message in messages]
        piece = Piece(  # by position, in the order of its fields: by name it takes twice as long
            kind,
            state,
            newest,
            answered,
            any(has_media(message.content) for message in messages),
            region,
            turn.seq,
            messages[0].seq,
            messages[-1].seq,
            len(messages),
            sum(tokens),
            max(tokens),
            tuple([_item(region, message) for message in messages]),
        )
        pieces.append(piece)
    return pieces


def newest_and_answered(kinds: Sequence[UnitKind]) -> list[tuple[bool, bool]]:
    """For each unit of a turn: whether no unit of its kind follows, and whether an assistant's unit follows."""
    places: list[tuple[bool, bool]] = []
    following: set[UnitKind] = set()
    is_answered = False
    for kind in reversed(kinds):
        places.append((kind not in following, is_answered))
        following.add(kind)
        is_answered = is_answered or kind != "user"
    return places[::-1]


def traits_of(kinds: Sequence[UnitKind], have_media: Iterable[bool]) -> bytes:
    """The traits of the pieces of a turn, a byte for each."""
    index = UNIT_KINDS.index
    places = zip(kinds, newest_and_answered(kinds), have_media, strict=True)
    return bytes(
        [
            index(kind) | newest * NEWEST | answered * ANSWERED | media * MEDIA
            for kind, (newest, answered), media in places
        ]
    )


@lru_cache(1024)
def traits_of_letters(letters: str) -> bytes:
    """The same for a turn that has only text, by the letters of `StoredTexts.roles`."""
    return traits_of(["user" if letter == "u" else "assistant" for letter in letters], [False] * len(letters))


def _item(region: Region, message: Message) -> PromptItem:
    if not message.is_look_back:
        return PromptItem(region, message.tokens, message=message)
    return PromptItem(region, message.tokens, block=whole_message_block(message), name="look_back")
