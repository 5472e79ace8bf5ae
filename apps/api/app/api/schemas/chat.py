"""Bodies and answers in OpenAI's chat form, and in the older form of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from app.api.schemas.content import ChatToolChoice, ContentIn, StoredToolIn, TextOrParts, TextPart, ToolCallIn
from app.api.schemas.values import (
    Answer,
    FunctionName,
    In,
    Instant,
    NotEmpty,
    Open,
    OutputTokens,
    Speaker,
    VendorIn,
    optional,
)
from app.domain.types import Name

CallId = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class RefusalPart(Open):
    type: Literal["refusal"]
    refusal: str


ReplyPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


class ResentFunction(Open):
    name: Name
    arguments: str


class ResentCall(Open):
    """A tool call as clients send it back. It may have further members, such as the `index` of a streamed call."""

    id: CallId
    type: Literal["function"] = "function"
    function: ResentFunction


class CustomInput(Open):
    name: Name
    input: str


class CustomCall(Open):
    """A call of a custom tool."""

    id: CallId
    type: Literal["custom"]
    custom: CustomInput


class SystemMessageIn(Open):
    """Instructions. `name` is accepted and ignored, as in tool messages, where it is the function's name."""

    role: Literal["system", "developer"]
    content: TextOrParts[TextPart]


class _SpokenIn(Open):
    name: Speaker | None = optional("Speaker, where there are several people or agents.")
    said_at: Instant | None = optional("When it was said; defaults to now. OpenAI has no such field.")


class UserMessageIn(_SpokenIn):
    role: Literal["user"]
    content: ContentIn


class AssistantMessageIn(_SpokenIn):
    """A reply of a model, or its tool calls. Members that are not listed (reasoning, audio) are ignored."""

    role: Literal["assistant"]
    content: TextOrParts[ReplyPart] | None = None
    refusal: str | None = None
    tool_calls: list[ResentCall | CustomCall] | None = Field(default=None, max_length=128)
    function_call: None = optional("Obsolete; send `tool_calls`.")

    @model_validator(mode="after")
    def _has_content_or_calls(self) -> AssistantMessageIn:
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise ValueError("An assistant message has content or tool calls")
        return self


class ToolMessageIn(Open):
    role: Literal["tool"]
    content: ContentIn
    tool_call_id: CallId
    said_at: Instant | None = None


ChatMessageIn = Annotated[
    SystemMessageIn | UserMessageIn | AssistantMessageIn | ToolMessageIn,
    Field(discriminator="role"),
]


class PlainFormat(Open):
    type: Literal["text", "json_object"]


class JsonSchema(Open):
    name: FunctionName
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class JsonSchemaFormat(Open):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class SamplingIn(In):
    """How the model chooses its words. Passed on to the provider."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: str | list[str] | None = optional("At most four strings.")
    seed: int | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None

    @field_validator("stop")
    @classmethod
    def _at_most_four(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > 4:
            raise ValueError("At most four texts")
        return value


class ModelOptionsIn(SamplingIn):
    """Options of a model call, by their names in chat completions. Passed on to the provider."""

    response_format: Annotated[PlainFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None
    service_tier: Name | None = None
    top_k: int | None = optional("This and the next three fields are those of vLLM and other servers.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    chat_template_kwargs: dict[str, Any] | None = None


class StreamOptions(Open):
    include_usage: bool | None = None


class ChatMetadata(Open):
    session_id: str | None = optional("Like the header `X-Session-Id`. Other members are ignored.")


class ChatIn(VendorIn, ModelOptionsIn):
    """A request of OpenAI's chat completions.

    Fields that are not listed are sent to the provider if the alias has `pass_unknown`. Else they are refused, because
    they would have no effect.
    """

    model_config = ConfigDict(extra="allow")

    model: Name = Field(description="An alias of the catalogue.")
    messages: list[ChatMessageIn] = Field(
        min_length=1,
        description="The history, its newest part, or the newest message alone. Messages that the session has are "
        "not stored again. System and developer messages are instructions for this turn.",
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[StoredToolIn] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    max_completion_tokens: OutputTokens = None
    max_tokens: int | None = optional("Older name of `max_completion_tokens`.", ge=1, le=2**31 - 1)
    metadata: ChatMetadata | None = None
    # Accepted with the one value that this service can offer.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    modalities: list[Literal["text"]] | None = None
    user: str | None = optional("Whose request it is. Lists of different people never continue the same session.")
    safety_identifier: str | None = None
    prompt_cache_key: str | None = optional("The key of the provider's prompt cache, for a session that it begins.")
    # Accepted without effect.
    store: bool | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None


class ChatUsage(Answer):
    """The provider's figures for this one call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatReply(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallIn | CustomCall] | None = None
    reasoning_content: str | None = optional("The model's reasoning; absent if it gave none.")


class ChatChoice(Answer):
    index: Literal[0]
    message: ChatReply
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class ChatCompletion(Answer):
    """OpenAI's `chat.completion`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str = Field(description="The alias that answered: a fallback if the requested one was down.")
    choices: list[ChatChoice]
    usage: ChatUsage | None = None


class CompletionIn(VendorIn, SamplingIn):
    """A request of OpenAI's completions. Fields that are not listed are refused, because they would have no effect."""

    model: Name = Field(description="An alias of the catalogue.")
    prompt: NotEmpty | Annotated[list[NotEmpty], Field(min_length=1, max_length=1)] = Field(
        description="The user's message; one string."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputTokens = None
    # Accepted with the one value that this service can offer.
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Literal[0] | None = None
    suffix: Literal[""] | None = None
    # Accepted without effect.
    user: str | None = None


class CompletionChoice(Answer):
    index: Literal[0]
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length", "content_filter"]


class TextCompletion(Answer):
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str = Field(description="The alias that answered: a fallback if the requested one was down.")
    choices: list[CompletionChoice]
    usage: ChatUsage | None = None
    system_fingerprint: Any = None


class ChatError(Open):
    """OpenAI's error. If OpenAI has no code for it, `code` is that of the service's other routes."""

    message: str
    type: str
    param: str | None
    code: str


class ChatErrorOut(Answer):
    error: ChatError
