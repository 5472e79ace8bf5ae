"""A summary made of the conversation's own sentences: pure, deterministic, and no language model.

Sentences are weighed by what they carry for their length: names, numbers, dates, identifiers, words that are rare in
the conversation, and cues that something was decided, demanded, asked or promised. The cues are English; the rest
works on any script. After extractive summarization by density with a redundancy check (Carbonell and Goldstein 1998,
maximal marginal relevance, in its simplest form: a near-duplicate of what was chosen adds only its source).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from math import log
from string import digits
from typing import Final, NamedTuple, TypeAlias

from app.domain.types import SummaryList

_SHARES: Final[dict[SummaryList, float]] = {
    "decisions": 0.20,
    "open_questions": 0.12,
    "action_items": 0.13,
    "key_facts": 0.30,
}
"""Of the room, each kind's own; what is left goes to the summary's text. What a kind leaves flows on to the next."""
_TEXT_SHARE: Final = 1.0 - sum(_SHARES.values())
_LONGEST_UNIT_CHARS: Final = 320
_SHORTEST_UNIT_CHARS: Final = 12
_MOST_SOURCES_OF_AN_ITEM: Final = 4
_SAME_WORDS_RATIO: Final = 0.7
_FOCUS_VALUE: Final = 3.0
_LONGEST_PLAIN_WORD: Final = 3
"""Shorter words of a focus are articles and prepositions, which every sentence has."""

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")
_PLAIN_SENTENCE_END: Final = re.compile(
    r"""[\s"')\]](?:(?<=[.!?][\s"')\]])(?:(?<=\s)\s*|["')\]]*\s+)|(?<=\n)\n*)""",
)
"""The same of ASCII text. Beginning with a set of characters, it is searched for several times as fast."""
_CLAUSE_END: Final = re.compile(r"[;,:、，；)]\s*|\s+[-–—]\s+")
_WORD: Final = re.compile(r"\w+(?:[-'’./:@]\w+)*")
_PLAIN_WORD: Final = re.compile(r"[a-z0-9_]+(?:[-'./:@][a-z0-9_]+)*")
"""The same of ASCII text in lower case."""
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
is much cheaper than the expression, and looking up whether a word has the last word of one is cheaper still."""
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


class Sentence(NamedTuple):
    """A sentence or clause, with all that does not depend on where it stands.

    `words` are different ones in the order of the text: a set's order differs from process to process, and what is
    summed or tied in that order would too. `kind` is that of a person's words which nobody has answered.
    """

    text: str
    words: tuple[str, ...]
    kind: SummaryList
    signals: float


@dataclass(slots=True, eq=False)
class _Unit:
    """A sentence where it stands. `position` is its place in the whole conversation, `sources` are set once chosen."""

    position: int
    source_id: str
    sentence: Sentence
    kind: SummaryList
    density: float
    sources: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.sentence.text


ReadSentence: TypeAlias = Callable[[str], Sentence]

_DECIDES, _ACTS, _DEMANDS, _NUMBERS, _ANYTHING = 1, 2, 4, 8, 15
_LAST_WORDS: Final = tuple(
    (cue, tuple(part.split()[-1] for part in parts))
    for cue, parts in ((_DECIDES, _MAY_DECIDE), (_ACTS, _MAY_ACT), (_DEMANDS, _MAY_DEMAND), (_NUMBERS, digits))
)


@lru_cache(maxsize=8192)
def _possible(word: str) -> int:
    """Which cues a plain text may have that has the word; the words of conversations are few, and come again."""
    return sum([cue for cue, parts in _LAST_WORDS if any([part in word for part in parts])])  # noqa: C419


def read_sentence(text: str) -> Sentence:
    """What a sentence says by itself. Who reads the same again and again may keep what this gives."""
    possible = _ANYTHING
    if text.isascii():
        words = tuple(dict.fromkeys(_PLAIN_WORD.findall(text.lower())))
        possible = 0
        for word in words:
            possible |= _possible(word)
    else:
        words = tuple(dict.fromkeys([word.lower() for word in _WORD.findall(text)]))
    return Sentence(text, words, _kind(text, possible), _signals(text, possible))


