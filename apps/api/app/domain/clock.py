"""The names of months and weekdays, and texts without dates and times."""

from __future__ import annotations

import re
from typing import Final

MONTHS: Final = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
_ELSEWHERE: Final = (
    *("januar januari janvier enero gennaio janeiro", "februar februari février fevrier febrero febbraio fevereiro"),
    *("märz marz maart mars marzo março marco", "avril abril aprile", "mai mei mayo maggio maio"),
    *("juni juin junio giugno junho", "juli juillet julio luglio julho", "augustus août aout agosto"),
    *("septembre septiembre setiembre settembre setembro", "oktober octobre octubre ottobre outubro"),
    *("novembre noviembre novembro", "dezember décembre decembre diciembre dicembre dezembro"),
)
OTHER_MONTHS: Final = {name: at for at, names in enumerate(_ELSEWHERE, 1) for name in names.split()}
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_AND_ELSEWHERE: Final = (
    "mon tue tues wed thu thur thurs fri sat sun sept am pm a.m p.m montag dienstag mittwoch donnerstag freitag "  # noqa: SIM905
    "samstag sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunes martes miércoles jueves viernes sábado "
    "domingo lunedì martedì mercoledì giovedì venerdì sabato domenica segunda-feira terça-feira quarta-feira "
    "quinta-feira sexta-feira maandag dinsdag woensdag donderdag vrijdag zaterdag zondag".split()
)
_ENGLISH: Final = [name.lower() for name in MONTHS]
_NAMES: Final = {*_ENGLISH, *[name[:3] for name in _ENGLISH], *OTHER_MONTHS, *WEEKDAYS, *_SHORT_AND_ELSEWHERE}
_DAY: Final = re.compile("[0-3]?[0-9](?:st|nd|rd|th|er|º)?")
_DATE_OR_TIME: Final = re.compile(
    r"""(?:[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4} | [0-9]{1,2}-[a-z]{3}-[0-9]{4})t?
    | [0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:[ap]\.?m)?(?:z|[+-][0-9]{2}:?[0-9]{2})? | [0-9]{1,2}[ap]\.?m
    | [0-9]{1,4}[年月日号时時点點分秒년월일시분초]
    | (?:星期|周)[一二三四五六日天] | [月火水木金土日]曜 | [월화수목금토일]요일 | [上下]午 | 午[前後] | 오[전후]""",
    re.VERBOSE | re.IGNORECASE,
)
_MAY_HAVE_TIME: Final = re.compile(
    r"[0-9](?:[-/.:][0-9]|\s?(?:[年月日号时時点點分秒년월일시분초]|[AaPp]\.?[Mm]\b))|(?:19|20)[0-9]{2}(?![0-9])|day"
)
"""What lines have with a date or time: the words of others are not looked at."""
_MARKS: Final = "()[]{}<>\"'`*,.;:!?"
_LONGEST_WORD: Final = 10_000


def without_times(text: str) -> str:
    """The text without the dates, weekdays and times of day in it ("Tuesday, December 1, 2026, 3:17 PM" leaves the
    year). Time is proportional to the length.

    Some other words and numbers leave too, so the result only serves to compare instructions.
    """
    lines = text.split("\n")
    return "\n".join([" ".join(_kept_words(line)) if _MAY_HAVE_TIME.search(line) else line for line in lines])


def _kept_words(line: str) -> list[str]:
    """Without names and the numbers beside them, and with dates and times cut out of the other words."""
    kept: list[str] = []
    before = ""
    for word in line.split():
        bare = word.strip(_MARKS).lower()
        if bare in _NAMES:
            if kept and kept[-1] in ("of", "de"):
                kept.pop()
            if kept and _DAY.fullmatch(kept[-1].strip(_MARKS)):
                kept.pop()
        elif before not in _NAMES or not _DAY.fullmatch(bare):
            kept.append(_DATE_OR_TIME.sub("", word) if len(word) < _LONGEST_WORD else word)
        before = bare
    return kept
