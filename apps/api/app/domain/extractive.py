"""A summary made of the conversation's own sentences: pure, deterministic, and without a language model.

Statements are weighted by their information for their length: names, numbers, dates, identifiers, rare words, and cues
that something was decided, demanded, asked or promised. Items of the previous summary are carried over into a part of
the space, demands and exact values first, until a message restates or finishes them. A near-duplicate of a chosen
statement adds only its source (Carbonell and Goldstein 1998, maximal marginal relevance, in its simplest form).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain, count
from math import log
from typing import Final, NamedTuple

from app.domain import cues
from app.domain.frozen import frozen
from app.domain.lasting import (
    OPEN_KINDS,
    PlacedSentence,
    SourceId,
    Taken,
    in_time_order,
    is_lasting,
    is_task,
    item_of,
    lasting,
    placed,
    stands,
    telling_words,
    unfinished,
    without_replaced,
)
from app.domain.sentences import ReadSentence, Sentence, may_finish, proposes_only, read_lasting, read_sentence
from app.domain.statements import statements
from app.domain.types import SummaryBody, SummaryItem, SummaryList

_LONGEST_KEPT_CHARS: Final = 32_768
_TEXT_SHARE: Final = 0.2
"""Share of the space for the summary's text; up to half of it may be text of the previous summary."""
_CARRIED_SHARE: Final = 0.5
"""Largest share of the items' space for items of the previous summary."""
_STANDING_SHARE: Final = 0.7
"""The same if it is needed for demands, exact values and decisions (`stands`)."""
_SHARES: Final[dict[SummaryList, float]] = {
    "decisions": 0.22,
    "open_questions": 0.12,
    "action_items": 0.13,
    "key_facts": 0.53,
}
"""Each kind's share of the space for new items. What a kind does not use is added to the next."""
_FOCUS_VALUE: Final = 3.0
_VALUE_OF_KIND: Final[Mapping[SummaryList, float]] = {"decisions": 2.0, "open_questions": 2.0}
_USERS_WEIGHT, _TOOLS_WEIGHT, _ANSWERED_WEIGHT = 1.3, 0.4, 0.1
_LEAST_WORTH: Final = 1.0
"""Least worth of a sentence: one with less says nothing that a reader would miss."""
_TELLING_SIGNALS: Final = 0.75
"""Without a goal, a summary begins with a fact with fewer signals than this: one with more is cited as an item."""
_SOURCE: Final = 2**20
"""Positions of a message's statements: more than a message has."""
_BEFORE: Final = 2**40  # subtracted from positions of items that are carried over, to precede everything new
_LEAST_CARRIED_WORTH: Final = 0.6
"""Least worth to carry over an item that is not open. One without a number, identifier, demand or two names is not."""


class Reading(NamedTuple):
    """Two functions: one reads the statements of a text that have words, the other reads a single statement."""

    statements: Callable[[str], Sequence[Sentence]]
    statement: ReadSentence


def _read_statements(text: str, read: ReadSentence) -> list[Sentence]:
    return [sentence for sentence in map(read, statements(text)) if sentence.words]


READING: Final = Reading(partial(_read_statements, read=read_sentence), read_sentence)


def kept_reading(texts: int, sentences: int) -> Reading:
    """`READING` with caches of this many texts and sentences, for callers that read the same ones repeatedly. Long
    texts are not cached: their sentences take nine times their size."""
    statement = lru_cache(sentences)(read_sentence)
    read_text = partial(_read_statements, read=statement)
    kept_text = lru_cache(texts)(read_text)

    def read(text: str) -> Sequence[Sentence]:
        return kept_text(text) if len(text) <= _LONGEST_KEPT_CHARS else read_text(text)

    return Reading(read, statement)


class SourceText(NamedTuple):
    """A message's text. `role` is `user`, `assistant` or `tool`."""

    id: SourceId
    role: str
    text: str