def extract(
    sources: Sequence[SourceText],
    *,
    max_chars: int,
    context: Sequence[SourceText] = (),
    focus: str = "",
    read: ReadSentence = read_sentence,
) -> Extract:
    """Chooses what is worth keeping of `sources`, in at most `max_chars` characters of text over all parts.

    Every text is verbatim, only a part of a sentence where the whole is long. `context` are later messages that are
    not summarized; they only show which questions have been answered. Sentences with words of
    `focus` weigh more. Cost is about linear in the characters.
    """
    units = _units(sources, context, read, focus)
    taken = _Taken()
    best_first = sorted(units, key=_best_first)
    of_kind: dict[SummaryList, list[_Unit]] = {kind: [] for kind in _SHARES}
    for unit in best_first:
        of_kind[unit.kind].append(unit)
    chosen: dict[SummaryList, list[_Unit]] = {}
    # The text chooses first, among what is no item of a kind of its own, and leaves half of it to the facts.
    facts = of_kind["key_facts"]
    text_room = min(max_chars * _TEXT_SHARE, sum(len(unit.text) + 1 for unit in facts) / 2)
    text_units, _ = _choose(facts, text_room, taken, joint_chars=1)
    spare = max_chars * _TEXT_SHARE - _joined_chars(text_units)
    for kind, share in _SHARES.items():
        chosen[kind], spare = _choose(of_kind[kind], max_chars * share + spare, taken)
    if not text_units:
        text_units, spare = _choose(best_first, spare, taken, joint_chars=1)
    text = _joined(text_units) or _beginning(units, spare)
    return Extract(summary_text=text, **{kind: _items(of) for kind, of in chosen.items()})


def condense(text: str, max_chars: int, read: ReadSentence = read_sentence) -> str:
    """The densest sentences of `text`, verbatim, in their order, a line each, in at most `max_chars` characters."""
    if len(text) <= max_chars:
        return text
    units = _units([SourceText("", "summary", text)], (), read)
    chosen, _ = _choose(sorted(units, key=_best_first), max_chars, _Taken(), joint_chars=1)
    return _joined(chosen)


def _best_first(unit: _Unit) -> tuple[float, int]:
    return -unit.density, unit.position


def demands(text: str) -> bool:
    """Whether the text says what must always, never or only be so, as far as the English cues show."""
    if text.isascii():
        lower = text.lower()
        if not any([part in lower for part in _MAY_DEMAND]):  # noqa: C419 - a list is faster than a generator here
            return False
    return _CONSTRAINT.search(text) is not None


def _joined(units: Sequence[_Unit]) -> str:
    return "\n".join(unit.text for unit in units)


def _joined_chars(units: Sequence[_Unit]) -> int:
    return sum(len(unit.text) + 1 for unit in units) - bool(units)


def _beginning(units: Sequence[_Unit], room_chars: float) -> str:
    """For a room in which no whole sentence is left over: as much as fits of the best, so that no text is empty."""
    best = max(units, key=lambda unit: unit.density, default=None)
    return best.text[: int(max(0, room_chars))] if best else ""


def _units(
    sources: Sequence[SourceText], context: Sequence[SourceText], read: ReadSentence, focus: str = ""
) -> list[_Unit]:
    """The sentences of the sources, each weighed by what it carries for what it costs."""
    answered_before = _last_answer(sources, context)
    found = [
        (at, source, sentence)
        for at, source in enumerate(sources)
        for sentence in map(read, _sentences(source.text))
        if sentence.words
    ]
    seen_in = Counter(chain.from_iterable([sentence.words for _, _, sentence in found]))
    total = len(found) + 1
    most = max(1.0, log(total))
    # Each word weighs more the fewer sentences have it; a word of one sentence alone is as likely noise as news.
    weight_of = {seen: log(total / seen) for seen in set(seen_in.values())}
    rarity_of = {
        word: weight_of[seen] if len(word) > 2 or not word.isascii() else 0.0 for word, seen in seen_in.items()
    }.__getitem__
    wanted = frozenset(word for word in read(focus).words if len(word) > _LONGEST_PLAIN_WORD or not word.isascii())
    units: list[_Unit] = []
    for at, source, sentence in found:
        text, words, kind, signals = sentence
        value = 0.25 * sum(map(rarity_of, words)) / most + signals
        asks = kind == "open_questions"
        if source.role == "tool" or (asks and (at < answered_before or source.role != "user")):
            kind = "key_facts"
        if kind in {"decisions", "open_questions"}:
            value += 2.0
        if wanted and not wanted.isdisjoint(words):
            value += _FOCUS_VALUE
        if source.role == "tool":
            value *= 0.5
        elif asks and kind == "key_facts" and text.endswith(("?", "？")):
            value *= 0.3  # its answer is there, and says more
        if len(words) < 4 and text.isascii():
            value *= 0.5  # thanks, greetings, agreement
        units.append(_Unit(len(units), source.id, sentence, kind, value / (len(text) + 40)))
    return units


