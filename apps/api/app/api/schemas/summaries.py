"""Summaries."""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel

from app.api.records import row_of
from app.api.schemas.values import Id, In, Instant
from app.domain.stored import StoredSummary


class SummaryItemOut(In):
    """One fact, decision, question or action, with the messages it came from."""

    text: str
    message_ids: list[Id]


class SummaryFields(row_of(StoredSummary, without=("session_id",))):
    """A summary of the messages from `from_message_id` through `to_message_id`."""

    key_facts: list[SummaryItemOut]
    open_questions: list[SummaryItemOut]
    decisions: list[SummaryItemOut]
    action_items: list[SummaryItemOut]
    created_at: Instant


class SummaryOut(SummaryFields):
    """A summary of the messages from `from_message_id` through `to_message_id`."""

    session_id: UUID


class SummaryPage(BaseModel):
    items: list[SummaryOut]
    next_cursor: str | None
