"""What has to outlast summaries until it is replaced or closed: demands, exact values, decisions and open tasks.

A statement is recognized by its words alone, so the same rule applies to an extract, to a model's summary and to one
that a person has edited.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from app.domain import cues
from app.domain.frozen import frozen
from app.domain.sentences import DEMAND, ReadSentence, Sentence, asks, demands
from app.domain.types import MessageId, SummaryItem, SummaryList

OPEN_KINDS: Final = frozenset[SummaryList](("open_questions", "action_items"))
_BASE_CHARS: Final = 120
"""Characters of an item besides its text. A larger number favours longer sentences."""
_MOST_LASTING: Final = 100
"""Most new and most carried statements that are looked for in a summary: many more than it has space for."""
_RESTATED_WORDS_RATIO: Final = 0.6
_MOST_SOURCES_OF_AN_ITEM: Final = 4
_MOST_PLACES_OF_A_WORD: Final = 16
_SAME_WORDS_RATIO: Final = 0.7
_CONTAINED_WORDS_RATIO: Final = 0.85
_FINISHED_WORDS_RATIO: Final = 0.4
_LONGEST_PLAIN_WORD: Final = 3
"""Words up to this length are mostly articles and prepositions, which every sentence has."""
_OF_A_SUMMARY: Final = -(2**50)  # the position of a summary's first statement, which precedes everything else
_EXACT_WORD: Final = re.compile(r"\d|[\w][_@/.:][\w]")
_QUOTED: Final = re.compile(r"`[^`\n]+`")
_CHANGING: Final = frozenset((
    "actually", "are", "at", "been", "changed", "correction", "currently", "has", "have", "i", "instead", "is", "moved",
    "now", "sorry", "switched", "to", "was", "we",
))  # fmt: skip
"""Words that only say that a value is, or has become, what it is: "the port is 8443", "the port is now 9443"."""
_COURTESY: Final = frozenset(("please", "pls", "thanks"))
_MAY_LAST: Final = frozenset(("user", ""))
"""Roles of statements that may outlast summaries: the user's own, and those of the previous summary."""

SourceId: TypeAlias = str | UUID  # the caller's own ids of its messages


class PlacedSentence(NamedTuple):
    """A sentence and its position in the conversation, which is below zero if it is carried over from a summary.
    `density` is its worth divided by its length."""

    position: int
    source_ids: tuple[SourceId, ...]
    role: str
    sentence: Sentence
    kind: SummaryList
    density: float

    @property
    def text(self) -> str:
        return self.sentence.text


def placed(
    position: int, source_ids: tuple[SourceId, ...], role: str, sentence: Sentence, kind: SummaryList, worth: float
) -> PlacedSentence:
    density = worth / (len(sentence.text) + _BASE_CHARS)
    return PlacedSentence(position, source_ids, role, sentence, kind, density)


def item_of(unit: PlacedSentence, *, kept: bool = False) -> SummaryItem:
    """The sentence as an item of a summary, whose ids are the caller's own."""
    return SummaryItem(unit.text, cast("tuple[MessageId, ...]", unit.source_ids), kept)


def in_time_order(units: Iterable[PlacedSentence]) -> list[PlacedSentence]:
    return sorted(units, key=attrgetter("position"))


def stands(unit: PlacedSentence) -> bool:
    """Whether the item holds until it is replaced: a demand, an exact value, or a decision unlike "Let's do it!"."""
    decides = unit.kind == "decisions" and unit.sentence.signals > 0 and not unit.sentence.leans
    return unit.sentence.standing > 0 or decides


