"""`frozen` makes a dataclass with slots that is compared and hashed by its fields, and `replace` copies one."""

from __future__ import annotations

from functools import cached_property

import pytest

from app.domain.frozen import frozen, replace


@frozen
class _Point:
    x: int
    y: int = 0


@frozen(eq=False)
class _Place:
    name: str


@frozen
class _Named:
    name: str

    def __hash__(self) -> int:
        return 7


@frozen(slots=False, kw_only=True)
class _Word:
    text: str

    @cached_property
    def letters(self) -> int:
        return len(self.text)


def test_values_are_compared_and_hashed_by_their_fields() -> None:
    assert _Point(1) == _Point(1, 0) != _Point(1, 2)
    assert len({_Point(1), _Point(1, 0), replace(_Point(2), x=1)}) == 1
    assert _Place("here") != _Place("here"), "without eq, by identity"


def test_a_hash_of_its_own_stays() -> None:
    assert hash(_Named("any")) == 7


def test_values_have_slots_unless_a_property_is_cached() -> None:
    with pytest.raises(AttributeError):
        object.__setattr__(_Point(1), "z", 3)
    assert _Word(text="four").letters == 4


def test_a_copy_has_the_new_values_and_the_others_of_its_record() -> None:
    assert replace(_Point(1, 2), y=3) == _Point(1, 3)
    word = _Word(text="four")
    assert word.letters == 4
    assert replace(word, text="seven").letters == 5, "what was cached is computed again"
    with pytest.raises(TypeError):
        replace(_Point(1), z=3)
