"""The summary that needs no model: what the previous one held, and verbatim sentences of what is folded in."""

from __future__ import annotations

from dataclasses import replace

from app.domain.extractive import Extract, ExtractItem, ReadSentence, SourceText, condense, extract, read_sentence
from app.domain.types import MessageId, SummaryBody, SummaryItem
from app.engine.messages.tokens import Estimate
from app.engine.summary.block import fit_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import source_text

_CHARS_PER_TOKEN = 4
_CARRIED_PROSE_CHARS_PER_CAP_TOKEN = 0.5
"""Of the previous prose: about a third of what the cap leaves to prose, or it would crowd out what is new for ever."""


def fallback_summary(
    fold: Fold, estimate: Estimate, read: ReadSentence = read_sentence, *, focus: str = ""
) -> SummaryBody | None:
    """An extractive summary within the fold's cap, deterministic; None when nothing fits.

    The previous summary's facts, decisions and open questions come first, with the messages they cite: what was
    anchored stays anchored.
    """
    messages = fold.sources
    ids = {str(at): message.id for at, message in enumerate(messages)}
    sources = [SourceText(str(at), message.role, source_text(message)) for at, message in enumerate(messages)]
    found = extract(sources, max_chars=fold.cap_tokens * _CHARS_PER_TOKEN, focus=focus, read=read)
    body = _body(found, ids)
    if fold.previous is not None:
        carried_chars = int(fold.cap_tokens * _CARRIED_PROSE_CHARS_PER_CAP_TOKEN)
        body = _carried_on(fold.previous.body, body, condense(fold.previous.body.summary_text, carried_chars, read))
    return fit_summary(body, fold.cap_tokens, estimate)


def _body(found: Extract, ids: dict[str, MessageId]) -> SummaryBody:
    return SummaryBody(
        found.summary_text or "No sentence of the earlier conversation stood out.",
        key_facts=_items(found.key_facts, ids),
        open_questions=_items(found.open_questions, ids),
        decisions=_items(found.decisions, ids),
        action_items=_items(found.action_items, ids),
    )


def _carried_on(previous: SummaryBody, body: SummaryBody, carried_text: str) -> SummaryBody:
    return replace(
        body,
        summary_text="\n".join(filter(None, (carried_text, body.summary_text))),
        key_facts=previous.key_facts + body.key_facts,
        open_questions=previous.open_questions + body.open_questions,
        decisions=previous.decisions + body.decisions,
        action_items=previous.action_items + body.action_items,
    )


def _items(found: tuple[ExtractItem, ...], ids: dict[str, MessageId]) -> tuple[SummaryItem, ...]:
    return tuple(SummaryItem(item.text, tuple(ids[source_id] for source_id in item.source_ids)) for item in found)
