"""Settled turns prepared for columns, one list per column, made from messages or from texts as they were read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, Literal

from app.domain.frozen import frozen
from app.domain.stored import StoredTexts
from app.domain.types import REASONING_FORMS, Message, Role, Turn, TurnStatus
from app.engine.messages.media import has_media
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import UnitKind, sendable_units
from app.engine.window.pieces import newest_and_answered
from app.engine.window.prompt import message_json, text_format

STATUSES: Final = tuple(TurnStatus)
UNIT_KINDS: Final[tuple[UnitKind, ...]] = ("user", "assistant", "tool_group")
NEWEST, ANSWERED, MEDIA = 4, 8, 16
NO_TIME: Final = -(2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ROLES: Final[tuple[Role, ...]] = ("user", "assistant", "tool")
_MARKS: Final = {
    (role, form): at | of_form << 2 for at, role in enumerate(_ROLES) for of_form, form in enumerate(REASONING_FORMS)
}
_STATUS_MARKS: Final = {status: at for at, status in enumerate(STATUSES)}
_COMPLETED: Final = bytes([_STATUS_MARKS[TurnStatus.COMPLETED]])
_ROLE_OF: Final[dict[str, Literal["user", "assistant"]]] = {"u": "user", "a": "assistant"}
"""Roles by the letters of `StoredTexts.roles`."""
_FORMATS: Final = {letter: text_format(role) for letter, role in _ROLE_OF.items()}
_MARKS_OF: Final = str.maketrans({letter: chr(_MARKS[role, None]) for letter, role in _ROLE_OF.items()})


@frozen
class WholeTurns:
    """Turns in order. The first block of fields has a value per turn, the second a value per message, the third a value
    per piece. `first_messages` are positions of messages. `said_at` are microseconds since 1970-01-01 in UTC, `NO_TIME`
    if unknown. `wires` are the messages' JSON, each with a leading comma."""

    turn_ids: bytes
    turn_seqs: Sequence[int]
    statuses: bytes
    turn_messages: Sequence[int]
    turn_pieces: Sequence[int]
    most_tokens: Sequence[int]

    ids: bytes
    seqs: Sequence[int]
    message_tokens: Sequence[int]
    said_at: Sequence[int]
    marks: bytes
    wires: Sequence[bytes]

    traits: bytes
    first_messages: Sequence[int]
    longest: Sequence[int]
    tokens: Sequence[int]
    messages: Sequence[int]

    @property
    def is_one_stretch(self) -> bool:
        """Whether all messages are sent, have consecutive numbers, and have their reasoning in one form."""
        count = len(self.seqs)
        is_whole = sum(self.messages) == count > 0 and self.seqs[-1] - self.seqs[0] == count - 1
        return is_whole and len({mark >> 2 for mark in set(self.marks)}) == 1


def of_turns(turns: Sequence[Turn]) -> WholeTurns:
    """The columns of turns, with tokens and reasoning form as they are sent. Raises for what has no canonical JSON."""
    messages = [message for turn in turns for message in turn.messages]
    pieces: list[tuple[int, int, int, int]] = []
    of_turns: list[int] = []
    traits = bytearray()
    place = 0
    for turn in turns:
        units, at = sendable_units(turn), place
        of_turns.append(len(units))
        traits += _traits([unit.kind for unit in units])
        for number, unit in enumerate(units, len(traits) - len(units)):
            while messages[at].seq != unit.messages[0].seq:
                at += 1
            tokens = [message.tokens for message in unit.messages]
            pieces.append((at, max(tokens), sum(tokens), len(tokens)))
            at += len(tokens)
            traits[number] |= MEDIA * any(has_media(message.content) for message in unit.messages)
        place += len(turn.messages)
    return WholeTurns(
        turn_ids=b"".join([turn.id.bytes for turn in turns]),
        turn_seqs=[turn.seq for turn in turns],
        statuses=bytes([_STATUS_MARKS[turn.status] for turn in turns]),
        turn_messages=[len(turn.messages) for turn in turns],
        turn_pieces=of_turns,
        most_tokens=[sum(map(_most_tokens, turn.messages)) for turn in turns],
        ids=b"".join([message.id.bytes for message in messages]),
        seqs=[message.seq for message in messages],
        message_tokens=[message.tokens for message in messages],
        said_at=[microseconds_of(message.said_at) for message in messages],
        marks=bytes([_MARKS[message.role, message.reasoning_sent] for message in messages]),
        wires=[message_json(message) for message in messages],
        traits=bytes(traits),
        first_messages=[piece[0] for piece in pieces],
        longest=[piece[1] for piece in pieces],
        tokens=[piece[2] for piece in pieces],
        messages=[piece[3] for piece in pieces],
    )


def of_texts(texts: StoredTexts) -> WholeTurns:
    """The columns of completed turns that have only text: each message is a piece, with its stored token count."""
    ends = [*accumulate(texts.turn_messages, initial=0)]
    most = [*accumulate(map(sum, zip(texts.tokens, texts.reasoning_tokens, strict=True)), initial=0)]
    kinds = [texts.roles[first:end] for first, end in pairwise(ends)]
    count = len(texts.seqs)
    return WholeTurns(
        turn_ids=texts.turn_ids,
        turn_seqs=texts.turn_seqs,
        statuses=_COMPLETED * len(texts.turn_seqs),
        turn_messages=texts.turn_messages,
        turn_pieces=texts.turn_messages,
        most_tokens=[most[end] - most[first] + MESSAGE_FRAMING_TOKENS * (end - first) for first, end in pairwise(ends)],
        ids=texts.ids,
        seqs=texts.seqs,
        message_tokens=texts.tokens,
        said_at=texts.said_at,
        marks=texts.roles.translate(_MARKS_OF).encode(),
        wires=[_FORMATS[letter] % text for letter, text in zip(texts.roles, texts.contents, strict=True)],
        traits=b"".join(map(_traits_of_letters, kinds)),
        first_messages=range(count),
        longest=texts.tokens,
        tokens=texts.tokens,
        messages=[1] * count,
    )


def microseconds_of(instant: datetime | None) -> int:
    """The instant as microseconds since 1970-01-01 in UTC; `NO_TIME` for None."""
    return NO_TIME if instant is None else (instant - _EPOCH) // _MICROSECOND


def instant_of(microseconds: int) -> datetime | None:
    """The inverse of `microseconds_of`."""
    return None if microseconds == NO_TIME else _EPOCH + microseconds * _MICROSECOND


@lru_cache(1024)
def _traits_of_letters(letters: str) -> bytes:
    return _traits([_ROLE_OF[letter] for letter in letters])


def _traits(kinds: Sequence[UnitKind]) -> bytes:
    """The traits of the pieces of a turn, in order, without the `MEDIA` bit."""
    index = UNIT_KINDS.index
    places = zip(kinds, newest_and_answered(kinds), strict=True)
    return bytes([index(kind) | newest * NEWEST | answered * ANSWERED for kind, (newest, answered) in places])


def _most_tokens(message: Message) -> int:
    unsent = 0 if message.reasoning_sent else message.reasoning_tokens
    return message.tokens + unsent + MESSAGE_FRAMING_TOKENS
