"""The messages of the bench's conversations: drawn with the lengths and the vocabulary of real chats, or recorded.

A drawn conversation changes its topic now and then, asks about what was said before, and has names and numbers that
come up once or twice: 25 words in a user's message and 45 in an answer, with a tail, and a thousand different words in
24,000 (recorded chats have up to twice as many). Every text follows from its number, so that all programs of a run get
the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from bench.fidelity.recorded import read_conversations
from bench.words import ANSWERS, DAYS, MONTHS, NAMES, PLACES, QUESTIONS, STATEMENTS, SYLLABLES, TOPICS, Topic

INSTRUCTIONS = (
    "You are the assistant of a small team and of the people in it. Answer briefly, name figures with their units, and "
    "say so when you do not know something. Quote the decision that was taken last when two of them contradict."
)
SUMMARY_TEXT = (
    "The user talks about work, a move and plans for the summer, and asks for advice in small steps. The write path of "
    "the database must stay under 50 ms at p99; the pool was set to two connections per core, and the nightly export "
    "moved to a replica. The lease in Ghent ends in May and the deposit is not back yet. Greta recommended a "
    "physiotherapist for the knee; running starts again in steps. A trip by night train in July is being planned."
)
SUMMARY_FACTS = (
    "The write path has a target of 50 ms at p99.",
    "The pool has two connections per core.",
    "The export runs on a replica and waits for midnight's position.",
    "The lease in Ghent ends on 31 May; the deposit of 1,840 is still owed.",
    "Greta's physiotherapist said no running before the second week of March.",
    "The night train is to be booked by Wednesday.",
)
TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "read_notes",
        "description": "Reads a page of the team's notes.",
        "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
    },
}
"""What the model of the bench calls in every round of a turn that has it."""
TURNS_OF_A_TOPIC: Final = 12
_ASKING_SHARE: Final = 0.45
_RARE_WORDS: Final = 20_000
_OWN_SHARE: Final = 0.65
"""Of the things that are talked about, those that only this stretch of the conversation has a word for."""
_RECALLING: Final = 3
"""One topic in so many comes back to one that was talked about before."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Texts by number, without an end. `recorded` are exchanges in their order, used instead of drawn ones."""

    recorded: tuple[tuple[str, str], ...] = ()

    def question(self, number: int) -> str:
        """The user's message of turn `number`."""
        return self.recorded[number % len(self.recorded)][0] if self.recorded else question(number)

    def answer(self, asked: str) -> str:
        """The model's answer to a message."""
        if not self.recorded:
            return answer(asked)
        answers = _answers(self.recorded)
        return answers.get(asked) or answer(asked)


def read_recorded(folder: Path) -> Conversation:
    """All exchanges of a folder's recorded conversations (docs/fidelity.md has their form), one after the other."""
    exchanges: list[tuple[str, str]] = []
    for path in sorted(path for path in folder.iterdir() if ".jsonl" in path.suffixes):
        for conversation in read_conversations(path, len):
            for turn in conversation.turns:
                texts = dict.fromkeys(("user", "assistant"), "")
                for message in turn.messages:
                    if message.role in texts and isinstance(message.content, str):
                        texts[message.role] += message.content
                if all(texts.values()):
                    exchanges.append((texts["user"], texts["assistant"]))
    if not exchanges:
        raise SystemExit(f"There is no recorded conversation in {folder}.")
    return Conversation(tuple(exchanges))


def question(number: int) -> str:
    """The drawn user's message of turn `number`."""
    stretch = number // TURNS_OF_A_TOPIC
    draw = random.Random(number)  # noqa: S311 - texts to talk about
    topic = TOPICS[_topic_number(stretch) % len(TOPICS)]
    patterns: list[str] = draw.sample(STATEMENTS, _count(draw, 1.75, len(STATEMENTS)))
    if draw.random() < _ASKING_SHARE:
        patterns.append(draw.choice(QUESTIONS))
    return _text(draw, patterns, topic, stretch)


def answer(asked: str) -> str:
    """The drawn answer, about the topic that the message shares most words with."""
    draw = random.Random(crc32(asked.encode()))  # noqa: S311
    topic = max(TOPICS, key=lambda topic: sum(thing in asked for thing in topic.things))
    return _text(draw, draw.sample(ANSWERS, _count(draw, 3.0, len(ANSWERS))), topic, draw.randrange(400))


def _topic_number(stretch: int) -> int:
    draw = random.Random(~stretch)  # noqa: S311
    return draw.randrange(stretch) if stretch and draw.randrange(_RECALLING) == 0 else stretch


def _count(draw: random.Random, usual: float, most: int) -> int:
    """Sentences of a message: a few, and now and then many."""
    return max(1, min(most, round(usual * draw.lognormvariate(0.0, 0.6))))


def _text(draw: random.Random, patterns: Sequence[str], topic: Topic, stretch: int) -> str:
    return " ".join(pattern.format_map(_slots(draw, topic, stretch)) for pattern in patterns)


def _slots(draw: random.Random, topic: Topic, stretch: int) -> Mapping[str, object]:
    thing, other = draw.sample(topic.things, 2)
    own = [_rare_word(_RARE_WORDS + stretch * 31 + int(draw.paretovariate(0.7)) % 31) for _ in range(2)]
    return {
        "thing": own[0] if draw.random() < _OWN_SHARE else thing,
        "other": own[1] if draw.random() < _OWN_SHARE else other,
        "action": draw.choice(topic.actions),
        "quality": draw.choice(topic.qualities),
        "name": draw.choice(NAMES),
        "place": draw.choice(PLACES),
        "day": draw.choice(DAYS),
        "month": draw.choice(MONTHS),
        "number": draw.choice((f"{draw.randint(2, 60)}", f"{draw.randint(1, 90) * 20:,}")),
        "code": _rare_word(stretch * 7 + draw.randrange(7)).capitalize(),
        "rare": _rare_word(-int(draw.paretovariate(0.25)) % _RARE_WORDS),
    }


@lru_cache(maxsize=16_384)
def _rare_word(number: int) -> str:
    draw = random.Random(number)  # noqa: S311
    return "".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))


@lru_cache(maxsize=1)
def _answers(recorded: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return dict(recorded)
