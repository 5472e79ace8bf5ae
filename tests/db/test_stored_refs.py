"""A prompt's references as they are stored: the same come back, in half of the bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.db.audits import short_refs, whole_refs
from app.domain.recalled import Recalled, recalled_ref
from app.domain.types import REGIONS, JsonObject, MessageId

_SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
_SEQ = st.integers(1, 2**40)
_WORD = st.text("aé1'’", min_size=1, max_size=8) | st.sampled_from(("8 May 2023", "last week", "a couple of days ago"))


def _recalled(seq: int, words: set[str]) -> list[Any]:
    return recalled_ref([Recalled(seq, MessageId(UUID(int=1)), None, 7, 9, tuple(sorted(words)))])


_RECALLED = st.builds(_recalled, _SEQ, st.sets(_WORD, max_size=3))
_ITEMS = st.one_of(
    st.tuples(st.sampled_from(("b", "w")), _SHA256, st.sampled_from(("system", "user", "assistant", "tool"))),
    st.tuples(st.sampled_from(("s", "st", "sb", "j", "jt", "jb")), _SEQ, _SHA256),
    st.tuples(st.sampled_from(("m", "mt", "mb", "u", "c", "ct", "cb")), _SEQ, _SEQ),
    _RECALLED,
)
_REFS = st.fixed_dictionaries(
    {
        "items": st.lists(_ITEMS.map(list)),
        "tools": st.none() | _SHA256,
        "regions": st.lists(st.tuples(st.sampled_from(REGIONS), _SEQ).map(list), min_size=1),
    }
)


@given(_REFS)
def test_references_come_back_as_they_were_made(refs: JsonObject) -> None:
    assert whole_refs(orjson.loads(orjson.dumps(short_refs(refs)))) == refs


def test_references_that_are_stored_as_json_are_as_they_are() -> None:
    stored: list[Any] = [None, {"items": [["m", 1, 4]], "tools": None}]
    assert list(map(whole_refs, stored)) == stored
