"""How the state, roles, kinds and times of turns, messages and pieces are coded in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from app.domain.types import REASONING_FORMS, Message, Role, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import UnitKind
from app.engine.window.pieces import newest_and_answered
from app.engine.window.prompt import text_format

STATUSES: Final = tuple(TurnStatus)
UNIT_KINDS: Final[tuple[UnitKind, ...]] = ("user", "assistant", "tool_group")
NEWEST, ANSWERED, MEDIA = 4, 8, 16
NO_TIME: Final = -(2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ROLES: Final[tuple[Role, ...]] = ("user", "assistant", "tool")
MARKS: Final = {
    (role, form): at | of_form << 2 for at, role in enumerate(_ROLES) for of_form, form in enumerate(REASONING_FORMS)
}
_ROLE_OF: Final[dict[str, Literal["user", "assistant"]]] = {"u": "user", "a": "assistant"}
"""Roles by the letters of `StoredTexts.roles`."""
FORMATS_OF_LETTERS: Final = {letter: text_format(role) for letter, role in _ROLE_OF.items()}
MARKS_OF_LETTERS: Final = str.maketrans({letter: chr(MARKS[role, None]) for letter, role in _ROLE_OF.items()})


def microseconds_of(instant: datetime | None) -> int:
    """The instant as microseconds since 1970-01-01 in UTC."""
    return NO_TIME if instant is None else (instant - _EPOCH) // _MICROSECOND


def instant_of(microseconds: int) -> datetime | None:
    """The inverse of `microseconds_of`."""
    return None if microseconds == NO_TIME else _EPOCH + microseconds * _MICROSECOND


@lru_cache(1024)
def traits_of_letters(letters: str) -> bytes:
    """The traits of the pieces of a turn with a piece per letter."""
    return traits_of([_ROLE_OF[letter] for letter in letters], [False] * len(letters))


def traits_of(kinds: Sequence[UnitKind], have_media: Iterable[bool]) -> bytes:
    index = UNIT_KINDS.index
    places = zip(kinds, newest_and_answered(kinds), have_media, strict=True)
    return bytes(
        [
            index(kind) | newest * NEWEST | answered * ANSWERED | media * MEDIA
            for kind, (newest, answered), media in places
        ]
    )


def most_tokens_of(message: Message) -> int:
    """Wire tokens of a message, including reasoning that is not sent."""
    unsent = 0 if message.reasoning_sent else message.reasoning_tokens
    return message.tokens + unsent + MESSAGE_FRAMING_TOKENS
