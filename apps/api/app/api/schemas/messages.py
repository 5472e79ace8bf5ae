"""Bodies and answers in Anthropic's Messages form. `cache_control` is accepted everywhere without effect: the service
sets breakpoints where its own prompts are stable."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, StringConstraints, Tag, field_validator

from app.api.schemas.chat import CallId, ChatMetadata
from app.api.schemas.content import TextOrParts, TextPart
from app.api.schemas.values import Answer, In, NotEmpty, Open, VendorIn, in_words, optional
from app.domain.content import fields_of
from app.domain.types import MOST_EXCLUDED_TOOLS, MOST_FOCUS_CHARS, Name


class Base64Image(Open):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: NotEmpty


class UrlSource(Open):
    type: Literal["url"]
    url: NotEmpty


class ImageBlock(Open):
    type: Literal["image"]
    source: Annotated[Base64Image | UrlSource, Field(discriminator="type")]


class Base64Document(Open):
    type: Literal["base64"]
    media_type: Literal["application/pdf"]
    data: NotEmpty


class TextDocument(Open):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class ContentDocument(Open):
    type: Literal["content"]
    content: TextOrParts[Annotated[TextPart | ImageBlock, Field(discriminator="type")]]


class DocumentBlock(Open):
    type: Literal["document"]
    source: Annotated[Base64Document | TextDocument | ContentDocument, Field(discriminator="type")]
    title: str | None = None
    context: str | None = optional("What the model gets about the document, before it.")


class SearchResultBlock(Open):
    type: Literal["search_result"]
    source: str
    title: str
    content: list[TextPart]


class ToolReferenceBlock(Open):
    """A tool that an agent's own search for tools found. From then on, it has the tool in `tools`."""

    type: Literal["tool_reference"]
    tool_name: Name


ResultPart = Annotated[
    TextPart | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock, Field(discriminator="type")
]


class ToolResultBlock(Open):
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: TextOrParts[ResultPart] | None = None
    is_error: bool | None = None


class ThinkingBlock(Open):
    """Used if the session has not stored its own. Some clients send it back without what was empty in it."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class ToolUseBlock(Open):
    type: Literal["tool_use"]
    id: CallId
    name: Name
    input: dict[str, Any]


class CompactionBlock(Open):
    """Replaces the conversation up to the point where the service made it: messages before the last such block are
    ignored. A block without content has no effect."""

    type: Literal["compaction"]
    content: str | None = None
    encrypted_content: str | None = optional("A handle of session, turn and summary; not encrypted.")


UserBlock = Annotated[
    TextPart | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock, Field(discriminator="type")
]
ReplyBlock = Annotated[TextPart | ThinkingBlock | ToolUseBlock | CompactionBlock, Field(discriminator="type")]


class UserTurn(Open):
    role: Literal["user"]
    content: TextOrParts[UserBlock]


class AssistantTurn(Open):
    role: Literal["assistant"]
    content: TextOrParts[ReplyBlock]


class SystemNote(Open):
    """Stored with the adjacent user message, in a `<system-reminder>`."""

    role: Literal["system"]
    content: TextOrParts[TextPart]


MessageIn = Annotated[UserTurn | AssistantTurn | SystemNote, Field(discriminator="role")]


class MessagesTool(Open):
    """A tool that the client runs. Tools that Anthropic defines or runs are not supported."""

    type: Literal["custom"] | None = None
    name: Annotated[
        str,
        StringConstraints(
            pattern=in_words("^[A-Za-z0-9_-]{1,128}$", "Must have 1 to 128 letters of English, digits, - and _")
        ),
    ]
    description: str | None = None
    input_schema: dict[str, Any]

    @field_validator("type", mode="before")
    @classmethod
    def _is_the_clients(cls, value: Any) -> Any:
        if value not in (None, "custom"):
            raise ValueError("Anthropic defines or runs this tool; this service does not. Offer tools of your own")
        return value


class AnyTool(Open):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class ToolByName(Open):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class MessagesMetadata(ChatMetadata):
    user_id: str | None = optional("Whose request it is. Claude Code sends the id of its conversation in it.")


class ThinkingIn(Open):
    """Whether answers have thinking blocks. How much a model thinks is configured with its alias."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: str | None = optional("`omitted`: without. Clients send new ones, of which none has an effect.")


class OutputFormat(Open):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Open):
    format: OutputFormat | None = None


class InputTokens(In):
    type: Literal["input_tokens"]
    value: int = Field(ge=1000, le=2**31 - 1)


class SomeTokens(In):
    type: Literal["input_tokens"]
    value: int = Field(ge=1, le=2**31 - 1)


class SomeUses(In):
    type: Literal["tool_uses"]
    value: int = Field(ge=1, le=2**31 - 1)


class KeptUses(In):
    type: Literal["tool_uses"]
    value: int = Field(ge=0, le=2**31 - 1)