@frozen(slots=False)
class Material:
    """The material of an extract, best first: `new` statements, the items of the previous summary that are still valid
    (`carried`), and that summary's text, or an empty one, which `read` reads."""

    new: Sequence[PlacedSentence]
    carried: Sequence[PlacedSentence] = ()
    text_before: str = ""
    read: Reading = READING

    @cached_property
    def goals(self) -> Sequence[PlacedSentence]:
        """Those of `new` in which the user says what is wanted, or else those with which a summary can begin."""
        goals = [unit for unit in self.new if unit.role == "user" and _is_goal(unit)]
        if goals or self.text_before:
            return goals
        facts = [unit for unit in self.new if unit.kind == "key_facts" and not unit.sentence.standing]
        return [unit for unit in facts if unit.sentence.signals < _TELLING_SIGNALS]

    @cached_property
    def carried_text(self) -> Sequence[PlacedSentence]:
        """The lines of the previous summary's text, best first."""
        lines = enumerate(self.text_before.split("\n"))
        return sorted([unit for at, line in lines if (unit := _of_before(at, line, self.read))], key=_best_first)

    def within(self, max_chars: int) -> SummaryBody:
        """The best extract with at most `max_chars` characters of text in all its parts, each in time order."""
        taken = Taken()
        room = max_chars * _TEXT_SHARE
        old_chars = min(room / 2, sum(len(unit.text) + 1 for unit in self.carried_text))
        text, room = _choose(self.goals, room - old_chars, taken, joint_chars=1)
        text_room = room + old_chars - bool(text)
        room = max_chars * (1 - _TEXT_SHARE)
        standing_chars = sum(len(unit.text) for unit in self.carried if stands(unit))
        carried_chars = min(room * _CARRIED_SHARE, sum(len(unit.text) for unit in self.carried))
        carried_chars = max(carried_chars, min(room * _STANDING_SHARE, standing_chars))
        chosen, spare = self._new_items(room - carried_chars, taken)
        carried, spare = _choose(self.carried, carried_chars + spare, taken)
        old_text, text_room = _choose(self.carried_text, text_room, taken, joint_chars=1)
        if not old_text and not text:
            text, _ = _choose(self.new, spare + text_room, taken, joint_chars=1)
        lines = "\n".join(unit.text for unit in (*old_text, *text)) or self._beginning(spare + text_room)
        listed: dict[SummaryList, list[SummaryItem]] = {kind: [] for kind in _SHARES}
        for unit in in_time_order([*carried, *chosen]):
            listed[unit.kind].append(item_of(taken.units[unit.position]))
        return SummaryBody(lines, **{kind: tuple(items) for kind, items in listed.items()})

    def _new_items(self, room: float, taken: Taken) -> tuple[list[PlacedSentence], float]:
        """New items of every kind, and the space that they leave."""
        of_kind: dict[SummaryList, list[PlacedSentence]] = {kind: [] for kind in _SHARES}
        for unit in self.new:
            of_kind[unit.kind].append(unit)
        stated = [unit for unit in self.new if unit.role == "user" and unit.sentence.standing]
        chosen, room = _choose(stated, room, taken)
        spare = 0.0
        for kind, share in _SHARES.items():
            units, spare = _choose(of_kind[kind], room * share + spare, taken)
            chosen += units
        left_over, spare = _choose(self.new, spare, taken)
        return [*chosen, *left_over], spare

    def _beginning(self, room_chars: float) -> str:
        """As much as fits of the best sentence, for a space without a whole one, so that the text is not empty."""
        best = next(iter((*self.new, *self.carried_text, *self.carried)), None)
        return best.text[: int(max(0, room_chars))] if best else ""


def gather(
    sources: Sequence[SourceText],
    *,
    context: Sequence[SourceText] = (),
    focus: str = "",
    previous: SummaryBody | None = None,
    read: Reading = READING,
) -> Material:
    """The material from which an extract of `sources` is chosen, in the words of each source.

    `context` are later messages that are not summarized; they only show which questions have been answered. Sentences
    with words of `focus` have more weight. The time is about linear in the number of characters.
    """
    units, others = _units(sources, context, read, focus)
    new = sorted(without_replaced(units), key=_best_first)
    if previous is None:
        return Material(new)
    closing = (unit for unit in others if unit.sentence.cues & (cues.FINISHES | cues.LIFTS))
    carried = unfinished(_carried(previous, read.statement), [*new, *closing])
    return Material(new, sorted(carried, key=_standing_first), previous.summary_text, read)


def lasting_among(
    sources: Sequence[SourceText], previous: SummaryBody | None, read: ReadSentence
) -> list[PlacedSentence]:
    """What has to outlast a summary of the sources, in them and in the previous summary, newest first (`lasting`). Of
    messages that users did not write, only those are read that may close something."""
    answered_before = _last_answer(sources, ())
    users = [(at, source) for at, source in enumerate(sources) if source.role == "user"]
    others = [(at, source) for at, source in enumerate(sources) if source.role != "user"]

    def read_by(reading: Callable[[str], Sentence | None], which: Iterable[tuple[int, SourceText]]) -> None:
        for at, source in which:
            for place, sentence in enumerate(map(reading, statements(source.text))):
                if sentence is not None and sentence.words:
                    kind = _kind_of(sentence, source.role, is_answered=at < answered_before)
                    sentences.append(placed(at * _SOURCE + place, (source.id,), source.role, sentence, kind, 0.0))

    sentences: list[PlacedSentence] = []
    read_by(read_lasting, users)
    units = [*filter(is_lasting, [*(_carried(previous, read) if previous else ()), *sentences])]
    open_kinds = {unit.kind for unit in units} & OPEN_KINDS  # what users did not write closes nothing else
    if "open_questions" in open_kinds:
        read_by(read_sentence, others)
    elif open_kinds:
        read_by(read_lasting, ((at, source) for at, source in others if may_finish(source.text)))
    return lasting(units, sentences)


def _best_first(unit: PlacedSentence) -> tuple[int, float, int]:
    """Sort key: the user's demands are first, then the user's exact values, then the rest by density."""
    return -unit.sentence.standing if unit.role == "user" else 0, -unit.density, unit.position


