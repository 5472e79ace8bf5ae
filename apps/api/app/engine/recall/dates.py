"""The days that a question names: "on 8 May 2023", "last week", "two days ago", as ranges of days.

In German, French, Spanish, Italian, Portuguese and Dutch the usual forms are recognized too: "am 8. Mai", "en mayo",
"gestern", "la semaine dernière". In other languages they are matched as words. Relative days are resolved against the
day on which the question was sent. Days are counted from 1970-01-01, in UTC.
"""

from __future__ import annotations

import re
from calendar import isleap, monthrange
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from string import ascii_lowercase, ascii_uppercase
from typing import Final, NamedTuple

from app.domain.clock import MONTHS, OTHER_MONTHS, WEEKDAYS
from app.domain.types import Message
from app.engine.recall.terms import MOST_ASKED_CHARS

_EPOCH: Final = date(1970, 1, 1).toordinal()
FIRST_INSTANT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_DATES: Final = 8
_SHORT_MONTHS: Final = tuple(name[:3].lower() for name in MONTHS)
_NUMBERS: Final = {
    **{"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8},
    **{"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "a couple of": 2, "couple of": 2},
}
_MONTH: Final = (
    rf"(?:{'|'.join(OTHER_MONTHS)}|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY: Final = r"(?:[12][0-9]|3[01]|0?[1-9])(?:st|nd|rd|th|er|º)?"
_YEAR: Final = r"(?:(?:19|20)[0-9]{2}|['’][0-9]{2})"
_COUNT: Final = r"[0-9]{1,3}|" + "|".join(re.escape(name) for name in sorted(_NUMBERS, key=len, reverse=True))
_LAST: Final = {
    "week": (
        r"(?:letzte|vorige|vergangene)[nr]?\ woche|semaine\ derni[eè]re|semana\ pass?ada|settimana\ scorsa"
        r"|(?:vorige|afgelopen)\ week"
    ),
    "month": (
        r"(?:letzte|vorige|vergangene)[nrms]?\ monat|mois\ dernier|mes\ pasado|m[eê]s\ passado|mese\ scorso"
        r"|(?:vorige|afgelopen)\ maand"
    ),
    "year": (
        r"(?:letzte|vorige|vergangene)[nrms]?\ jahr|ann[eé]e\ derni[eè]re|an\ dernier|a[nñ]o\ pass?ado|anno\ scorso"
        r"|(?:vorig|afgelopen)\ jaar"
    ),
}
NEAR_DAYS: Final = {
    **{"the day before yesterday": 2, "yesterday": 1, "last night": 1, "today": 0, "this morning": 0},
    **{"this afternoon": 0, "vorgestern": 2, "gestern": 1, "heute": 0, "avant-hier": 2, "aujourd'hui": 0},
    **{"anteayer": 2, "ayer": 1, "hoy": 0, "altro ieri": 2, "ieri": 1, "oggi": 0, "anteontem": 2, "ontem": 1},
    **{"hoje": 0, "eergisteren": 2, "gisteren": 1, "vandaag": 0},
}
"""Without the French "hier", which means "here" in German and in Dutch."""
_BEGINNINGS: Final = (
    "a_ abr afg ago alt an_ ann ano ant aou aoû apr aug auj ava avr aye año by_ cou dec dep des dez déc dic dur ear "
    "eer eig ele em_ en_ ene feb fev fév fiv fou gen ges gis giu heu hoj hoy ier im_ in_ jan jui jul jun las lat let "
    "lug maa mag mai mar may mär mei mes mês mid moi nel nin nov oct of_ ogg okt on_ one ont ott out pas pre sei sem "
    "sep set sev sin six ten the_d the_m the_w the_y thi thr tod twe two unt van ver vor yes"
)
"""The beginnings of all dates, with `_` for a blank: most words have none of them, and every alternative takes time."""
_BEGINS: Final = "|".join(
    f"{letter}(?:{'|'.join(each[1:].replace('_', '[ ]') for each in beginnings)})"
    for letter, beginnings in groupby(_BEGINNINGS.split(), itemgetter(0))
)
_DATE: Final = re.compile(
    rf"""\b(?=[0-9]|{_BEGINS})(?:
    (?P<iso>(?:19|20)[0-9]{{2}}[-/][01][0-9][-/][0-3][0-9])(?:t[0-9]{{2}})?
    | (?P<numbers>[0-3]?[0-9](?P<mark>[./-])[0-3]?[0-9](?P=mark)(?:{_YEAR}|(?<=/)[0-9]{{2}}))
    | (?P<day>{_DAY})\.?\ (?:(?:of|de)\ )?(?P<day_month>{_MONTH})(?:,?\ (?:del?\ )?(?P<day_year>{_YEAR}))?
    | (?P<month_first>{_MONTH})\ (?:the\ )?(?P<month_day>{_DAY})(?![0-9:])(?:,?\ (?P<month_year>{_YEAR}))?
    | (?P<month>{_MONTH}),?\ (?:(?:of|del?)\ )?(?P<year_of_month>{_YEAR})
    | (?:(?:in|during|of|since|by|until|last|this|early|late|mid)[\ -](?!mars\b)|(?:im|seit|en|depuis|desde|em)\ )
      (?P<bare_month>{_MONTH})(?!,?\ (?:del?\ )?{_YEAR})
    | (?P<only_month>january|february|april|june|july|august|september|october|november|december)
    | (?:in|during|of|since|im\ jahre?|seit|en|depuis|desde|nel|em)\ (?:the\ year\ )?(?P<year>{_YEAR})(?![-/][0-9])
    | (?P<count>{_COUNT})\ (?P<unit>day|week|month|year)s?\ ago
    | (?P<which>last|past|previous|this)\ (?P<period>week|weekend|month|year)
    | the\ (?P<before_last>week|weekend|month|year)\ before\ last
    | (?:on|last|this\ past)\ (?P<weekday>{"|".join(WEEKDAYS)})
    | (?P<last_week>{_LAST["week"]}) | (?P<last_month>{_LAST["month"]}) | (?P<last_year>{_LAST["year"]})
    | (?P<near>{"|".join(re.escape(name) for name in NEAR_DAYS)})
    )\b""",
    re.VERBOSE | re.ASCII,
)
_SMALL: Final = str.maketrans(ascii_uppercase + "ÄÇÉÈÊÑÛ", ascii_lowercase + "äçéèêñû")


class DateKey(NamedTuple):
    """Days that a text names by `words`, from `first_day` through `last_day`."""

    words: str
    first_day: int
    last_day: int


def day_of(instant: datetime) -> int:
    return (instant - FIRST_INSTANT).days


def day_said(message: Message) -> int | None:
    """The day on which a message was sent, against which the days that it names are resolved; None if unknown."""
    return day_of(message.said_at) if message.said_at else None


def day_text(day: int) -> str:
    """A day as a model is shown it: `8 May 2023`."""
    shown = date.fromordinal(day + _EPOCH)
    return f"{shown.day} {MONTHS[shown.month - 1]} {shown.year}"


def date_keys(text: str, said_day: int) -> tuple[DateKey, ...]:
    """The days that a text names which was sent on `said_day`. A day also gives its month, and a month its year if that
    is named; these count less, as common words do beside a rare one."""
    return _date_keys(text[:MOST_ASKED_CHARS], said_day)


@lru_cache(maxsize=16)  # one message is searched for several times in a turn
def _date_keys(text: str, said_day: int) -> tuple[DateKey, ...]:
    now = date.fromordinal(said_day + _EPOCH)
    found: dict[tuple[int, int], DateKey] = {}
    text = " ".join(text.split())
    # Of the same length as the text. An expression that ignores case takes longer.
    small = text.lower() if text.isascii() else text.translate(_SMALL)
    for match in islice(_DATE.finditer(small), _MOST_DATES):
        for words, first, last in _ranges(match, text[match.start() : match.end()], now):
            key = DateKey(words, first.toordinal() - _EPOCH, last.toordinal() - _EPOCH)
            found.setdefault((key.first_day, key.last_day), key)
    return tuple(found.values())


def _ranges(match: re.Match[str], words: str, now: date) -> Iterator[tuple[str, date, date]]:
    """The days that one expression names, the narrowest range first; nothing for a day that does not exist."""
    named = {name: value for name, value in match.groupdict().items() if value}
    try:
        if "iso" in named:
            yield from _of_day(named["iso"], date.fromisoformat(named["iso"].replace("/", "-")))
        elif "numbers" in named:
            mark = named["mark"]
            first, second, given = named["numbers"].split(mark)
            # Between other marks the months may be the first or the second numbers.
            for month, number in ((second, first),) if mark == "." else ((first, second), (second, first)):
                with suppress(ValueError):
                    yield from _of_day(words, date(_year_of(given, now), int(month), int(number)))
        elif day := named.get("day") or named.get("month_day"):
            month = _month_of(named.get("day_month") or named["month_first"])
            given = named.get("day_year") or named.get("month_year")
            number = int(day.rstrip("stndrheº"))
            year = _year_of(given, now) if given else _latest_year(month, number, now)
            yield from _of_day(words, date(year, month, number))
        elif name := named.get("month") or named.get("bare_month") or named.get("only_month"):
            month, given = _month_of(name), named.get("year_of_month")
            is_over = month < now.month or (month == now.month and not match[0].startswith("last"))
            year = _year_of(given, now) if given else now.year - (not is_over)
            yield words, *_month(year, month)
            if given:
                yield given, date(year, 1, 1), date(year, 12, 31)
        elif "year" in named:
            year = _year_of(named["year"], now)
            yield words, date(year, 1, 1), date(year, 12, 31)
        else:
            yield words, *_relative(named, now)
    except (ValueError, OverflowError):
        return


def _year_of(given: str, now: date) -> int:
    """A year as it is written; of two digits, the one of this century, or of the one before if it is 10 years ahead."""
    digits = given.lstrip("'’")
    year = int(digits) + (now.year // 100 * 100 if len(digits) == 2 else 0)
    return year - 100 if len(digits) == 2 and year > now.year + 10 else year


def _latest_year(month: int, number: int, now: date) -> int:
    """The year of the latest such day up to `now`; of 29 February, a leap year."""
    year = now.year - ((month, number) > (now.month, now.day))
    while (month, number) == (2, 29) and not isleap(year):
        year -= 1
    return year


def _of_day(words: str, day: date) -> Iterator[tuple[str, date, date]]:
    yield words, day, day
    yield f"{MONTHS[day.month - 1]} {day.year}", *_month(day.year, day.month)


def _relative(named: dict[str, str], now: date) -> tuple[date, date]:
    if "near" in named:
        return _back("day", NEAR_DAYS[named["near"]], now)
    if "weekday" in named:
        return _back("day", (now.weekday() - WEEKDAYS.index(named["weekday"])) % 7 or 7, now)
    if "before_last" in named:
        return _back(named["before_last"], 2, now)
    if "unit" in named:
        count = int(named["count"]) if named["count"].isdigit() else _NUMBERS[named["count"]]
        return _back(named["unit"], count, now)
    for unit in _LAST:
        if f"last_{unit}" in named:
            return _back(unit, 1, now)
    return _back(named["period"], 0 if named["which"] == "this" else 1, now)


def _back(unit: str, count: int, now: date) -> tuple[date, date]:
    """The day, or the calendar week, month or year, `count` units back."""
    if unit == "day":
        return now - timedelta(days=count), now - timedelta(days=count)
    if unit in {"week", "weekend"}:
        monday = now - timedelta(days=now.weekday() + 7 * count)
        return monday + timedelta(days=5 * (unit == "weekend")), monday + timedelta(days=6)
    if unit == "month":
        months = now.year * 12 + now.month - 1 - count
        return _month(months // 12, months % 12 + 1)
    return date(now.year - count, 1, 1), date(now.year - count, 12, 31)


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _month_of(name: str) -> int:
    return OTHER_MONTHS.get(name.rstrip(".")) or _SHORT_MONTHS.index(name[:3]) + 1
