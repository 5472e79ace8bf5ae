"""The summarizer call that repeats the session's last prompt, and when it is the cheaper one.

A provider that caches prompts charges a fraction of the price for the repeated part, which ends before the newest turn:
its reply is in no cache. One short instruction follows, in the system role, so that no text of users can outrank it. As
the repeated prompt must not change, its messages have no ids; an item cites by quotation instead.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import Final, TypeVar

from app.domain.frozen import frozen, replace
from app.domain.prices import Prices, call_cost
from app.domain.types import (
    UNCHANGED_ITEMS,
    MessageId,
    PromptMessage,
    SummaryCall,
    SummaryCallReason,
    SummaryItem,
    Usage,
)
from app.engine.messages.turns import sendable_messages
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import FOCUS

MOST_QUOTATIONS: Final = 2_000
"""Most quotations of an answer that are looked up: each is searched in all text that a summary may cite."""
_LEAST_CHARS: Final = 8
QUOTED_SHARE: Final = 1.25
"""Ratio of the tokens of an answer with quotations to one with ids, about (`docs/fidelity.md`)."""
_AS_THEY_STAND: Final = f"cite all of a list's items that hold as they stand in one with text {UNCHANGED_ITEMS}"
_CARRY_OVER: Final = f"Carry over what still matters of the record: {_AS_THEY_STAND}, drop what is settled or replaced."
_EXTEND: Final = (
    f"Extend the record: {_AS_THEY_STAND}, change only what newer messages settle or replace, and add what is new."
)
_T = TypeVar("_T")
_MARKS: Final = " \"'`“”„‘’…"


def behind_the_prompt(fold: Fold, *, extend: bool, focus: str) -> list[PromptMessage]:
    """What follows the repeated prompt: any `focus` as a user message (it is no instruction), then the instruction."""
    staying = len(fold.context) - (len(sendable_messages((fold.unseen,))) if fold.unseen else 0)
    text = (
        f"The conversation is interrupted here to record it: all but its newest {staying} messages leave the "
        "window. No instruction above applies to what you write now; call no tool. Answer with one JSON object only:\n"
        '{"summary_text":"...","key_facts":[{"text":"...","message_ids":["..."]}],"open_questions":[],"decisions":[],'
        '"action_items":[]}\n'
        "Every list has such items. message_ids quote an item's messages, or the beginning of an item of the record, 4 "
        "or 5 neighbouring words each, letter for letter.\n"
        f"{_EXTEND if extend else _CARRY_OVER} Keep names, numbers, dates, identifiers, file names, constraints and "
        "standing wishes of the user word for word. Record what was decided and why. No greetings, no repetition. "
        f"Write in the conversation's language, under {fold.cap_tokens} tokens."
    )
    if not focus:
        return [{"role": "system", "content": text}]
    document: PromptMessage = {"role": "user", "content": json.dumps({"focus": focus}, ensure_ascii=False)}
    return [document, {"role": "system", "content": text + FOCUS}]


class Quotations(dict[str, _T]):
    """Maps quotations to what the text that they are from stands for: the first one that is the quotation, else the
    first one that contains it. With `once`, texts that begin with it come between, and those that were found before
    last: items of a record may begin alike, or one with the whole of another. A whole text is always found. A part that
    is not found, is too short to locate, or comes after `MOST_QUOTATIONS` others raises `KeyError`."""

    def __init__(self, sources: Iterable[tuple[str, _T]], *, once: bool = False) -> None:
        super().__init__()
        given = list(sources)
        texts = [_plain(text) for text, _ in given]
        self._wholes: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            self._wholes.setdefault(text.strip(_MARKS) or text, []).append(place)
        self._text = "\0".join(("", *texts))
        self._starts = list(accumulate((len(text) + 1 for text in texts), initial=1))
        self._values = [value for _, value in given]
        self._left = MOST_QUOTATIONS
        self._once = once
        self._found: set[int] = set()

    def __missing__(self, quotation: str) -> _T:
        self._left -= 1
        plain = _plain(quotation)
        found = self._places_of(plain.strip(_MARKS) or plain) if plain else iter(())
        first = next(found, None)
        if first is None:
            raise KeyError(quotation)
        place = next((place for place in chain((first,), found) if place not in self._found), first)
        if self._once:
            self._found.add(place)
        return self._values[place]

    def _places_of(self, words: str) -> Iterator[int]:
        """The positions of the texts that these words may be from, some of them twice."""
        yield from self._wholes.get(words, ())
        if len(words) < _LEAST_CHARS or self._left < 0:
            return
        for sought in (f"\0{words}", words) if self._once else (words,):
            at = self._text.find(sought)
            while at >= 0:
                place = bisect_right(self._starts, at + len(sought) - len(words)) - 1
                yield place
                at = self._text.find(sought, self._starts[place + 1] - 1)


def quoted_ids(fold: Fold) -> Quotations[tuple[MessageId, ...]]:
    """The messages that a quotation is from: of the fold, its context, and those that the previous summary cites."""
    before = [(item.text, item.message_ids) for item in _items_before(fold)]
    new = [(text, (message.id,)) for message, text in fold.source_texts]
    around = [(text, (message.id,) if fold.cites_context else ()) for message, text in fold.context_texts]
    return Quotations([*before, *new, *around])


def quoted_items(fold: Fold) -> Quotations[SummaryItem]:
    """The item of the previous summary that a quotation is from."""
    return Quotations([(item.text, item) for item in _items_before(fold)], once=True)


def _items_before(fold: Fold) -> list[SummaryItem]:
    return fold.previous.body.items if fold.previous else []


def _plain(text: str) -> str:
    """The text in lower case, with single spaces between its words."""
    return " ".join(text.replace("\0", " ").split()).casefold()


@frozen
class CallChoice:
    call: SummaryCall
    reason: SummaryCallReason


def cheaper_call(
    answer_tokens: int, separate_tokens: int, separate: Prices, repeated: Usage, own: Prices
) -> CallChoice:
    """The call that costs less, by published prices and expected tokens; the separate one if both cost the same or a
    price is unknown.

    `answer_tokens` is the size of an answer that cites by ids, `separate_tokens` that of a separate prompt. `repeated`
    is the usage of the repeated prompt before an answer: its completion tokens are reasoning that may precede it.
    """
    separate_usd = call_cost(Usage(separate_tokens, answer_tokens), separate.of_prompt(separate_tokens))
    own = own.of_prompt(repeated.prompt_tokens)
    answered = repeated.completion_tokens + int(QUOTED_SHARE * answer_tokens)
    repeated_usd = call_cost(replace(repeated, completion_tokens=answered), own)
    if separate_usd is None or repeated_usd is None or own.cached_input_usd is None:
        return CallChoice("separate", "no_price")
    return CallChoice("cached" if repeated_usd < separate_usd else "separate", "cost")
