"""What a model's summary may not forget: the same that the summary without a model carries on, added where the model's
answer leaves it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from app.domain.lasting import ExtractItem, PlacedSentence, lasting, left_out
from app.domain.statements import statements
from app.domain.types import SUMMARY_LISTS, MessageId, SummaryBody, SummaryItem
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fallback import material_of
from app.engine.summary.fold import Fold

_LASTING_SHARE: Final = 0.56
"""Of the cap: what demands and values may take of the summary without a model."""
_ITEM_TOKENS: Final = 3
"""What an item costs beside its text."""
_MOST_TRIES: Final = 4


def keep_lasting(body: SummaryBody, fold: Fold, estimate: Estimate) -> SummaryBody:
    """The summary with the user's demands, exact values and open tasks of the fold and of the summary before that it
    leaves out, as items marked `kept` that cite their messages; the body itself where it leaves out none.

    What is to last takes what the model's answer leaves of the cap. Where that is little, other items of the model's
    give way, until it has its part of the cap; what stands goes before tasks, the oldest first.
    """
    material = material_of(fold)
    units = lasting(material.new, material.carried)
    if not units:
        return body
    room = (fold.cap_tokens - estimate(render_summary(SummaryBody("")))) * _LASTING_SHARE
    room = max(room, fold.cap_tokens - estimate(render_summary(body)))

    def cost(text: str) -> int:
        return estimate(text) + _ITEM_TOKENS

    kept: tuple[PlacedSentence, ...] = ()
    fitted = body
    for _ in range(_MOST_TRIES):
        # What gave way may have been what said it.
        missing = left_out(units, _said(fitted), room, cost)
        if {unit.position for unit in missing} <= {unit.position for unit in kept}:
            break
        kept, before = tuple(missing), fitted
        fitted = fit_summary(body, fold.cap_tokens - sum(cost(unit.text) for unit in kept), estimate)
        if fitted is None:
            return body
        if fitted is before:  # nothing gave way
            break
    return _within(fitted, kept, fold.cap_tokens, estimate)


def _said(body: SummaryBody) -> Iterator[ExtractItem]:
    yield from (ExtractItem(text, ()) for text in statements(body.summary_text))
    for name in SUMMARY_LISTS:
        yield from (ExtractItem(item.text, item.message_ids) for item in getattr(body, name))


def _within(body: SummaryBody, kept: Sequence[PlacedSentence], cap_tokens: int, estimate: Estimate) -> SummaryBody:
    """The summary with as many of the units as its cap has room for; naming a list that was empty costs tokens too."""
    while kept:
        whole = body
        for name in SUMMARY_LISTS:
            items = tuple(
                SummaryItem(unit.text, cast("tuple[MessageId, ...]", unit.source_ids), kept=True)
                for unit in kept
                if unit.kind == name
            )
            whole = replace(whole, **{name: (*items, *getattr(whole, name))})
        if estimate(render_summary(whole)) <= cap_tokens:
            return whole
        kept = kept[:-1]
    return body
