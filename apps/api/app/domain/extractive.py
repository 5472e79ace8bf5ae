"""A summary made of the conversation's own sentences: pure, deterministic, and no language model.

Sentences are weighed by what they carry for their length: names, numbers, dates, identifiers, words that are rare in
the conversation, and cues that something was decided, demanded, asked or promised. The cues are English; the rest
works on any script. After extractive summarization by density with a redundancy check (Carbonell and Goldstein 1998,
maximal marginal relevance, in its simplest form: a near-duplicate of what was chosen adds only its source).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import log
from typing import Final, Literal, TypeAlias

SummaryList: TypeAlias = Literal["key_facts", "open_questions", "decisions", "action_items"]

_SHARES: Final[dict[SummaryList, float]] = {
    "decisions": 0.20,
    "open_questions": 0.12,
    "action_items": 0.13,
    "key_facts": 0.30,
}
"""Of the room, each kind's own; what is left goes to the summary's text. What a kind leaves flows on to the next."""
_LONGEST_UNIT_CHARS: Final = 320
_SHORTEST_UNIT_CHARS: Final = 12
_MOST_SOURCES_OF_AN_ITEM: Final = 4
_SAME_WORDS_RATIO: Final = 0.7

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")
_PLAIN_SENTENCE_END: Final = re.compile(
    r"""[\s"')\]](?:(?<=[.!?][\s"')\]])(?:(?<=\s)\s*|["')\]]*\s+)|(?<=\n)\n*)""",
)
"""The same of ASCII text. Beginning with a set of characters, it is searched for several times as fast."""
_CLAUSE_END: Final = re.compile(r"[;,:、，；)]\s*|\s+[-–—]\s+")
_WORD: Final = re.compile(r"\w+(?:[-'’./:@]\w+)*")
_NUMBER: Final = re.compile(r"\d")
_IDENTIFIER: Final = re.compile(
    r"`[^`]+`|\w+_\w+|\b[a-z]+[A-Z]\w*|\w+\(\)|\w+@\w+\.\w+|https?://|(?:/[\w.-]+){2,}|\b[A-Z]{2,}-?\d*\b"
)
_NAME: Final = re.compile(r" (?<=[\w,;:] )[^\W\d_a-z]\w+")
_DECISION: Final = re.compile(
    r"\b(?:we|i|they)(?:'ve| have)? (?:decided|agreed|chose|settled)\b|\bdecision\b|\bdecided (?:to|on|that)\b"
    r"|\bagreed\b|\blet'?s (?:use|go|keep|stick|make|do|take|switch)\b|\bgo(?:ing)? with\b|\bsettled? on\b"
    r"|\bwe(?:'ll| will) use\b",
    re.IGNORECASE,
)
_CONSTRAINT: Final = re.compile(
    r"\b(?:always|never|must(?:n't)?|required?|only|at most|at least|no more than|don't|do not|cannot|can't|prefers?"
    r"|budget|deadline|allergic|important|remember|note that)\b",
    re.IGNORECASE,
)
_ACTION: Final = re.compile(
    r"\bI(?:'ll| will)\b|\bto-?do\b|\bnext(?: step|,|:)|\baction item|\bneeds? to\b|\bremind\b|\bfollow up\b"
    r"|\bwe(?:'ll| will| should)\b",
    re.IGNORECASE,
)
_MAY_DECIDE: Final = ("decid", "decis", "agreed", "chose", "settle", "let", "with", "use")
_MAY_DEMAND: Final = (
    "always", "never", "must", "requir", "only", "at most", "at least", "no more", "don't", "do not", "cannot", "can't",
    "prefer", "budget", "deadline", "allergic", "important", "remember", "note that",
)  # fmt: skip
_MAY_ACT: Final = ("'ll", "will", "should", "todo", "to-do", "next", "action", "need", "remind", "follow")
"""One of these is in every plain ASCII text that the expression of the same cue finds, in lower case: looking for them
is much cheaper than the expression."""
_MAY_IDENTIFY: Final = ("_", "`", "@", "/", "()")
_CAPITAL_INSIDE: Final = re.compile(r"[A-Z](?<=[A-Za-z][A-Z])")
_NO_ANSWER: Final = re.compile(
    r"\b(?:don't know|do not know|not sure|can(?:'t|not) say|let me check|(?:will|'ll) check|find out|get back to)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A message's text. `role` is `user`, `assistant` or `tool`."""

    id: str
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ExtractItem:
    """Words of the conversation, and the ids of the sources they stand in."""

    text: str
    source_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extract:
    """The summary's parts, each in time order."""

    summary_text: str
    key_facts: tuple[ExtractItem, ...]
    open_questions: tuple[ExtractItem, ...]
    decisions: tuple[ExtractItem, ...]
    action_items: tuple[ExtractItem, ...]