def unfinished(carried: Sequence[PlacedSentence], new: Iterable[PlacedSentence]) -> list[PlacedSentence]:
    """The carried items without those that a later one of `new` closes, in words that both share: a question that is
    answered, a task that is reported as finished, a demand that the user lifts, a value that the user gives again."""
    open_units = {unit.position: unit for unit in carried if unit.kind in OPEN_KINDS or unit.sentence.standing}
    asked = any([unit.kind == "open_questions" for unit in carried])  # noqa: C419 - a list is faster than a generator
    named_in: defaultdict[str, list[int]] = defaultdict(list)
    least_shared: dict[int, float] = {}
    for position, unit in open_units.items():
        telling = telling_words(unit.sentence)
        least_shared[position] = _FINISHED_WORDS_RATIO * len(telling)
        for word in telling:
            named_in[word].append(position)
    finished: set[int] = set()
    for unit in new:
        sentence = unit.sentence
        if not sentence.cues & cues.FINISHES:
            may_close = sentence.standing or sentence.cues & cues.LIFTS if unit.role == "user" else asked
            if not may_close:
                continue
        places = [named_in[word] for word in sentence.words if word in named_in]
        shared = Counter(chain.from_iterable(places))
        near = [at for at, words in shared.items() if words >= least_shared[at] and at < unit.position]
        if near:
            finished |= _closed_by(unit, [open_units[at] for at in near if at not in finished])
    return [unit for unit in carried if unit.position not in finished]


def _closed_by(unit: PlacedSentence, waiting: Iterable[PlacedSentence]) -> set[int]:
    """The positions of the waiting items, which share words with the unit, that the unit closes."""
    if _only_asks(unit.sentence):
        return set()
    by_user = unit.role == "user"
    possible, lower = unit.sentence.cues, cues.plain(unit.text)
    is_over = bool(possible & cues.FINISHES) and cues.FINISHED.search(lower) and not cues.NOT_FINISHED.search(lower)
    finishes = bool(is_over) and not asks(lower)
    lifts = by_user and bool(possible & cues.LIFTS) and cues.LIFTED.search(lower) is not None
    still_forbids = lifts and cues.NOT_LIFTED.search(lower) is not None
    frame = _frame(unit) if by_user else None
    closed: set[int] = set()
    for waits in waiting:
        forbids = waits.sentence.standing == DEMAND and _forbids(waits.sentence)
        if waits.kind in OPEN_KINDS and not forbids:
            is_closed = finishes or (waits.kind == "open_questions" and not by_user)
        elif waits.sentence.standing == DEMAND:
            is_closed = lifts and not (forbids and still_forbids) and _is_about(unit, waits)
        else:
            is_closed = frame is not None and frame == _frame(waits)
        closed |= {waits.position} if is_closed else set()
    return closed


def _forbids(demand: Sentence) -> bool:
    return not cues.FORBIDDING_WORDS.isdisjoint(demand.words)


def _only_asks(sentence: Sentence) -> bool:
    """Whether it is a question, and not a demand in the form of one ("Can you answer in French from now on?")."""
    return sentence.kind == "open_questions" and cues.ASKED_OF_YOU.search(cues.plain(sentence.text)) is None


def _is_about(unit: PlacedSentence, demand: PlacedSentence) -> bool:
    """Whether the unit contains most of the demand's telling words, and not many others."""
    own, demanded = set(telling_words(unit.sentence)), set(telling_words(demand.sentence))
    shared = len(own & demanded)
    return shared >= _RESTATED_WORDS_RATIO * len(demanded) and shared >= _FINISHED_WORDS_RATIO * len(own)


def _frame(unit: PlacedSentence) -> frozenset[str] | None:
    """The words of a statement besides its exact value: what the value is of; None if it has no value or several."""
    exact = _exact_words(unit)
    about = frozenset(unit.sentence.words) - exact - _CHANGING
    return about if about and unit.sentence.standing and len(exact) == 1 else None


def _exact_words(unit: PlacedSentence) -> frozenset[str]:
    """The numbers, paths, addresses and similar words of a unit."""
    return frozenset(word for word in unit.sentence.words if _EXACT_WORD.search(word))


def telling_words(sentence: Sentence) -> list[str]:
    return [word for word in sentence.words if len(word) > _LONGEST_PLAIN_WORD or not word.isascii()]