def _last_answer(sources: Sequence[SourceText], context: Sequence[SourceText]) -> int:
    """Index of the last source that an assistant answered something after; what the user asks later is open."""
    everything = [*sources, *context]
    for index in range(len(everything) - 1, -1, -1):
        source = everything[index]
        if source.role == "assistant" and source.text.strip() and not _NO_ANSWER.search(source.text):
            return index
    return 0


def _sentences(text: str) -> list[str]:
    sentences = (_PLAIN_SENTENCE_END if text.isascii() else _SENTENCE_END).split(text)
    pieces: list[str] = []
    for sentence in map(str.strip, sentences):
        if len(sentence) <= _LONGEST_UNIT_CHARS:
            pieces.append(sentence)
        else:
            pieces += _short_pieces(sentence)
    return [piece for piece in pieces if len(piece) >= _SHORTEST_UNIT_CHARS or not piece.isascii()]


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


def _kind(text: str, possible: int) -> SummaryList:
    if text.rstrip("\"'”’) ").endswith(("?", "？")):
        return "open_questions"
    if possible & _DECIDES and _DECISION.search(text):
        return "decisions"
    return "action_items" if possible & _ACTS and _ACTION.search(text) else "key_facts"


def _signals(text: str, possible: int) -> float:
    value = 0.0
    if possible & _NUMBERS:
        value += 1.5 * min(3, len(_NUMBER.findall(text))) / 3
    # Most plain sentences have no capital but their first letter.
    is_plain = text.isascii()
    has_capital = not is_plain or text[1:] != text[1:].lower()
    may_identify = not is_plain or any([part in text for part in _MAY_IDENTIFY])  # noqa: C419
    if may_identify or (has_capital and _CAPITAL_INSIDE.search(text)):
        value += 1.5 * len(list(islice(_IDENTIFIER.finditer(text), 2))) / 2
    if has_capital:
        value += 1.5 * min(2, len(_NAME.findall(text))) / 2
    return value + (2.0 if possible & _DEMANDS and demands(text) else 0.0)


class _Taken:
    """What has been chosen, findable by word, so that a near-duplicate is found without comparing with everything."""

    def __init__(self) -> None:
        self._by_word: defaultdict[str, list[_Unit]] = defaultdict(list)

    def like(self, unit: _Unit) -> _Unit | None:
        words, by_word = unit.sentence.words, self._by_word
        known = [word for word in words if word in by_word]
        if len(known) < _SAME_WORDS_RATIO * len(words):
            return None
        candidates = Counter(chain.from_iterable([by_word[word][:16] for word in known]))
        if max(candidates.values()) < _SAME_WORDS_RATIO * len(words):
            return None
        for other, shared in candidates.most_common(3):
            if shared >= _SAME_WORDS_RATIO * len({*words, *other.sentence.words}):
                return other
        return None

    def add(self, unit: _Unit) -> None:
        for word in unit.sentence.words:
            self._by_word[word].append(unit)


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
            if unit.source_id not in same.sources and len(same.sources) < _MOST_SOURCES_OF_AN_ITEM:
                same.sources += (unit.source_id,)
            continue
        unit.sources = (unit.source_id,)
        taken.add(unit)
        chosen.append(unit)
        room_chars -= cost
    return sorted(chosen, key=lambda unit: unit.position), room_chars


def _items(units: Iterable[_Unit]) -> tuple[ExtractItem, ...]:
    return tuple(ExtractItem(unit.text, unit.sources) for unit in units)
