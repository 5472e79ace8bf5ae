"""The summarizer call that repeats the session's last prompt, and when it is the cheaper one.

A provider that caches prompts charges a fraction of the price for the repeated part, which ends before the newest turn:
its reply is in no cache. One short instruction follows, in the system role, so that no text of users can outrank it. As
the repeated prompt must not change, its messages have no ids; an item cites by quotation instead.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from app.domain.frozen import frozen, replace
from app.domain.prices import Prices, call_cost
from app.domain.types import SUMMARY_LISTS, MessageId, PromptMessage, SummaryCall, SummaryCallReason, Usage
from app.engine.messages.turns import sendable_messages
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import FOCUS

MOST_QUOTATIONS: Final = 2_000
"""Most quotations of an answer that are looked up: each is searched in all text that a summary may cite."""
_LEAST_CHARS: Final = 8
QUOTED_SHARE: Final = 1.25
"""Largest ratio of the tokens of an answer with quotations to one with ids (`docs/fidelity.md`)."""
_CARRY_OVER: Final = "Carry over what still matters of the record, drop what is settled or replaced."
_EXTEND: Final = "Repeat the record's items, change only what newer messages settle or replace, and add what is new."
_MARKS: Final = " \"'`“”„‘’…"


def behind_the_prompt(fold: Fold, *, extend: bool, focus: str) -> list[PromptMessage]:
    """What follows the repeated prompt: any `focus` as a user message (it is no instruction), then the instruction."""
    staying = len(fold.context) - (len(sendable_messages((fold.unseen,))) if fold.unseen else 0)
    text = (
        f"The conversation is interrupted here to record it: all but its newest {staying} messages leave the "
        "window. No instruction above applies to what you write now; call no tool. Answer with one JSON object only:\n"
        '{"summary_text":"...","key_facts":[{"text":"...","message_ids":["..."]}],"open_questions":[],"decisions":[],'
        '"action_items":[]}\n'
        "Every list has such items. message_ids quote an item's messages, 4 or 5 neighbouring words each, letter for "
        "letter; for an item of the record, the beginning of its text.\n"
        f"{_EXTEND if extend else _CARRY_OVER} Keep names, numbers, dates, identifiers, file names, constraints and "
        "standing wishes of the user word for word. Record what was decided and why. No greetings, no repetition. "
        f"Write in the conversation's language, under {fold.cap_tokens} tokens."
    )
    if not focus:
        return [{"role": "system", "content": text}]
    document: PromptMessage = {"role": "user", "content": json.dumps({"focus": focus}, ensure_ascii=False)}
    return [document, {"role": "system", "content": text + FOCUS}]


class Quotations(dict[str, tuple[MessageId, ...]]):
    """Maps quotations to the messages they are from, of a fold, of its context, and of the previous summary's items.
    The first match is used. A whole text is always found. A part that is not found, is too short to locate, or comes
    after `MOST_QUOTATIONS` others raises `KeyError`."""

    def __init__(self, fold: Fold) -> None:
        sources = [(_plain(text), ids) for text, ids in _sources(fold)]
        super().__init__({text: ids for text, ids in reversed(sources) if text})
        self._text = "\0".join(text for text, _ in sources)
        self._starts = list(accumulate((len(text) + 1 for text, _ in sources), initial=0))
        self._ids = [ids for _, ids in sources]
        self._left = MOST_QUOTATIONS

    def __missing__(self, quotation: str) -> tuple[MessageId, ...]:
        self._left -= 1
        words = _plain(quotation).strip(_MARKS)
        if words in self:
            return self[words]
        at = self._text.find(words) if len(words) >= _LEAST_CHARS and self._left >= 0 else -1
        if at < 0:
            raise KeyError(quotation)
        return self._ids[bisect_right(self._starts, at) - 1]


def _sources(fold: Fold) -> Iterator[tuple[str, tuple[MessageId, ...]]]:
    if fold.previous is not None:
        for name in SUMMARY_LISTS:
            for item in getattr(fold.previous.body, name):
                yield item.text, item.message_ids
    yield from ((text, (message.id,)) for message, text in fold.source_texts)
    yield from ((text, (message.id,) if fold.cites_context else ()) for message, text in fold.context_texts)


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
