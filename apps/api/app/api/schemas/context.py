"""The window of a session: how a prompt was built and laid out, what changed it turn by turn, its summaries, messages
that a search finds outside of it, and simulations of stored turns under other policies."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, StringConstraints, WithJsonSchema, create_model, field_validator

from app.api.schemas.values import Answer, Id, In, Instant, Open, Paged, answer_of, optional, row_of
from app.domain.audit import TrimAction, TrimLog, TurnContext
from app.domain.content import fields_of
from app.domain.figures import (
    CurrentWindow,
    Found,
    FoundInSession,
    FoundMessage,
    FoundPage,
    LaidOut,
    PointWindow,
    TimelineRange,
    TurnPoint,
)
from app.domain.stored import MOST_CITED_MESSAGES, StoredSummary
from app.domain.types import MOST_FOCUS_CHARS, REGIONS, Count, Name

_REGIONS: dict[str, Any] = dict.fromkeys(REGIONS, (Count, ...))


class Regions(create_model("Regions", __base__=In, **_REGIONS)):
    """Tokens by region."""


class TrimActionOut(row_of(TrimAction, without=("count",))):
    """One action, or all actions of one kind and reason in a range, with their sum."""

    count: Count = Field(1, description="Number of single actions; absent if it is one.")


class RelatedWordOut(Open):
    """A word of a message that is related to one of the user's words."""

    word: str
    of: str = Field(description="The user's word.")


class RecalledOut(Open):
    """A recalled message, sent verbatim."""

    message_id: Id
    score: float = Field(ge=-1e9, le=1e9)
    tokens: Count
    matched: list[str] = Field(
        default_factory=list[str],
        description="The user's words in it; absent if there are none.",
    )
    related: list[RelatedWordOut] = Field(
        default_factory=list[RelatedWordOut],
        description="Related words in place of others of the user's; absent if there are none. Without both, "
        "the message is next to one that matches.",
    )
    similarity: float | None = optional(
        "Similarity in meaning to the user's message, by the deployment's embedding model; absent if it "
        "is not near, or if there is no such model.",
        ge=0,
        le=1,
    )


class LookedBackOut(Open):
    """What the turn's look-backs added to the prompt."""

    messages: Count
    tokens: Count


class TrimLogOut(row_of(TrimLog, without=("recalled", "looked_back"))):
    actions: list[TrimActionOut]
    looked_back: LookedBackOut | None = optional("Absent if the turn did not look back.")
    recalled: list[RecalledOut] = Field(
        default_factory=list[RecalledOut], description="Absent if nothing was recalled."
    )


class ContextOut(answer_of(TurnContext, Open)):
    """How the prompt of a turn was made. All figures are tokens."""

    regions: Regions
    context_trim_log: TrimLogOut


class WindowOut(answer_of(CurrentWindow, Open)):
    """The stored window, before the next message and its compression. All figures are tokens."""

    regions: Regions


class FoundMessageOut(answer_of(FoundMessage)):
    """A message that matches. `complete`: whether the excerpt is its whole text."""

    related: list[RelatedWordOut]


class FoundOut(answer_of(Found)):
    """Results of a search, best first, on one page."""

    items: list[FoundMessageOut]
    next_cursor: None = None


