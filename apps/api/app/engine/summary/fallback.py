"""The summary that needs no model: what the previous one held, and statements of what is folded in."""

from __future__ import annotations

from app.domain.extractive import Extract, ExtractItem, SourceText, gather
from app.domain.sentences import ReadSentence, read_sentence
from app.domain.types import SUMMARY_LISTS, MessageId, SummaryBody, SummaryItem
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import source_text

_CHARS_PER_TOKEN = 4
_MOST_TRIES = 4


def fallback_summary(
    fold: Fold, estimate: Estimate, read: ReadSentence = read_sentence, *, focus: str = ""
) -> SummaryBody | None:
    """An extractive summary within the fold's cap, deterministic; None when nothing fits.

    What the previous summary records goes on with the messages it cites, in up to half of the room.
    """
    previous = fold.previous.body if fold.previous else None
    messages = fold.sources
    sources = [SourceText(str(message.id), message.role, source_text(message)) for message in messages]
    material = gather(sources, focus=focus, previous=_extract_of(previous) if previous else None, read=read)
    ids = {str(message.id): message.id for message in messages}
    ids |= {str(cited): cited for items in _lists(previous) for item in items for cited in item.message_ids}
    frame_tokens = estimate(render_summary(SummaryBody("")))
    chars = float(fold.cap_tokens * _CHARS_PER_TOKEN)
    body = SummaryBody("")
    for _ in range(_MOST_TRIES):
        body = _body(material.within(int(chars)), ids)
        over = (estimate(render_summary(body)) - frame_tokens) / max(1, fold.cap_tokens - frame_tokens)
        if over <= 1:
            break
        chars *= 0.98 / over
    return fit_summary(body, fold.cap_tokens, estimate)


def _lists(body: SummaryBody | None) -> list[tuple[SummaryItem, ...]]:
    return [getattr(body, kind) for kind in SUMMARY_LISTS] if body else []


def _extract_of(body: SummaryBody) -> Extract:
    items = [
        tuple(ExtractItem(item.text, tuple(map(str, item.message_ids))) for item in of_kind) for of_kind in _lists(body)
    ]
    return Extract(body.summary_text, **dict(zip(SUMMARY_LISTS, items, strict=True)))


def _body(found: Extract, ids: dict[str, MessageId]) -> SummaryBody:
    return SummaryBody(
        found.summary_text or "No sentence of the earlier conversation stood out.",
        key_facts=_items(found.key_facts, ids),
        open_questions=_items(found.open_questions, ids),
        decisions=_items(found.decisions, ids),
        action_items=_items(found.action_items, ids),
    )


def _items(found: tuple[ExtractItem, ...], ids: dict[str, MessageId]) -> tuple[SummaryItem, ...]:
    return tuple(SummaryItem(item.text, tuple(ids[source_id] for source_id in item.source_ids)) for item in found)
