"""The summary that needs no model: what the previous one held, and statements of what is folded in."""

from __future__ import annotations

from app.domain.extractive import READING, Extract, ExtractItem, Material, Reading, SourceText, gather
from app.domain.types import SUMMARY_LISTS, SummaryBody, SummaryItem, SummaryList
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fold import Fold

_CHARS_PER_TOKEN = 4
_MOST_TRIES = 4


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