def _states_another(unit: PlacedSentence, other: PlacedSentence) -> bool:
    """Whether neither of two sentences with many of the same words replaces the other: both forbid something, or both
    are tasks, in the same words but for courtesy and the one that says what; both are tasks with other exact values; or
    a user gave values of different things in them, or gave in one a value that the other asks about."""
    one, two = unit.sentence, other.sentence
    is_one_word = len({*one.words} - {*two.words} - _COURTESY) == len({*two.words} - {*one.words} - _COURTESY) == 1
    forbidding = cues.FORBIDDING_WORDS.intersection(one.words) if is_one_word else ()
    if forbidding and forbidding.issubset(two.words) and (two.standing == DEMAND or demands(two.text)):
        return True
    if _hands_over(one) and _hands_over(two):
        values, others = _exact_words(unit), _exact_words(other)
        if is_one_word or not (values <= others or others <= values):
            return True
    if not (one.standing and two.standing and _MAY_LAST.issuperset((unit.role, other.role))):
        return False
    return _only_asks(one) != _only_asks(two) or (_has_own_value(one, two) and _has_own_value(two, one))


def _hands_over(sentence: Sentence) -> bool:
    return cues.TASK.search(sentence.text.lower()) is not None


def _has_own_value(one: Sentence, other: Sentence) -> bool:
    """Whether `one` has an exact value, and a word that says what it is of, that `other` lacks."""
    commands = [text.strip("`").lower() for text in _QUOTED.findall(one.text)]
    quoted = set(" ".join(commands).split())
    own = {word for word in one.words if word not in other.words}
    exact = {word for word in own if word in quoted or _EXACT_WORD.search(word)}
    return bool(exact) and not own <= exact | _CHANGING


@frozen
class Taken:
    """The chosen units, indexed by word, so that a near-duplicate is found without comparing with all of them."""

    units: dict[int, PlacedSentence] = field(default_factory=dict[int, PlacedSentence])
    """By position, with the ids of all sources that say the same."""
    by_word: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))

    def like(self, unit: PlacedSentence) -> int | None:
        """The position of a unit that says the same as this one, or None."""
        words = unit.sentence.words
        known = [*filter(None, map(self.by_word.get, words))]
        if not known or len(known) < _SAME_WORDS_RATIO * len(words):
            return None
        candidates = Counter(chain.from_iterable(known))
        if max(candidates.values()) < _SAME_WORDS_RATIO * len(words):
            return None
        for other, shared in candidates.most_common(3):
            near = self.units[other]
            says_it_all = shared >= _CONTAINED_WORDS_RATIO * len(words)
            says_the_same = says_it_all or shared >= _SAME_WORDS_RATIO * len({*words, *near.sentence.words})
            if says_the_same and not _states_another(unit, near):
                return other
        return None

    def add(self, unit: PlacedSentence) -> None:
        self.units[unit.position] = unit
        for of_word in map(self.by_word.__getitem__, unit.sentence.words):
            if len(of_word) < _MOST_PLACES_OF_A_WORD:
                of_word.append(unit.position)

    def add_sources(self, position: int, other: PlacedSentence) -> None:
        """Add the sources of another unit that says the same. A task's are only added to a task, because messages that
        items of other kinds cite are kept in the window."""
        unit = self.units[position]
        if other.kind == "action_items" and unit.kind != "action_items":
            return
        known = tuple(dict.fromkeys((*unit.source_ids, *other.source_ids)))[:_MOST_SOURCES_OF_AN_ITEM]
        self.units[position] = unit._replace(source_ids=known)


def is_lasting(unit: PlacedSentence) -> bool:
    """Whether the statement has to outlast summaries: a user's demand, exact value or task, unless it is in a question
    that has been answered; or an item of the previous summary that stands or is a task."""
    if unit.position < 0:
        return stands(unit) or unit.kind == "action_items"
    if unit.role != "user":
        return False
    is_answered = unit.sentence.kind == "open_questions" and unit.kind != "open_questions"
    return (unit.sentence.standing > 0 and not is_answered) or is_task(unit)


def lasting(units: Sequence[PlacedSentence], sentences: Iterable[PlacedSentence]) -> list[PlacedSentence]:
    """Those of `units` (`is_lasting`, the oldest first) that none of the sentences closes, newest first. At most the
    oldest `_MOST_LASTING` new ones and as many of the previous summary are used."""
    new = [unit for unit in units if unit.position >= 0]
    still = unfinished([*(unit for unit in units if unit.position < 0), *new[:_MOST_LASTING]], sentences)
    carried = [unit for unit in still if unit.position < 0]
    return [*reversed(still[len(carried) :]), *reversed(carried[:_MOST_LASTING])]


