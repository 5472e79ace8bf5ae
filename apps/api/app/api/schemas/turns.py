"""Bodies that post and preview a turn; the turn as an answer, with its messages and the context and prompt of its model
calls; and the list of open turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field, model_validator

from app.api.schemas.chat import CallId
from app.api.schemas.content import ContentIn, ContentPartIn, StoredCall, TextPart, ToolCallIn, ToolChoice, ToolIn
from app.api.schemas.context import ContextOut, LayoutRow
from app.api.schemas.sessions import SessionOut
from app.api.schemas.values import In, Instant, Open, Paged, Speaker, answer_of, row_of
from app.domain.audit import Audit
from app.domain.figures import TurnChange
from app.domain.types import MessageRecord, Name, TurnRecord
from app.services.views.preview import Preview
from app.services.views.turns import SentPrompt


class RecordedReplyIn(In):
    """The assistant message of a recorded conversation, to be answered by the offline model as it stands."""

    content: str | None = None
    tool_calls: list[ToolCallIn] = Field(default_factory=list[ToolCallIn], max_length=128)

    @model_validator(mode="after")
    def _has_content_or_calls(self) -> RecordedReplyIn:
        if not self.content and not self.tool_calls:
            raise ValueError("A recorded reply has content or tool calls")
        return self


class _OptionsIn(In):
    """How a user's message is to be answered."""

    tools: list[ToolIn] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Clamped to the output reserve."
    )
    model_alias: Name | None = Field(default=None, description="Another alias for this turn only.")
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    policy: dict[str, Any] | None = Field(
        default=None, description="Overrides over the session's policy, for this turn alone, its tool rounds included."
    )
    recorded_reply: RecordedReplyIn | None = Field(
        default=None, description="Only for a model of the provider `offline`."
    )


def _not_blank(value: str | list[Any] | None) -> str | list[Any] | None:
    blank = (
        not value.strip()
        if isinstance(value, str)
        else value is not None and all(isinstance(part, TextPart) and not part.text.strip() for part in value)
    )
    if blank:
        raise ValueError("The content is empty")
    return value


class TurnIn(_OptionsIn):
    """A user's message and how to answer it."""

    content: Annotated[ContentIn, AfterValidator(_not_blank)] = Field(
        description="Text, or parts in the OpenAI form: `text`, `image_url`, `input_audio`, `file`. Not blank."
    )
    name: Speaker | None = Field(default=None, description="Who of several people in the session speaks.")
    said_at: Instant | None = Field(default=None, description="When it was said, where that is not now.")


class RegenerateIn(_OptionsIn):
    """What is to be different when the last turn is run again; what is absent is as it was then."""

    content: Annotated[ContentIn | None, AfterValidator(_not_blank)] = Field(
        default=None, description="Another message in place of the user's; the same one when absent."
    )
    model_alias: Name | None = Field(default=None, description="Another alias; that of the turn when absent.")


class ToolOutputIn(In):
    """What a tool answered to one call."""

    tool_call_id: CallId
    content: str | list[ContentPartIn]


class ToolOutputsIn(In):
    """The answers to all open tool calls of a turn."""

    outputs: list[ToolOutputIn] = Field(min_length=1, max_length=256)
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    recorded_reply: RecordedReplyIn | None = Field(
        default=None, description="Only for a model of the provider `offline`."
    )


class TurnOut(answer_of(TurnRecord)):
    """A turn. `error` is the problem it ended with; token figures are the provider's."""

    tool_calls: list[StoredCall]
    cost_usd: float | None = Field(description="Of all its calls, summaries included; null where no price is known.")


class ListedTurnOut(TurnOut):
    """A turn, with who posted its message and when that was said."""

    name: str | None = Field(description="Who of several people spoke, where that is known.")
    said_at: Instant = Field(description="When the message was said, if the client stated it, else `created_at`.")


class TurnAnswer(BaseModel):
    turn: TurnOut
    context: ContextOut


class RegeneratedAnswer(TurnAnswer):
    """The turn that was run again, in the session that was made for it."""

    session: SessionOut


class TurnPage(Paged[ListedTurnOut]): ...


class AuditFields(row_of(Audit, ContextOut, without=("session_id", "prompt_refs"))):
    """The context of one model call of a turn, as it is stored."""

    created_at: Instant


class AuditOut(AuditFields):
    """The context of one model call of a turn, as it is stored."""

    session_id: UUID


class PromptOut(answer_of(SentPrompt, Open)):
    """What was sent, rebuilt from stored rows."""

    layout: list[LayoutRow] = Field(description="One for each message.")


class PreviewIn(TurnIn):
    """A turn's body, as it would be posted. `stream` and `recorded_reply` change nothing."""


class PreviewOut(answer_of(Preview)):
    """What the next turn would have. `messages` and `tools` are empty where it would be refused."""

    context: ContextOut
    layout: list[LayoutRow] = Field(description="One for each message.")


class StoredMessageOut(answer_of(MessageRecord)):
    """A message as it is stored; `token_estimate` is in `token_encoding`."""

    tool_calls: list[StoredCall] | None


class MessagePage(Paged[StoredMessageOut]): ...


class OpenTurns(BaseModel):
    items: list[TurnChange]
    next_cursor: None = None
