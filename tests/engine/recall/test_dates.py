"""Days that a question names: what they resolve to, and that messages of those days are found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import Message, Turn
from app.engine.recall.bm25 import Query, search
from app.engine.recall.dates import NEAR_DAYS, OTHER_MONTHS, date_keys, day_of, day_text
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.ranking import candidates
from tests.engine.histories import History

NOW = datetime(2023, 8, 16, 23, 59, tzinfo=UTC)
"""A Wednesday."""


def _day(iso: str) -> int:
    return date.fromisoformat(iso).toordinal() - date(1970, 1, 1).toordinal()


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("What did she do on 8 May 2023?", "2023-05-08", "2023-05-08"),
        ("and on May 8th, 2023?", "2023-05-08", "2023-05-08"),
        ("on the 5th of June", "2023-06-05", "2023-06-05"),
        ("on 24 December", "2022-12-24", "2022-12-24"),
        ("since 2023-05-08", "2023-05-08", "2023-05-08"),
        ("after 2023-05-08T10:00:00Z", "2023-05-08", "2023-05-08"),
        ("in May", "2023-05-01", "2023-05-31"),
        ("in November?", "2022-11-01", "2022-11-30"),
        ("in March 2022", "2022-03-01", "2022-03-31"),
        ("during 2021", "2021-01-01", "2021-12-31"),
        ("yesterday", "2023-08-15", "2023-08-15"),
        ("two days  ago", "2023-08-14", "2023-08-14"),
        ("a couple of weeks ago", "2023-07-31", "2023-08-06"),
        ("three months ago", "2023-05-01", "2023-05-31"),
        ("last week", "2023-08-07", "2023-08-13"),
        ("the week before last", "2023-07-31", "2023-08-06"),
        ("the month before last", "2023-06-01", "2023-06-30"),
        ("on 12/24/2022", "2022-12-24", "2022-12-24"),
        ("on 24/12/2022", "2022-12-24", "2022-12-24"),
        ("last weekend", "2023-08-12", "2023-08-13"),
        ("last Friday", "2023-08-11", "2023-08-11"),
        ("on Wednesday", "2023-08-09", "2023-08-09"),
        ("this year", "2023-01-01", "2023-12-31"),
        ("on 29 February", "2020-02-29", "2020-02-29"),
        ("on 8 May '21?", "2021-05-08", "2021-05-08"),
        ("on May 8, ’99", "1999-05-08", "1999-05-08"),
        ("in May '21", "2021-05-01", "2021-05-31"),
        ("in '21", "2021-01-01", "2021-12-31"),
        ("on 24/12/21", "2021-12-24", "2021-12-24"),
        ("on 24-12-2021", "2021-12-24", "2021-12-24"),
        ("since 2021/12/24", "2021-12-24", "2021-12-24"),
        ("last August", "2022-08-01", "2022-08-31"),
        ("this August", "2023-08-01", "2023-08-31"),
        ("last July", "2023-07-01", "2023-07-31"),
        ("Was war am 8. Mai?", "2023-05-08", "2023-05-08"),
        ("am 24.12.2022", "2022-12-24", "2022-12-24"),
        ("IM MÄRZ 2022", "2022-03-01", "2022-03-31"),
        ("le 1er février 2023", "2023-02-01", "2023-02-01"),
        ("el 8 de mayo del 2023", "2023-05-08", "2023-05-08"),
        ("en enero", "2023-01-01", "2023-01-31"),
        ("l'8 maggio", "2023-05-08", "2023-05-08"),
        ("em março", "2023-03-01", "2023-03-31"),
        ("op 8 mei", "2023-05-08", "2023-05-08"),
        ("im Jahr 2021", "2021-01-01", "2021-12-31"),
        ("vorgestern", "2023-08-14", "2023-08-14"),
        ("l'altro ieri", "2023-08-14", "2023-08-14"),
        ("la semaine dernière", "2023-08-07", "2023-08-13"),
        ("el mes pasado", "2023-07-01", "2023-07-31"),
        ("vorig jaar", "2022-01-01", "2022-12-31"),
    ],
)
def test_a_day_is_resolved_against_the_day_on_which_it_was_named(asked: str, first: str, last: str) -> None:
    key = date_keys(asked, day_of(NOW))[0]
    assert (key.first_day, key.last_day) == (_day(first), _day(last))


def test_a_date_in_numbers_that_may_begin_with_its_month_or_its_day_names_both_days() -> None:
    keys = date_keys("What was on 08/05/2023?", day_of(NOW))
    days = [key.first_day for key in keys if key.first_day == key.last_day]
    assert days == [_day("2023-08-05"), _day("2023-05-08")]


MONTHS = [f"{date(2021, month, 1):{form}}" for month in range(1, 13) for form in ("%b", "%b.", "%B")]
COUNTS = [
    *("a", "an", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("a couple of", "couple of", "14"),
]


@pytest.mark.parametrize(
    "asked",
    [
        *[f"{month} 2021" for month in MONTHS],
        *[f"{month} the 3rd" for month in MONTHS],
        *[f"{count} {unit} ago" for count in COUNTS for unit in ("day", "weeks", "month", "years")],
        *[f"{word} May" for word in ("in", "during", "of", "since", "by", "until", "last", "this", "early", "late")],
        *[f"{word} 2021" for word in ("in", "during the year", "of", "since")],
        *[f"{which} month" for which in ("last", "past", "previous", "this")],
        *["mid-May", "last Monday", "on Sunday", "this past Tuesday", "the day before yesterday", "yesterday"],
        *[f"{month} 2021" for month in OTHER_MONTHS],
        *NEAR_DAYS,
        *["letzten Monat", "mês passado", "année dernière", "semana pasada", "settimana scorsa", "afgelopen week"],
        *[f"the {unit} before last" for unit in ("week", "weekend", "month", "year")],
        *["last night", "today", "this morning", "this afternoon", "2021-12-31", "31 Dec", "0 days ago"],
    ],
)
def test_a_day_is_found_whatever_its_first_word_is_and_whatever_spaces_surround_it(asked: str) -> None:
    keys = date_keys(asked, day_of(NOW))
    assert keys
    spaced = date_keys("\n So " + asked.upper().replace(" ", " \t\u2003") + " ", day_of(NOW))
    assert [key[1:] for key in spaced] == [key[1:] for key in keys]


@pytest.mark.parametrize(
    "asked",
    [
        *("May I march on?", "on 31 April 2023", "He is one-year-old", "May God bless you", "at 8:15", "999 years ago"),
        *("Was steht hier?", "the moons of Mars", "32.1.2023", "13/32/2023", "8/5.2023", "24/7/365", "version 5.8.23"),
    ],
)
def test_text_that_is_not_a_plausible_date_gives_no_date_keys(asked: str) -> None:
    keys = date_keys(asked, day_of(NOW))
    assert all(key.last_day < 0 for key in keys)


@given(st.text(max_size=200), st.integers(_day("1970-01-01"), _day("8999-12-31")))
def test_any_text_has_a_few_keys_whose_ends_are_in_order(text: str, said_day: int) -> None:
    keys = date_keys(f"{text} on 8 may 2023, last month, {text} 12 years ago", said_day)
    assert len(keys) <= 24
    assert all(key.first_day <= key.last_day for key in keys)
    assert day_text(said_day).split()[2] == str(date.fromordinal(said_day + date(1970, 1, 1).toordinal()).year)


def _indexed(turns: tuple[Turn, ...]) -> Index:
    messages = [message for turn in turns for message in turn.messages]
    return EMPTY.extended(Packed.of(messages), messages[-1].seq)


def _days_before(days: int, text: str, history: History) -> Turn:
    turn = history.turn(("assistant", 12, 1))
    said_at = NOW - timedelta(days=days)
    first, reply = turn.messages
    return replace(turn, messages=(replace(first, content=text, said_at=said_at), replace(reply, said_at=said_at)))


def test_messages_of_the_day_that_is_asked_for_come_first_and_the_log_says_for_which_words() -> None:
    history = History()
    turns = tuple(_days_before(40 - at, f"The pump was checked, entry {at}.", history) for at in range(40))
    index = _indexed(turns)
    asked = "What did the pump do two days ago?"
    found = candidates(index, Query(asked, index.through_seq, day_of(NOW)), 60, 0.05)
    wanted: Message = turns[38].messages[0]
    assert found[0].seqs == (wanted.seq,)
    assert "two days ago" in found[0].matched[0]
    without = candidates(index, Query(asked, index.through_seq), 60, 0.05)
    assert without[0].seqs != (wanted.seq,)


def test_a_day_alone_finds_messages_of_that_day_and_none_without_a_time() -> None:
    history = History()
    turns = tuple(_days_before(30 - at, f"entry {at}", history) for at in range(30))
    hits = search(_indexed(turns), Query("And yesterday?", turns[-1].messages[-1].seq, said_day=day_of(NOW)))
    assert sorted(hits.positions.tolist()) == [58, 59]
    timeless = tuple(
        replace(turn, messages=tuple(replace(each, said_at=None) for each in turn.messages)) for turn in turns
    )
    assert not len(search(_indexed(timeless), Query("And yesterday?", 10_000, said_day=day_of(NOW))).positions)
