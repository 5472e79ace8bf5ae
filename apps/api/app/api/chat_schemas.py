"""What comes in and goes out in OpenAI's chat form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from app.api.schemas import PARTS_TAG, TEXT_TAG, ContentIn, Open, TextPart, ToolCallIn, content_branch

CallId = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class RefusalPart(Open):
    type: Literal["refusal"]
    refusal: str


SpokenPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
TextIn = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[TextPart], Tag(PARTS_TAG)],
    Discriminator(
        content_branch, custom_error_type="content_type", custom_error_message="Must be text or a list of text parts"
    ),
]
SpokenIn = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[SpokenPart], Tag(PARTS_TAG)],
    Discriminator(
        content_branch, custom_error_type="content_type", custom_error_message="Must be text or a list of text parts"
    ),
]


class SystemMessageIn(Open):
    """Instructions. `name` is taken and not kept, here and in the other roles."""

    role: Literal["system"]
    content: TextIn


class DeveloperMessageIn(Open):
    role: Literal["developer"]
    content: TextIn


class UserMessageIn(Open):
    role: Literal["user"]
    content: ContentIn


class AssistantMessageIn(Open):
    """What a model said or called. Of members that are not named here (reasoning, audio) nothing is kept."""

    role: Literal["assistant"]
    content: SpokenIn | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallIn] | None = Field(default=None, max_length=128)
    function_call: None = Field(default=None, description="The form of 2023; send `tool_calls`.")

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessageIn:
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise ValueError("An assistant message has content or tool calls")
        return self


class ToolMessageIn(Open):
    role: Literal["tool"]
    content: ContentIn
    tool_call_id: CallId


ChatMessageIn = Annotated[
    SystemMessageIn | DeveloperMessageIn | UserMessageIn | AssistantMessageIn | ToolMessageIn,
    Field(discriminator="role"),
]
