"""What of a summary needs no model: one that is made without, and what is added to a model's that leaves it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from app.domain.extractive import READING, Extract, ExtractItem, Material, Reading, SourceText, gather
from app.domain.lasting import PlacedSentence, lasting, left_out
from app.domain.statements import statements
from app.domain.types import SUMMARY_LISTS, MessageId, SummaryBody, SummaryItem, SummaryList
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fold import Fold

_CHARS_PER_TOKEN: Final = 4
_MOST_TRIES: Final = 4
_LASTING_SHARE: Final = 0.56
"""Of the cap: what demands and values may take of the summary without a model."""
_ITEM_TOKENS: Final = 3
"""What an item costs beside its text."""


def fallback_summary(fold: Fold, estimate: Estimate, read: Reading = READING, *, focus: str = "") -> SummaryBody | None:
    """An extractive summary within the fold's cap, deterministic; None when nothing fits.

    What the previous summary records goes on with the messages it cites, in up to half of the room.
    """
    material = material_of(fold, read, focus=focus)
    frame_tokens = estimate(render_summary(SummaryBody("")))
    chars = float(fold.cap_tokens * _CHARS_PER_TOKEN)
    body = SummaryBody("")
    for _ in range(_MOST_TRIES):
        body = _body(material.within(int(chars)))
        over = (estimate(render_summary(body)) - frame_tokens) / max(1, fold.cap_tokens - frame_tokens)
        if over <= 1:
            break
        chars *= 0.98 / over
    return fit_summary(body, fold.cap_tokens, estimate)


def material_of(fold: Fold, read: Reading = READING, *, focus: str = "") -> Material:
    """What an extractive summary of the fold is chosen from."""
    previous = fold.previous.body if fold.previous else None
    texts = zip(fold.sources, fold.source_texts, strict=True)
    sources = [SourceText(message.id, message.role, text) for message, text in texts]
    return gather(sources, focus=focus, previous=_extract_of(previous) if previous else None, read=read)


def _extract_of(body: SummaryBody) -> Extract:
    lists: dict[SummaryList, tuple[ExtractItem, ...]] = {
        kind: tuple([ExtractItem(item.text, item.message_ids) for item in getattr(body, kind)])
        for kind in SUMMARY_LISTS
    }
    return Extract(body.summary_text, **lists)


def _body(found: Extract) -> SummaryBody:
    lists: dict[SummaryList, tuple[SummaryItem, ...]] = {
        kind: tuple([SummaryItem(item.text, item.source_ids) for item in getattr(found, kind)])
        for kind in SUMMARY_LISTS
    }
    return SummaryBody(found.summary_text or "No sentence of the earlier conversation stood out.", **lists)


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