def without_replaced(units: Sequence[PlacedSentence]) -> list[PlacedSentence]:
    """The units, given in time order, without demands and exact values of the user that a later one replaces: it says
    nearly the same, in other words."""
    newer, replaced = Taken(), set[int]()
    for unit in reversed(units):
        if unit.role != "user" or not unit.sentence.standing or _only_asks(unit.sentence):
            continue
        same = newer.like(unit)
        if same is None:
            newer.add(unit)
        elif set(unit.sentence.words) != set(newer.units[same].sentence.words):
            replaced.add(unit.position)
    return [unit for unit in units if unit.position not in replaced]


def left_out(
    units: Sequence[PlacedSentence],
    items: Iterable[SummaryItem],
    room: float,
    cost: Callable[[str], float],
    read: ReadSentence,
) -> list[PlacedSentence]:
    """The units, given newest first, that `items` leaves out: the oldest first, tasks last. A newer statement replaces
    an older one of the same. Units use up `room` by their `cost`, also those of `items`."""
    said, newer = Taken(), Taken()
    for at, item in enumerate(items):
        said.add(PlacedSentence(_OF_A_SUMMARY + at, item.message_ids, "", read(item.text), "key_facts", 0.0))
    missing: set[int] = set()
    holding: list[PlacedSentence] = []
    for unit in units:
        same = newer.like(unit)
        if (same is not None and not _opposes(newer.units[same], unit)) or _is_restated(unit, newer):
            continue  # replaced by a newer one
        newer.add(unit)
        holding.append(unit)
        same = said.like(unit)
        if not (same is not None and _says(said.units[same], unit)) and not _is_restated(unit, said):
            missing.add(unit.position)
    found: list[PlacedSentence] = []
    for unit in sorted(holding, key=_lasting_first):
        if (tokens := cost(unit.text)) <= room:
            room -= tokens
            found += [unit] if unit.position in missing else []
    return found


def _lasting_first(unit: PlacedSentence) -> tuple[bool, int]:
    """Sort key: what stands, the oldest first; then tasks, the newest first."""
    lasts = stands(unit)
    return not lasts, unit.position if lasts else -unit.position


def is_task(unit: PlacedSentence) -> bool:
    return unit.kind == "action_items" and _hands_over(unit.sentence)


def _opposes(other: PlacedSentence, unit: PlacedSentence) -> bool:
    """Whether a summary's item forbids what a demand does not forbid, or the reverse, so that it does not stand for the
    demand. A later message of the user may replace it: messages, unlike the items of one summary, follow each other."""
    return (
        other.position < 0 and unit.sentence.standing == DEMAND and _forbids(other.sentence) != _forbids(unit.sentence)
    )


def _is_restated(unit: PlacedSentence, taken: Taken) -> bool:
    """Whether something says the same in other words, with most of its telling words."""
    telling = telling_words(unit.sentence)
    shared = Counter(chain.from_iterable([taken.by_word.get(word, ()) for word in telling]))
    for place, words in shared.most_common(3):
        other = taken.units[place]
        if _states_another(unit, other):
            continue
        cites_it = not set(unit.source_ids).isdisjoint(other.source_ids)
        ratio = _FINISHED_WORDS_RATIO if cites_it else _RESTATED_WORDS_RATIO
        if words >= ratio * len(telling) and _says(other, unit, exactly=True):
            return True
    return False


def _says(other: PlacedSentence, unit: PlacedSentence, *, exactly: bool = False) -> bool:
    """Whether `other`, which has the words of `unit`, says the same: a demand is a demand, not for the opposite, and
    numbers, paths and quoted commands are equal, unless `unit` is of the previous summary: its value may be replaced
    (not `exactly`)."""
    if unit.sentence.standing == DEMAND and other.sentence.standing != DEMAND and not demands(other.text):
        return False
    if _opposes(other, unit):
        return False
    if unit.position < 0 and not exactly:
        return True
    has_quoted = all(text in other.text for text in _QUOTED.findall(unit.text))
    return has_quoted and _exact_words(unit) <= set(other.sentence.words)