def _standing_first(unit: PlacedSentence) -> tuple[int, bool, float, int]:
    """Sort key: standing decisions, then demands and values, oldest first, as new ones keep coming; tasks; others."""
    lasts = stands(unit)
    rank = 0 if lasts else 1 if is_task(unit) else 2
    return rank, unit.kind != "decisions", 0.0 if lasts else -unit.density, unit.position


def _is_goal(unit: PlacedSentence) -> bool:
    sentence = unit.sentence
    if not sentence.cues & cues.WANTS or sentence.kind == "open_questions" or sentence.leans or sentence.standing:
        return False
    return cues.GOAL.search(cues.plain(sentence.text)) is not None


def _carried(previous: SummaryBody, read: ReadSentence) -> list[PlacedSentence]:
    """The items of the previous summary; their positions precede those of everything new."""
    found: list[PlacedSentence] = []
    positions = count(-_BEFORE)
    for kind, items in previous.lists.items():
        for item, position in zip(items, positions, strict=False):
            sentence = read(item.text)
            worth = (sentence.value + _VALUE_OF_KIND.get(kind, 0.0)) * _weight(sentence, "", kind)
            if worth >= _LEAST_CARRIED_WORTH or kind in OPEN_KINDS:
                found.append(placed(position, item.message_ids, "", sentence, kind, worth))
    return found


def _of_before(at: int, line: str, read: Reading) -> PlacedSentence | None:
    sentence = read.statement(line)
    return placed(at - 2 * _BEFORE, (), "", sentence, "key_facts", 0.5 + sentence.signals) if sentence.words else None


def _units(
    sources: Sequence[SourceText], context: Sequence[SourceText], read: Reading, focus: str
) -> tuple[list[PlacedSentence], list[PlacedSentence]]:
    """The sentences of the sources, weighted by their information; and those that have next to none, unless they have
    to outlast summaries: they are not listed, but may close something."""
    answered_before = _last_answer(sources, context)
    found = [(at, source, sentence) for at, source in enumerate(sources) for sentence in read.statements(source.text)]
    seen_in = Counter(chain.from_iterable([sentence.words for _, _, sentence in found]))
    total = len(found) + 1
    most = max(1.0, log(total))
    # Each word weighs more the fewer sentences have it; a word of one sentence alone is as likely noise as news.
    weight_of = {seen: log(total / seen) for seen in set(seen_in.values())}
    rarity_of = {
        word: weight_of[seen] if len(word) > 2 or not word.isascii() else 0.0 for word, seen in seen_in.items()
    }.__getitem__
    wanted = frozenset(telling_words(read.statement(focus)))
    units, others = list[PlacedSentence](), list[PlacedSentence]()
    for place, (at, source, sentence) in enumerate(found):
        kind = _kind_of(sentence, source.role, is_answered=at < answered_before)
        words = sentence.words
        worth = 0.25 * sum(map(rarity_of, words)) / most + (sentence.value + _VALUE_OF_KIND.get(kind, 0.0))
        if wanted and not wanted.isdisjoint(words):
            worth += _FOCUS_VALUE
        worth *= _weight(sentence, source.role, kind)
        unit = placed(place, (source.id,), source.role, sentence, kind, worth)
        tells = worth >= _LEAST_WORTH or not sentence.text.isascii() or len(found) == 1 or is_lasting(unit)
        (units if tells else others).append(unit)
    return units, others


def _kind_of(sentence: Sentence, role: str, *, is_answered: bool) -> SummaryList:
    if role == "tool" or (sentence.kind == "open_questions" and (is_answered or role != "user")):
        return "key_facts"
    if sentence.kind == "decisions" and role == "assistant" and proposes_only(sentence.text):
        return "key_facts"
    return sentence.kind


def _weight(sentence: Sentence, role: str, kind: SummaryList) -> float:
    weight = _TOOLS_WEIGHT if role == "tool" else _USERS_WEIGHT if role == "user" else 1.0
    if sentence.kind == "open_questions" and kind == "key_facts":
        weight *= _ANSWERED_WEIGHT  # its answer is among the sentences and says more
    return weight * sentence.weight


def _last_answer(sources: Sequence[SourceText], context: Sequence[SourceText]) -> int:
    """Index of the assistant's last answer in the sources followed by the context, else 0; later questions are open."""
    everything = [*sources, *context]
    for index in range(len(everything) - 1, -1, -1):
        source = everything[index]
        if source.role == "assistant" and source.text.strip() and not cues.NO_ANSWER.search(cues.plain(source.text)):
            return index
    return 0


def _choose(
    best_first: Iterable[PlacedSentence], room_chars: float, taken: Taken, joint_chars: int = 0
) -> tuple[list[PlacedSentence], float]:
    """The best units that fit into the space and say something new, in time order, and the space left."""
    chosen: list[PlacedSentence] = []
    for unit in best_first:
        cost = len(unit.sentence.text) + (joint_chars if chosen else 0)
        if cost > room_chars or unit.position in taken.units:
            continue
        if (same := taken.like(unit)) is not None:
            taken.add_sources(same, unit)
            continue
        taken.add(unit)
        chosen.append(unit)
        room_chars -= cost
    return in_time_order(chosen), room_chars
