"""Bodies that post and preview a turn; the turn as an answer, with its messages and the context and prompt of its model
calls; and the list of open turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from app.api.schemas.chat import CallId, ModelOptionsIn
from app.api.schemas.content import ContentIn, ContentPartIn, StoredCall, TextPart, ToolCallIn, ToolChoice, ToolIn
from app.api.schemas.context import ContextOut, LayoutRow
from app.api.schemas.sessions import SessionOut
from app.api.schemas.values import Answer, In, Instant, Open, OutputTokens, Paged, Speaker, answer_of, optional, row_of
from app.domain.audit import Audit
from app.domain.figures import TurnChange
from app.domain.stored import MessageRecord
from app.domain.types import Name, TurnRecord
from app.services.views.preview import Preview
from app.services.views.turns import SentPrompt


class RecordedReplyIn(In):
    """The assistant message of a recorded conversation, which the offline model returns unchanged."""

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
    max_output_tokens: OutputTokens = None
    instructions: str | None = optional("The last system layer, in this turn's prompts only.")
    options: ModelOptionsIn | None = optional("Passed on to the provider, as those of chat completions.")
    model_alias: Name | None = optional("Alias for this turn only.")
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    policy: dict[str, Any] | None = optional(
        "Overrides of the session's policy for this turn only, including its tool rounds."
    )
    recorded_reply: RecordedReplyIn | None = optional("Only for models of the provider `offline`.")


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
    name: Speaker | None = optional("Speaker, where a session has several people.")
    said_at: Instant | None = optional("When it was said; defaults to now.")


class RegenerateIn(_OptionsIn):
    """What changes when the last turn is run again. Absent fields keep the turn's values."""

    content: Annotated[ContentIn | None, AfterValidator(_not_blank)] = optional(
        "Replaces the user's message, whose speaker and time stay; defaults to the same one."
    )
    model_alias: Name | None = optional("Replaces the alias; defaults to the turn's.")


class ToolOutputIn(In):
    """The output of a tool for one call."""

    tool_call_id: CallId
    content: str | list[ContentPartIn]


class ToolOutputsIn(In):
    """The outputs of all open tool calls of a turn."""

    outputs: list[ToolOutputIn] = Field(min_length=1, max_length=256)
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    recorded_reply: RecordedReplyIn | None = optional("Only for models of the provider `offline`.")


class TurnOut(answer_of(TurnRecord)):
    """A turn. `error` is the error that it ended with; token counts are the provider's."""

    tool_calls: list[StoredCall]
    cost_usd: float | None = Field(description="Of its calls, including summaries, as far as known; null if none is.")


class ListedTurnOut(TurnOut):
    """A turn, with the speaker and the time of its user message."""

    name: str | None = Field(description="Speaker, if known.")
    said_at: Instant = Field(description="When the message was said; `created_at` if the client did not state it.")


class TurnAnswer(Answer):
    turn: TurnOut
    context: ContextOut


class RegeneratedAnswer(TurnAnswer):
    """The turn that was run again, and the fork that it is in."""

    session: SessionOut


class TurnPage(Paged[ListedTurnOut]): ...


class AuditOut(row_of(Audit, ContextOut, without=("prompt_refs",))):
    """The context of one model call of a turn, as it is stored."""

    created_at: Instant


class PromptOut(answer_of(SentPrompt, Open)):
    """The prompt that was sent, rebuilt from stored rows."""

    layout: list[LayoutRow] = Field(description="One row per message.")


class PreviewIn(TurnIn):
    """The body of a turn. `stream` and `recorded_reply` have no effect."""


class PreviewOut(answer_of(Preview)):
    """What the next turn would send. `messages` and `tools` are empty if it would be refused."""

    context: ContextOut
    layout: list[LayoutRow] = Field(description="One row per message.")


class StoredMessageOut(answer_of(MessageRecord)):
    """A message as it is stored; `token_estimate` is in `token_encoding`."""

    tool_calls: list[StoredCall] | None


class MessagePage(Paged[StoredMessageOut]): ...


class OpenTurns(Answer):
    items: list[TurnChange]
    next_cursor: None = None