@dataclass(slots=True, eq=False)
class _Unit:
    """A sentence or clause. `position` is its place in the whole conversation.

    `words` keep the order of the text: a set's order differs from process to process, and what is summed or tied in
    that order would too.
    """

    position: int
    source: SourceText
    text: str
    words: KeysView[str]
    kind: SummaryList
    density: float = 0.0
    sources: list[str] = field(default_factory=list[str])


def extract(sources: Sequence[SourceText], *, max_chars: int, context: Sequence[SourceText] = ()) -> Extract:
    """Chooses what is worth keeping of `sources`, in at most `max_chars` characters of text over all parts.

    Every text is verbatim, only a part of a sentence where the whole is long. `context` are later messages that are
    not summarized; they only tell which questions have been answered. Cost is about linear in the characters.
    """
    units = _units(sources, context)
    _weigh(units)
    taken = _Taken()
    best_first = sorted(units, key=lambda unit: (-unit.density, unit.position))
    chosen: dict[SummaryList, list[_Unit]] = {}
    facts = [unit for unit in best_first if unit.kind == "key_facts"]
    # The text chooses first, among what is no item of a kind of its own, and leaves half of it to the facts.
    text_room = min(max_chars * (1.0 - sum(_SHARES.values())), sum(len(unit.text) + 1 for unit in facts) / 2)
    text_units, _ = _choose(facts, text_room, taken, joint_chars=1)
    spare = max_chars * (1.0 - sum(_SHARES.values())) - _joined_chars(text_units)
    for kind, share in _SHARES.items():
        of_kind = [unit for unit in best_first if unit.kind == kind]
        chosen[kind], spare = _choose(of_kind, max_chars * share + spare, taken)
    if not text_units:
        text_units, spare = _choose(best_first, spare, taken, joint_chars=1)
    text = _joined(text_units) or _beginning(units, spare)
    return Extract(summary_text=text, **{kind: _items(of) for kind, of in chosen.items()})


def condense(text: str, max_chars: int) -> str:
    """The densest sentences of `text`, verbatim, in their order, a line each, in at most `max_chars` characters."""
    if len(text) <= max_chars:
        return text
    units = _units([SourceText("", "summary", text)], ())
    _weigh(units)
    best_first = sorted(units, key=lambda unit: (-unit.density, unit.position))
    chosen, _ = _choose(best_first, max_chars, _Taken(), joint_chars=1)
    return _joined(chosen)


def demands(text: str) -> bool:
    """Whether the text says what must always, never or only be so, as far as the English cues tell."""
    return _finds(_CONSTRAINT, _MAY_DEMAND, text)


def _finds(cue: re.Pattern[str], one_of: Sequence[str], text: str) -> bool:
    """Whether the cue is in the text; `one_of` are what it can not be in a plain text without."""
    if text.isascii():
        lower = text.lower()
        if not any([part in lower for part in one_of]):  # noqa: C419 - a list is faster than a generator here
            return False
    return cue.search(text) is not None


def _joined(units: Sequence[_Unit]) -> str:
    return "\n".join(unit.text for unit in units)


def _joined_chars(units: Sequence[_Unit]) -> int:
    return sum(len(unit.text) + 1 for unit in units) - bool(units)


def _beginning(units: Sequence[_Unit], room_chars: float) -> str:
    """For a room in which no whole sentence is left over: as much as fits of the best, so that no text is empty."""
    best = max(units, key=lambda unit: unit.density, default=None)
    return best.text[: int(max(0, room_chars))] if best else ""


def _units(sources: Sequence[SourceText], context: Sequence[SourceText]) -> list[_Unit]:
    answered_before = _last_answer(sources, context)
    units: list[_Unit] = []
    for index, source in enumerate(sources):
        for text in _sentences(source.text):
            if text.isascii():
                words = dict.fromkeys(_WORD.findall(text.lower())).keys()
            else:
                words = dict.fromkeys(word.lower() for word in _WORD.findall(text)).keys()
            if words:
                kind = _kind(source.role, text, is_answered=index < answered_before)
                units.append(_Unit(len(units), source, text, words, kind))
    return units


def _last_answer(sources: Sequence[SourceText], context: Sequence[SourceText]) -> int:
    """Index of the last source that an assistant answered something after; what the user asks later is open."""
    everything = [*sources, *context]
    for index in range(len(everything) - 1, -1, -1):
        source = everything[index]
        if source.role == "assistant" and source.text.strip() and not _NO_ANSWER.search(source.text):
            return index
    return 0


