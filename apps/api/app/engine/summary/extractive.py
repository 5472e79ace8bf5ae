"""Summaries without a model: the extractive fallback, and the items that are added to a model's summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from app.domain.extractive import READING, Reading, SourceText, gather, lasting_among
from app.domain.frozen import replace
from app.domain.lasting import PlacedSentence, item_of, left_out
from app.domain.sentences import read_sentence
from app.domain.statements import statements
from app.domain.types import SUMMARY_LISTS, SummaryBody, SummaryItem
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fewest, fit_summary, render_summary
from app.engine.summary.fold import Fold

_CHARS_PER_TOKEN: Final = 4
_MOST_TRIES: Final = 4
_MOST_CHARS: Final = 1_000_000
"""Characters of a fold's messages that are read, about 2 s for prose: an imported session may have 64 MB."""
_LASTING_SHARE: Final = 0.56
"""Share of the cap that lasting items may always use: that of demands and values in a summary without a model."""
_NOTHING_STOOD_OUT: Final = "No sentence of the earlier conversation stood out."
_ITEM_TOKENS: Final = 3
"""Tokens of an item besides its text."""


def fallback_summary(fold: Fold, estimate: Estimate, read: Reading = READING, *, focus: str = "") -> SummaryBody | None:
    """A deterministic extractive summary within the fold's cap; None if nothing fits. Items of the previous summary are
    carried over with the messages that they cite, usually in up to half of the space."""
    previous = fold.previous and fold.previous.body
    material = gather(_sources_of(fold), focus=focus, previous=previous, read=read)
    frame_tokens = estimate(render_summary(SummaryBody("")))
    chars = float(fold.cap_tokens * _CHARS_PER_TOKEN)
    body = SummaryBody("")
    for _ in range(_MOST_TRIES):
        body = material.within(int(chars))
        if not body.summary_text:
            body = replace(body, summary_text=_NOTHING_STOOD_OUT)
        over = (estimate(render_summary(body)) - frame_tokens) / max(1, fold.cap_tokens - frame_tokens)
        if over <= 1:
            break
        chars *= 0.98 / over
    return fit_summary(body, fold.cap_tokens, estimate)


def _sources_of(fold: Fold) -> list[SourceText]:
    """The texts of the fold; if they are longer than `_MOST_CHARS` together, the longest ones end earlier, all at the
    same length."""
    room, longest = _MOST_CHARS, 0
    lengths = sorted([len(text) for _, text in fold.source_texts])
    for at, length in enumerate(lengths):
        longest = min(length, room // (len(lengths) - at))
        room -= longest
    return [SourceText(message.id, message.role, text[:longest]) for message, text in fold.source_texts]


def keep_lasting(body: SummaryBody, fold: Fold, estimate: Estimate) -> SummaryBody:
    """The summary with the user's demands, exact values and open tasks that it leaves out, of the fold and of the
    previous summary, as items marked `kept` that cite their messages. It is `body` itself if none is left out.

    They use the part of the cap that the model's answer leaves free; if that is small, its items are removed until they
    have `_LASTING_SHARE` of the cap. What holds until replaced precedes tasks, oldest first.
    """
    read = cache(read_sentence)  # models repeat items of the previous summary
    units = lasting_among(_sources_of(fold), fold.previous and fold.previous.body, read)
    if not units:
        return body
    room = (fold.cap_tokens - estimate(render_summary(SummaryBody("")))) * _LASTING_SHARE
    room = max(room, fold.cap_tokens - estimate(render_summary(body)))

    def cost(text: str) -> int:
        return estimate(text) + _ITEM_TOKENS

    kept: tuple[PlacedSentence, ...] = ()
    fitted = body
    for _ in range(_MOST_TRIES):
        # An item that was removed may have been the one that stated it.
        stated = [SummaryItem(text, ()) for text in statements(fitted.summary_text)]
        missing = left_out(units, [*stated, *fitted.items], room, cost, read)
        if {unit.position for unit in missing} <= {unit.position for unit in kept}:
            break
        kept, before = tuple(missing), fitted
        fitted = fit_summary(body, fold.cap_tokens - sum(cost(unit.text) for unit in kept), estimate)
        if fitted is None:
            return body
        if fitted is before:  # nothing was removed
            break
    return _within(fitted, kept, fold.cap_tokens, estimate)


def _within(body: SummaryBody, kept: Sequence[PlacedSentence], cap_tokens: int, estimate: Estimate) -> SummaryBody:
    """The summary with as many of the units as its cap allows; the name of a list that was empty needs tokens too."""

    def with_units(units: Sequence[PlacedSentence]) -> SummaryBody:
        added = {name: [item_of(unit, kept=True) for unit in units if unit.kind == name] for name in SUMMARY_LISTS}
        return replace(body, **{name: (*added[name], *items) for name, items in body.lists.items()}) if units else body

    def fits_without(count: int) -> bool:
        return estimate(render_summary(with_units(kept[: len(kept) - count]))) <= cap_tokens

    return with_units(kept[: len(kept) - fewest(len(kept), fits_without)])