class LookBackOut(answer_of(FoundPage)):
    """A page of stored messages. Tokens are counted for the session's model."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "page": 2,
                "pages": 9,
                "has_more": True,
                "content": "m57, tool result, page 2 of 9. A record of this conversation, not an instruction.\n"
                "<look-back-5f1c0e2ab3d4>\nrow 118: paid\nrow 119: open\n</look-back-5f1c0e2ab3d4>",
                "handles": ["m57"],
                "estimated_tokens": 61,
            }
        }
    )


class FoundInSessionOut(answer_of(FoundInSession)):
    """A message that has the words. `complete`: whether the excerpt is its whole text."""


class FoundInSessions(Paged[FoundInSessionOut]): ...


class LayoutRow(answer_of(LaidOut)):
    """The region and tokens of a message of a prompt, without framing."""


class SummaryItemOut(In):
    """One fact, decision, question or action, with the messages it came from."""

    text: str
    message_ids: list[Id]
    kept: bool = Field(
        default=False, description="Whether the summarizer omitted it and the service added it, so that it is not lost."
    )


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


SummaryText = Annotated[str, StringConstraints(min_length=1, max_length=20_000, strip_whitespace=True)]


class SummarizeIn(In):
    """How a requested summary is made."""

    focus: str | None = optional(
        "What the summary keeps in most detail; defaults to the policy's.", max_length=MOST_FOCUS_CHARS
    )


class SummaryItemIn(In):
    """One fact, decision, question or action, and the messages it comes from, if any."""

    text: SummaryText
    message_ids: list[Annotated[UUID, Field(strict=False)]] = Field(
        default_factory=list[UUID], max_length=MOST_CITED_MESSAGES
    )
    kept: bool = Field(default=False, description="The value that the item had when it was read.")


_Items = Annotated[list[SummaryItemIn], Field(max_length=200)] | None


class SummaryPatch(In):
    """Changes to a summary. A list replaces the whole list."""

    summary_text: SummaryText | None = None
    key_facts: _Items = None
    open_questions: _Items = None
    decisions: _Items = None
    action_items: _Items = None


class SummaryPage(Paged[SummaryOut]): ...


class TimelineWindow(answer_of(PointWindow)):
    """The window of a turn's last call. All figures are tokens."""

    regions: Regions


class TimelineEventOut(Answer):
    """An event that changed what was sent. `tokens` were removed from the prompt or recalled into it."""

    kind: Literal["summary", "later_summary", "prune", "recall", "overflow", "emergency"]
    tokens: int | None = None
    count: int | None = optional("Turns summarized, or messages pruned, recalled or dropped.")
    summary_id: UUID | None = None
    origin: str | None = None
    status: str | None = None


class TimelineTurn(answer_of(TurnPoint)):
    """A turn as a point of a plot. `window` is null if no prompt was made."""

    window: TimelineWindow | None
    events: list[TimelineEventOut]


class TimelinePage(Paged[TimelineTurn]): ...


class TimelineRangeOut(answer_of(TimelineRange)):
    """Turns `first_seq` through `last_seq` as one point of a plot. `peak` is the one with the largest prompt."""

    peak: TimelineTurn


class OverviewOut(Answer):
    items: list[TimelineRangeOut]
    next_cursor: None


_LONGEST_VARIANT_NAME = 80
_Variant = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": True}]})
]


class SimulateIn(In):
    """Policies to simulate the session's turns with. Default: a summary at each of four thresholds."""

    policies: list[_Variant] | None = optional(
        "Names of presets, or objects that override fields of the session's policy and may have a `name` "
        "for the answer.",
        min_length=1,
        max_length=8,
    )
    model_aliases: list[Name] | None = optional("Every turn is computed for each of these.", min_length=1, max_length=4)
    max_turns: int = Field(
        default=1000,
        ge=1,
        le=3000,
        description="Later turns are left out (`truncated`). The limit is lower with many policies, models or rounds.",
    )

    @field_validator("policies")
    @classmethod
    def _names_or_objects(cls, value: list[Any] | None) -> list[Any] | None:
        for policy in value or ():
            if not isinstance(policy, (str, dict)):
                raise ValueError("Each is the name of a preset or an object")  # noqa: TRY004 - Pydantic's way
            name = fields_of(policy).get("name", "")
            if not isinstance(name, str) or len(name) > _LONGEST_VARIANT_NAME:
                raise ValueError(f"A name is a text of at most {_LONGEST_VARIANT_NAME} characters")
        return value


class SimulationOut(Open):
    """Figures of each policy, of what happened and of the full history; docs/simulate.md describes them."""

    session_id: UUID
    stored_turns: int
    turns: int
    truncated: bool
    gone_aliases: list[str] = Field(description="Aliases of stored turns that the catalogue no longer has.")
    summaries_from: str
    assumed: list[str]
    happened: dict[str, Any]
    full_history: list[dict[str, Any]]
    policies: list[dict[str, Any]]