def _sentences(text: str) -> Iterator[str]:
    for sentence in (_PLAIN_SENTENCE_END if text.isascii() else _SENTENCE_END).split(text):
        for piece in _short_pieces(sentence.strip()):
            if len(piece) >= _SHORTEST_UNIT_CHARS or not piece.isascii():
                yield piece


def _short_pieces(sentence: str) -> Iterator[str]:
    """A long sentence in clauses of at most the longest unit's length, cut hard where it has none."""
    begin = 0
    while len(sentence) - begin > _LONGEST_UNIT_CHARS:
        ends = [found.end() for found in _CLAUSE_END.finditer(sentence, begin + 40, begin + _LONGEST_UNIT_CHARS)]
        end = ends[-1] if ends else sentence.rfind(" ", begin + 40, begin + _LONGEST_UNIT_CHARS) + 1
        end = end if end > begin else begin + _LONGEST_UNIT_CHARS
        yield sentence[begin:end].strip()
        begin = end
    if begin < len(sentence):
        yield sentence[begin:].strip()


def _kind(role: str, text: str, *, is_answered: bool) -> SummaryList:
    if text.rstrip("\"'”’) ").endswith(("?", "？")):
        return "key_facts" if is_answered or role != "user" else "open_questions"
    if role == "tool":
        return "key_facts"
    if _finds(_DECISION, _MAY_DECIDE, text):
        return "decisions"
    return "action_items" if _finds(_ACTION, _MAY_ACT, text) else "key_facts"


def _weigh(units: Sequence[_Unit]) -> None:
    """Sets each unit's density: what it carries, for what it costs."""
    seen_in = Counter(chain.from_iterable(unit.words for unit in units))
    total = len(units) + 1
    # Each word weighs more the fewer units have it; a word of one unit alone is as likely noise as news.
    rarity_of = {
        word: log(total / seen) if len(word) > 2 or not word.isascii() else 0.0 for word, seen in seen_in.items()
    }
    for unit in units:
        rarity = sum(map(rarity_of.__getitem__, unit.words))
        value = 0.25 * rarity / max(1.0, log(total)) + _signals(unit.text)
        if unit.kind in {"decisions", "open_questions"}:
            value += 2.0
        if unit.source.role == "tool":
            value *= 0.5
        elif unit.kind == "key_facts" and unit.text.endswith(("?", "？")):
            value *= 0.3  # its answer is there, and says more
        if len(unit.words) < 4 and unit.text.isascii():
            value *= 0.5  # thanks, greetings, agreement
        unit.density = value / (len(unit.text) + 40)


def _signals(text: str) -> float:
    value = 1.5 * min(3, len(_NUMBER.findall(text))) / 3
    if not text.isascii() or any([part in text for part in _MAY_IDENTIFY]) or _CAPITAL_INSIDE.search(text):  # noqa: C419
        value += 1.5 * len(list(islice(_IDENTIFIER.finditer(text), 2))) / 2
    value += 1.5 * min(2, len(_NAME.findall(text))) / 2
    return value + (2.0 if demands(text) else 0.0)


class _Taken:
    """What has been chosen, findable by word, so that a near-duplicate is found without comparing with everything."""

    def __init__(self) -> None:
        self._by_word: dict[str, list[_Unit]] = {}

    def like(self, unit: _Unit) -> _Unit | None:
        found = [self._by_word[word][:16] for word in unit.words if word in self._by_word]
        if len(found) < _SAME_WORDS_RATIO * len(unit.words):
            return None
        candidates = Counter(chain.from_iterable(found))
        for other, shared in candidates.most_common(3):
            if shared >= _SAME_WORDS_RATIO * len(unit.words | other.words):
                return other
        return None

    def add(self, unit: _Unit) -> None:
        for word in unit.words:
            self._by_word.setdefault(word, []).append(unit)


def _choose(
    best_first: Iterable[_Unit], room_chars: float, taken: _Taken, joint_chars: int = 0
) -> tuple[list[_Unit], float]:
    """The best units that fit into the room and say something new, in time order, and the room left."""
    chosen: list[_Unit] = []
    for unit in best_first:
        if unit.sources:
            continue
        cost = len(unit.text) + (joint_chars if chosen else 0)
        if cost > room_chars:
            continue
        same = taken.like(unit)
        if same is not None:
            if unit.source.id not in same.sources and len(same.sources) < _MOST_SOURCES_OF_AN_ITEM:
                same.sources.append(unit.source.id)
            continue
        unit.sources.append(unit.source.id)
        taken.add(unit)
        chosen.append(unit)
        room_chars -= cost
    return sorted(chosen, key=lambda unit: unit.position), room_chars


def _items(units: Iterable[_Unit]) -> tuple[ExtractItem, ...]:
    return tuple(ExtractItem(unit.text, tuple(unit.sources)) for unit in units)