class ClearToolUsesEdit(In):
    """Replaces older tool results by a marker: the policy's `clear_tool_results` for this request."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[SomeTokens | SomeUses, Field(discriminator="type")] | None = optional(
        "Default: 100,000 input tokens."
    )
    keep: KeptUses | None = optional("Number of newest results that are kept; default 3.")
    clear_at_least: SomeTokens | None = optional("Nothing is cleared if that would save less.")
    exclude_tools: list[Name] | None = Field(default=None, max_length=MOST_EXCLUDED_TOOLS)
    clear_tool_inputs: bool | None = optional(
        "Whether the inputs of the calls are cleared too. A list of tools is refused."
    )


class ClearThinkingEdit(Open):
    """No effect: reasoning is sent in the running tool loop only."""

    type: Annotated[
        str,
        StringConstraints(
            pattern=in_words(
                "^clear_thinking_[0-9]{8}$",
                "Must be compact_20260112, clear_tool_uses_20250919, or clear_thinking_ and a date",
            )
        ),
    ]


class CompactEdit(In):
    """Summarizes at this size instead of at the policy's triggers. The summary is the answer's first block."""

    type: Literal["compact_20260112"]
    trigger: InputTokens | None = optional("Default: 150,000 input tokens.")
    instructions: str | None = optional("What the summary keeps in most detail.", max_length=MOST_FOCUS_CHARS)
    pause_after_compaction: bool | None = optional(
        "Whether a new message is answered by the summary alone, if one is due."
    )


def _edit_kind(value: object) -> str:
    kind = fields_of(value).get("type")
    kind = kind if isinstance(kind, str) else ""
    return next((name for name in ("compact", "clear_tool_uses") if kind.startswith(name)), "clear_thinking")


Edit = TypeVar("Edit", CompactEdit, ClearToolUsesEdit)
ContextEdit = Annotated[
    Annotated[CompactEdit, Tag("compact")]
    | Annotated[ClearToolUsesEdit, Tag("clear_tool_uses")]
    | Annotated[ClearThinkingEdit, Tag("clear_thinking")],
    Discriminator(_edit_kind),
]


class ContextManagement(In):
    edits: list[ContextEdit] | None = Field(default=None, max_length=8)

    def last(self, kind: type[Edit]) -> Edit | None:
        return next((edit for edit in reversed(self.edits or ()) if isinstance(edit, kind)), None)


class PromptIn(VendorIn):
    """What counts as the prompt. Fields that are not listed are refused, because they would have no effect."""

    model: Name = Field(description="An alias of the catalogue.")
    messages: list[MessageIn] = Field(
        min_length=1,
        description="The history, its newest part, or the newest message alone. Messages that the session has are "
        "not stored again.",
    )
    system: TextOrParts[TextPart] | None = optional("This turn's instructions.")
    tools: list[MessagesTool] | None = Field(default=None, max_length=512)
    tool_choice: Annotated[AnyTool | ToolByName, Field(discriminator="type")] | None = None
    thinking: ThinkingIn | None = None
    output_config: OutputConfig | None = optional("Only `format` is passed on.")
    output_format: OutputFormat | None = optional("Older name of `output_config.format`.")
    context_management: ContextManagement | None = None
    cache_control: dict[str, Any] | None = None
    thread: dict[str, Any] | None = optional(
        "Refused with details upon which clients retry without it. Sessions replace threads."
    )
    speed: str | None = optional("No effect.")


class CountIn(PromptIn):
    """A prompt to count. `max_tokens`, `stream` and `metadata` have no effect."""

    max_tokens: int | None = None
    stream: bool | None = None
    metadata: MessagesMetadata | None = None


class MessagesIn(PromptIn):
    """A request of Anthropic's Messages."""

    max_tokens: int = Field(ge=1, le=2**31 - 1, description="Clamped to the output reserve.")
    stream: bool | None = None
    metadata: MessagesMetadata | None = None
    # Passed on to the provider.
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = optional("A 400 if the model's provider does not support it.", ge=0)
    stop_sequences: list[str] | None = None
    # Accepted without effect.
    service_tier: str | None = None
    diagnostics: dict[str, Any] | None = None


class MessageUsage(Answer):
    """The provider's figures for this one call."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class TextBlockOut(Answer):
    type: Literal["text"]
    text: str


class ToolUseBlockOut(Answer):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlockOut(Answer):
    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingOut(Answer):
    type: Literal["redacted_thinking"]
    data: str


class CompactionBlockOut(Answer):
    type: Literal["compaction"]
    content: str
    encrypted_content: str


class AppliedEdit(Answer):
    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: int
    cleared_input_tokens: int


class AppliedEdits(Answer):
    applied_edits: list[AppliedEdit]


class MessageOut(Answer):
    """Anthropic's `message`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="The alias that answered: a fallback if the requested one was down.")
    content: list[
        Annotated[
            TextBlockOut | ToolUseBlockOut | ThinkingBlockOut | RedactedThinkingOut | CompactionBlockOut,
            Field(discriminator="type"),
        ]
    ]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "compaction"]
    stop_sequence: str | None
    usage: MessageUsage
    context_management: AppliedEdits | None = optional("Absent if the request has none. A compaction is in `content`.")


class TokenCountOut(Answer):
    input_tokens: int = Field(description="The whole prompt, before anything is removed.")


class MessagesErrorFields(Open):
    """Anthropic's type and message; `code` and further members are those of the service's other routes."""

    type: str
    message: str
    code: str


class MessagesErrorOut(Answer):
    type: Literal["error"]
    error: MessagesErrorFields
    request_id: str | None
