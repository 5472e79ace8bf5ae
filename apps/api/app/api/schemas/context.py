"""The window of a session: how a prompt came about, how it is laid out, what changed it turn by turn, its summaries,
and what is found of what has left it."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from app.api.records import answer_of, row_of
from app.api.schemas.values import Id, In, Instant, Open
from app.domain.audit import TurnContext
from app.domain.figures import CurrentWindow, PointWindow, TurnPoint
from app.domain.stored import StoredSummary
from app.domain.trim_log import TrimAction, TrimLog
from app.domain.types import REGIONS, Count

_REGIONS: dict[str, Any] = dict.fromkeys(REGIONS, (Count, ...))


class Regions(create_model("Regions", __base__=In, **_REGIONS)):
    """Tokens by region."""


class TrimActionOut(row_of(TrimAction, without=("count",))):
    """A decision, or all of one kind and reason in a range, with their sum."""

    count: Count = Field(1, description="The single actions it stands for; absent where it is one.")


class RecalledOut(Open):
    """A message that came back, verbatim."""

    message_id: Id
    score: float = Field(ge=-1e9, le=1e9)
    tokens: Count


class TrimLogOut(row_of(TrimLog, without=("recalled",))):
    actions: list[TrimActionOut]
    recalled: list[RecalledOut] = Field(default_factory=list[RecalledOut], description="Absent where nothing was.")


class ContextOut(answer_of(TurnContext, Open)):
    """How the prompt of a turn came about. All figures are tokens."""

    regions: Regions
    context_trim_log: TrimLogOut


class WindowOut(answer_of(CurrentWindow)):
    """The stored window, before the next message and before what that turn would compress. All figures are tokens."""

    model_config = ConfigDict(extra="allow")
    regions: Regions


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


class TimelineWindow(answer_of(PointWindow)):
    """The window of a turn's last call. All figures are tokens."""

    regions: Regions


class TimelineEvent(BaseModel):
    """Something that changed what was sent. `tokens` is what left the prompt, or what was recalled into it."""

    kind: Literal["summary", "later_summary", "prune", "recall", "overflow", "emergency"]
    tokens: int | None = None
    count: int | None = Field(default=None, description="Turns folded, or messages pruned, recalled, or dropped.")
    summary_id: UUID | None = None
    origin: str | None = None
    status: str | None = None


class TimelineTurn(answer_of(TurnPoint)):
    """A turn as a point of a plot. `window` is null where no prompt was decided."""

    window: TimelineWindow | None
    events: list[TimelineEvent]


class TimelinePage(BaseModel):
    items: list[TimelineTurn]
    next_cursor: str | None
