"""The window of a session: how a prompt came about, how it is laid out, and what is found of what has left it."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.values import Count, Difference, Id, In, Name, Open


class Regions(In):
    """Tokens by region."""

    system: Count
    goal: Count
    pins: Count
    summary: Count
    history: Count
    recall: Count
    user: Count
    tools: Count
    framing: Count


class TrimAction(Open):
    """A decision, or all of one kind and reason in a range, with their sum."""

    kind: str
    target: str = Field(description="Of several `messages:<from_seq>-<to_seq>` or `turns:<from_seq>-<to_seq>`.")
    reason: str
    tokens_removed_est: Difference
    count: Count = Field(1, description="The single actions it stands for; absent where it is one.")


class RecalledOut(Open):
    """A message that came back, verbatim."""

    message_id: Id
    score: float = Field(ge=-1e9, le=1e9)
    tokens: Count


class TrimLog(Open):
    max_context_tokens: Difference
    estimated_tokens_before: Count
    estimated_tokens_after: Count
    actions: list[TrimAction]
    recalled: list[RecalledOut] = Field(default_factory=list[RecalledOut], description="Absent where nothing was.")


class ContextOut(Open):
    """How the prompt of a turn came about. All figures are tokens."""

    model_alias: Name
    model_context_limit: Count
    context_limit_source: Name
    input_budget: Difference
    output_reserve: Count
    overhead_reserve: Count
    estimated_input_tokens_before: Count
    estimated_input_tokens_after_summary: Count
    estimated_input_tokens_after_prune: Count
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    estimated_wire_tokens: Count
    regions: Regions
    context_trim_log: TrimLog
    prompt_sha256: str | None


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


class LaidOut(BaseModel):
    """Where a message of a prompt stands and what it costs, without framing."""

    region: str | None = Field(description="Null for prompts that were sent before this was recorded.")
    tokens: int
    message_id: UUID | None = Field(description="The stored message; null for what is none.")
    turn_id: UUID | None
    shortened: bool
