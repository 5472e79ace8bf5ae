"""Summaries."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.api.schemas.values import Id, In, Instant, Open
from app.domain.types import Count, Name


class SummaryItemOut(In):
    """One fact, decision, question or action, with the messages it came from."""

    text: str
    message_ids: list[Id]


class StoredSummary(Open):
    """A summary of the messages from `from_message_id` through `to_message_id`."""

    id: Id
    from_message_id: Id
    to_message_id: Id
    previous_summary_id: Id | None = Field(description="The one that it folded in.")
    summary_text: str
    key_facts: list[SummaryItemOut]
    open_questions: list[SummaryItemOut]
    decisions: list[SummaryItemOut]
    action_items: list[SummaryItemOut]
    status: Literal["active", "superseded", "undone"]
    origin: Literal["model", "fallback", "emergency"]
    model_alias: Name
    token_estimate: Count
    prompt_tokens: Count | None
    completion_tokens: Count | None
    created_by_turn_id: Id | None
    created_at: Instant


class SummaryOut(StoredSummary):
    """A summary of the messages from `from_message_id` through `to_message_id`."""

    session_id: UUID


class SummaryPage(BaseModel):
    items: list[SummaryOut]
    next_cursor: str | None
