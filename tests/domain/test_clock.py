"""Instructions are compared without the dates and times that an application writes into them."""

from __future__ import annotations

from datetime import datetime

import pytest

from app.domain.clock import without_times

_MOMENTS = (
    datetime(2026, 12, 1, 3, 7, 9),
    datetime(2026, 9, 30, 15, 47, 50, 123456),
    datetime(2026, 5, 14, 12, 0, 0),
)
_FORMS = (
    "%c",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%d %H:%M:%S+02:00",
    "%Y-%m-%d (%A) %H:%M UTC",
    "%Y/%m/%d %H:%M:%S (%a)",
    "%d.%m.%Y %H:%M",
    "%d-%b-%Y",
    "%m/%d/%y",
    "%m/%d/%Y, %I:%M:%S %p",
    "%I:%M\u202f%p",
    "%I %p",
    "%A",
    "%A, %B %d, %Y",
    "%B %d, %Y at %I:%M %p",
    "%B %dth, %Y",
    "%d of %B %Y",
    "%d %b %Y",
    "%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%Y年%m月%d日 %H时%M分%S秒",
    "**%Y-%m-%d**",
    "<date>%Y-%m-%d</date>",
    '{"now":"%Y-%m-%dT%H:%M:%S"}',
)


@pytest.mark.parametrize("form", _FORMS)
def test_a_clock_leaves_whatever_its_form(form: str) -> None:
    texts = {f"You help.\nToday is {moment.strftime(form)}. Be kind." for moment in _MOMENTS}
    assert len(texts) == 3
    assert len(set(map(without_times, texts))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Heute ist Dienstag, 1. Dezember 2026, 15:17 Uhr.", "Heute ist Mittwoch, 30. September 2026, 09:01 Uhr."),
        ("Nous sommes le mardi 1er décembre 2026.", "Nous sommes le mercredi 30 septembre 2026."),
        ("Hoy es martes, 1 de diciembre de 2026.", "Hoy es jueves, 14 de mayo de 2026."),
        ("今天是2026年12月1日星期二 下午3:17", "今天是2026年9月30日星期三 上午11:17"),
        ("오늘은 2026년 12월 1일 화요일 오후 3:17", "오늘은 2026년 9월 30일 수요일 오전 11:17"),
    ],
)
def test_it_leaves_in_other_languages(one: str, other: str) -> None:
    assert without_times(one) == without_times(other)


@pytest.mark.parametrize(
    "text",
    [
        "You serve customer 1017 of desk 7, tier 3, at 10.50 a day.",
        "You are version 4.1.\n\n  - Answer in May.\n  - Keep  blanks.",
        "Call 0301234567 in 2026.",
        "Ünïcode: 日本語で答えてください。",
        "",
    ],
)
def test_what_is_no_time_stays(text: str) -> None:
    assert without_times(text) == text


@pytest.mark.parametrize("word", ["1017", "1018", "Ada", "Bob", "7", "8"])
def test_people_and_numbers_are_told_apart_beside_a_clock(word: str) -> None:
    assert word in without_times(f"You serve {word}. It is 2026-12-01, 15:17. ({word})")
