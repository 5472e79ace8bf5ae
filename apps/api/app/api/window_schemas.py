"""What is answered about a session's window: as it is, as it was for a turn, what stands for what left, what is found.

As in `api/schemas.py`, these describe answers for the OpenAPI document.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas import ContextOut, In, Name, Open, Regions
from app.api.stored_schemas import Count, Id, Instant, SmallSeq


class WindowOut(BaseModel):
    """The stored window, before the next message and before what that turn would compress. All figures are tokens."""

    model_config = ConfigDict(extra="allow")
    model_alias: str
    model_context_limit: int
    context_limit_source: str
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens: int
    estimated_wire_tokens: int
    regions: Regions
    history_budget: int
    raw_turns: int = Field(description="Turns that no summary stands for.")
    active_summary_id: UUID | None
    turns_to_next_summary: int | None = Field(description="Null where the policy does not count turns.")
    summary_trigger_tokens: int | None = Field(description="Null where the policy summarizes by no number of tokens.")
    prune_trigger_tokens: int


class StoredAudit(ContextOut):
    """The context of one model call of a turn, as it is stored."""

    id: Id
    turn_id: Id
    round: SmallSeq
    attempt: SmallSeq
    estimator: Name
    calibration_ratio: float = Field(ge=0, le=1000)
    actual_prompt_tokens: Count | None = Field(description="As the provider reported; null before it has.")
    created_at: Instant


class AuditOut(StoredAudit):
    """The context of one model call of a turn, as it is stored."""

    session_id: UUID


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


class FoundMessageOut(BaseModel):
    """A message that matches. `complete` says whether the excerpt is all of its text."""

    message_id: UUID
    turn_id: UUID
    turn_seq: int
    seq: int
    role: Literal["user", "assistant", "tool"]
    score: float
    excerpt: str
    complete: bool


class FoundOut(BaseModel):
    """What a search found, best first, on one page."""

    items: list[FoundMessageOut]
    next_cursor: None = None
    searched_messages: int = Field(description="Messages that were looked through.")
    unsearched_messages: int = Field(
        description="Older ones that no index knows yet; each turn that recalls adds some."
    )
