"""Bodies and answers in OpenAI's Responses form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from app.api.schemas.chat import PlainFormat
from app.api.schemas.content import PARTS_TAG, TEXT_TAG, FunctionIn, text_or_list
from app.api.schemas.items import HOSTED_TOOLS, LEFT_OUT_TOOLS, ItemIn, ItemOut, MetadataIn
from app.api.schemas.values import Answer, FunctionName, In, Open, OutputTokens, VendorIn, optional
from app.domain.content import fields_of
from app.domain.types import Name

InputIn = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[ItemIn], Field(min_length=1), Tag(PARTS_TAG)], text_or_list("items")
]


class CustomFormat(Open):
    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class FunctionToolIn(FunctionIn):
    type: Literal["function"]
    strict: bool | None = None


class CustomToolIn(Open):
    """A tool of the client whose input is text. Providers without such tools get a function with one argument."""

    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class LocalShellIn(Open):
    """A shell of the client. Models see the function `local_shell`."""

    type: Literal["local_shell"]


class NamespaceIn(Open):
    """A group of the client's tools. Models get each of them under a name that begins with the group's."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: list[Annotated[FunctionToolIn | CustomToolIn, Field(discriminator="type")]] = Field(
        min_length=1, max_length=128
    )


class HostedToolIn(Open):
    """A tool that OpenAI runs. A search of the web and image generation are left out beside tools of the client."""

    type: str

    @model_validator(mode="after")
    def _refused(self) -> HostedToolIn:
        if self.type not in LEFT_OUT_TOOLS:
            raise ValueError(hosted_tool(self.type))
        return self


def hosted_tool(kind: str) -> str:
    """Why a tool of this type is refused."""
    known = kind if kind in HOSTED_TOOLS else "a tool of this type"
    return f"OpenAI hosts {known}; this service runs no tools. Offer functions or custom tools"


def _tool_kind(value: object) -> str | None:
    kind = fields_of(value).get("type")
    return None if not isinstance(kind, str) else kind if kind in _CLIENT_TOOLS else "hosted"


_CLIENT_TOOLS = ("function", "custom", "local_shell", "namespace")


ResponseToolIn = Annotated[
    Annotated[FunctionToolIn, Tag("function")]
    | Annotated[CustomToolIn, Tag("custom")]
    | Annotated[LocalShellIn, Tag("local_shell")]
    | Annotated[NamespaceIn, Tag("namespace")]
    | Annotated[HostedToolIn, Tag("hosted")],
    Discriminator(_tool_kind, custom_error_type="tool_type", custom_error_message="Must be a tool of the client's"),
]


class NamedTool(Open):
    type: Literal["function", "custom"]
    name: Name


class AllowedTools(Open):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=128)


class SchemaFormat(Open):
    type: Literal["json_schema"]
    name: FunctionName
    schema_: dict[str, Any] = Field(alias="schema")


class TextConfig(Open):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Name | None = None


class ReasoningConfig(Open):
    effort: Name | None = None
    summary: Name | None = optional("Without effect: reasoning is returned as received.")


class ConversationRef(Open):
    id: str


class CompactAt(In):
    type: Literal["compaction"]
    compact_threshold: int | None = optional(
        "Input tokens at which a summary is made, in place of the policy's triggers.", ge=1000, le=2**31 - 1
    )


class ResponseIn(VendorIn):
    """A request of OpenAI's Responses. Fields that are not listed are refused, because they would have no effect."""

    model: Name | None = optional("An alias of the catalogue; if absent, its default.")
    input: InputIn = Field(
        description="The user's text, or items. A history that the conversation has is not stored again."
    )
    instructions: str | None = optional("For this response only; later ones do not inherit them.")
    conversation: str | ConversationRef | None = optional("The conversation to continue.")
    previous_response_id: str | None = optional("The response to continue from.")
    store: bool | None = optional("If false, the response cannot be fetched later.")
    stream: bool | None = None
    background: bool | None = optional("Return at once; poll the response until it has ended.")
    truncation: Literal["auto", "disabled"] | None = optional(
        "`auto` (default) reduces the prompt to the budget by the policy; `disabled` refuses instead."
    )
    context_management: list[CompactAt] | None = optional(
        "A summary made for this response is its first item.", max_length=1
    )
    tools: list[ResponseToolIn] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    max_output_tokens: OutputTokens = None
    metadata: MetadataIn | None = None
    # Passed on to the provider.
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Name | None = None
    # Accepted with the one value that this service can offer.
    top_logprobs: Literal[0] | None = None
    user: str | None = optional("Whose request it is. Lists of different people never continue the same session.")
    safety_identifier: str | None = None
    prompt_cache_key: str | None = optional("The key of the provider's prompt cache, for a session that it begins.")
    # Accepted without effect.
    include: list[str] | None = None
    max_tool_calls: int | None = None
    client_metadata: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class InputTokensIn(ResponseIn):
    """A request of which the prompt is counted; its fields are those of a response."""

    input: InputIn | None = optional("The user's text, or items.")  # type: ignore[assignment]
    personality: str | None = optional("Without effect.")


class InputTokensOut(Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int = Field(description="The whole prompt, before anything is removed.")


class ResponseUsageOut(Answer):
    """The provider's figures for this one call."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseOut(Open):
    """OpenAI's `response`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str = Field(description="The alias that answered: a fallback if the requested one was down.")
    output: list[ItemOut]
    usage: ResponseUsageOut | None


class CompactIn(VendorIn):
    """A conversation to summarize now: a list, the conversation up to a previous response, or both."""

    model: Name | None = optional("An alias of the catalogue; if absent, its default.")
    input: InputIn | None = optional("As for a response. New items are stored but not answered.")
    previous_response_id: str | None = optional("The response to continue from.")
    instructions: str | None = optional("Also used to recognize a resent history.")
    prompt_cache_key: str | None = optional("The key of the provider's prompt cache, for a session that it begins.")
    # Accepted without effect.
    image: dict[str, Any] | None = None
    service_tier: Name | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class CompactionOut(Answer):
    """OpenAI's `response.compaction`. Begin the next `input` with its `output`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ItemOut]
    usage: ResponseUsageOut = Field(description="Usage of the summarizer; zeros if it was not called.")
