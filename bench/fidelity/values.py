"""Values of tool outputs, sampled: whether a model that looks back twice reads them again.

A scripted model knows the words around a value, as one does that saw it once. It searches for them, and opens the
message that it is shown a part of by its handle; or it opens the handle that its prompt names, and searches then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Final

from app.domain.content import content_text
from app.engine.messages.tokens import Estimate
from app.engine.recall.look_back_pages import handle_of
from app.engine.window.look_back import LookBack
from app.engine.window.plan import Ready, assemble
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.look_back import Archive, LookedBack
from bench.fidelity.measure import violation
from bench.fidelity.recorded import Conversation

VALUES_OF_A_CONVERSATION: Final = 8
MOST_CALLS: Final = 2
_VALUE: Final = re.compile(r"(?<![\w.])(?=[\w./@:-]*\d)[\w][\w./@:-]{3,}(?![\w])")
_WORD: Final = re.compile(r"[^\W_]+")
_CHARS_BEFORE, _CHARS_BEHIND = 80, 40
_NEXT: Final = "Go on, please."


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the tool output of this number: `shown` is how it stands there, `words` are those around it."""

    seq: int
    shown: str
    words: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Of so many values: shares that the prompt has, and that were read after one and two calls; how many prompts were
    broken or over the budget, and how many tokens a value's pages had."""

    sampled: int
    in_prompt: float
    after_one: float
    after_two: float
    broken: int
    over_budget: int
    page_tokens: int


def measure_values(
    rule: EngineRule, conversations: Sequence[Conversation], input_budget: int, estimate: Estimate
) -> Reached:
    """Looks for some values of each conversation at its end."""
    calls: list[int | None] = []
    broken = over = tokens = 0
    for conversation in conversations:
        values = sampled(conversation)
        if not values:
            continue
        _, state = rule.replay(conversation)
        asked = rule.decide(conversation, state, _NEXT)
        if not isinstance(asked, Ready):
            calls += [None] * len(values)
            continue
        archive = Archive.of(conversation)
        for value in values:
            turns = list(_read(LookedBack(asked), value, archive, estimate))
            calls.append(len(turns) - 1 if _has(turns[-1], value) else None)
            tokens += turns[-1].read_tokens
            broken += sum(violation(assemble(turn.decided).messages) is not None for turn in turns)
            over += sum(turn.decided.window.input_tokens > input_budget for turn in turns)
    shares = [sum(at is not None and at <= most for at in calls) / max(1, len(calls)) for most in (0, 1, MOST_CALLS)]
    return Reached(len(calls), shares[0], shares[1], shares[2], broken, over, round(tokens / max(1, len(calls))))


def sampled(conversation: Conversation) -> list[Value]:
    """Some values of its tool outputs, the same every time: words with a digit."""
    draw = Random(conversation.id)  # noqa: S311 - values to measure with
    messages = [message for turn in conversation.turns for message in turn.messages]
    found = [
        _value(message.seq, text, match, content_text(behind.content) if behind else "")
        for message, behind in zip_longest(messages, messages[1:])
        if message.role == "tool"
        for text in [content_text(message.content)]
        for match in _VALUE.finditer(text)
    ]
    return draw.sample(found, min(VALUES_OF_A_CONVERSATION, len(found)))


def _value(seq: int, text: str, match: re.Match[str], behind_it: str) -> Value:
    before, behind = text[: match.start()][-_CHARS_BEFORE:], text[match.end() :][:_CHARS_BEHIND]
    words = _WORD.findall(f"{before} {behind}".replace(match[0], " "))
    words = words[1:-1] or _WORD.findall(behind_it[:_CHARS_BEFORE])  # an output may be the value alone
    return Value(seq, before[-8:] + match[0], " ".join(words))


def _read(turn: LookedBack, value: Value, archive: Archive, estimate: Estimate) -> Iterator[LookedBack]:
    """The turn before any call and after each, until it has the value."""
    yield turn
    handle = handle_of(value.seq)
    for at in range(MOST_CALLS):
        if _has(turn, value) or not turn.decided.window.snapshot.offers_look_back:
            return
        is_named = f"look_back handle {handle} " in turn.text()
        is_listed = any(value.seq in page.seqs for _, page in turn.read)
        opens = is_listed or (is_named and at == 0)
        turn = turn.then(LookBack(value.words, handle if opens else None, None), archive, estimate)
        yield turn


def _has(turn: LookedBack, value: Value) -> bool:
    return value.shown in turn.text()
