"""A prompt's references as they are stored: the same come back, in half of the bytes."""

from __future__ import annotations

from random import Random
from typing import Any, cast
from uuid import UUID

import asyncpg
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db.audits import short_refs, whole_refs
from app.domain.recalled import Recalled, recalled_ref
from app.domain.types import REGIONS, JsonObject, MessageId
from app.engine.window.prompt_refs import regions_of

_SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
_SEQ = st.integers(1, 2**40)
_WORD = st.text("aé1'’", min_size=1, max_size=8) | st.sampled_from(("8 May 2023", "last week", "a couple of days ago"))


def _joined(parts: list[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]


def _recalled(seq: int, words: set[str]) -> list[Any]:
    return recalled_ref([Recalled(seq, MessageId(UUID(int=1)), None, 7, 9, tuple(sorted(words)))])


_RECALLED = st.builds(_recalled, _SEQ, st.sets(_WORD, max_size=3))
_ITEMS = st.one_of(
    st.tuples(st.sampled_from(("b", "w")), _SHA256, st.sampled_from(("system", "user", "assistant", "tool"))),
    st.tuples(st.sampled_from(("s", "st", "sb", "j", "jt", "jb")), _SEQ, _SHA256),
    st.tuples(st.sampled_from(("m", "mt", "mb", "u", "c", "ct", "cb", "k", "ht", "eb", "l")), _SEQ, _SEQ),
    _RECALLED,
)
_MANY_RUNS = st.lists(st.tuples(st.sampled_from(("m", "mt", "u", "k")), _SEQ, _SEQ).map(list), min_size=17, max_size=40)
_REFS = st.fixed_dictionaries(
    {
        "items": st.lists(st.one_of(_ITEMS.map(lambda item: [list(item)]), _MANY_RUNS)).map(_joined),
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


def test_each_message_has_its_region_and_none_has_one_if_an_import_has_regions_for_more_or_fewer() -> None:
    refs: JsonObject = {"items": [["m", 1, 3]], "tools": None, "regions": [["system", 1], ["history", 2]]}
    assert regions_of(refs, 3) == ["system", "history", "history"]
    assert [regions_of(refs, messages) for messages in (0, 2, 4)] == [None] * 3
    assert regions_of(refs | {"regions": None}, 3) is None


@pytest.mark.parametrize("dropped", [0.2, 0.5, 0.8])
async def test_a_prompt_of_5000_messages_that_is_pruned_all_over_is_stored_in_less_than_two_kilobytes(
    database_url: str, dropped: float
) -> None:
    random = Random(7)  # noqa: S311 - which messages are dropped
    kept = [seq for seq in range(1, 5001) if random.random() > dropped]
    items: list[list[Any]] = [["b", "ab" * 32, "system"]]
    for seq in kept:
        if items[-1][-1] == seq - 1:
            items[-1][-1] = seq
        else:
            items.append([random.choice(("m", "u")), seq, seq])
    refs: JsonObject = {"items": items, "tools": None, "regions": [["system", 1], ["history", len(kept)]]}
    assert len(items) > 800
    connection = await cast(Any, asyncpg).connect(database_url)
    try:
        await connection.execute("CREATE TEMP TABLE stored (refs jsonb)")
        await connection.execute("INSERT INTO stored VALUES (to_jsonb($1::text))", short_refs(refs))
        row = await connection.fetchrow("SELECT refs #>> '{}' AS refs, pg_column_size(refs) AS bytes FROM stored")
    finally:
        await connection.close()
    assert row["bytes"] < 2_000
    assert whole_refs(row["refs"]) == refs
