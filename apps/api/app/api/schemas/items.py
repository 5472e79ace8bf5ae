"""Items of OpenAI's Responses and Conversations, in bodies and in answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from app.api.schemas.chat import CallId, RefusalPart
from app.api.schemas.content import AudioPart, TextOrParts
from app.api.schemas.values import Answer, In, NotEmpty, Open
from app.domain.types import Name
from app.openai.items import kind_of
from app.services.openai.conversations import MOST_NEW_ITEMS


class TextPartIn(Open):
    type: Literal["input_text", "output_text", "text", "summary_text"]
    text: str


class _SentPart(Open):
    """A part that the client sends whole."""

    @model_validator(mode="before")
    @classmethod
    def _is_sent(cls, part: dict[str, Any]) -> dict[str, Any]:
        is_sent = part.get("image_url") is not None or part.get("file_data") is not None
        for name in ("file_id", "file_url"):
            if part.get(name) is not None and not is_sent:
                raise ValueError(f"There are no uploaded files, and none are fetched: send a data URL, not {name}")
        return part


class ImagePartIn(_SentPart):
    """A picture by URL or as a data URL."""

    type: Literal["input_image"]
    image_url: NotEmpty = Field(description="`https://…` or `data:…`. Uploaded files are not supported.")
    detail: str | None = None


class FilePartIn(_SentPart):
    """A file, by its content. This service does not fetch URLs."""

    type: Literal["input_file"]
    file_data: NotEmpty = Field(description="A data URL. Uploaded files and other URLs are not supported.")
    filename: str | None = None


PartIn = Annotated[TextPartIn | ImagePartIn | FilePartIn | AudioPart | RefusalPart, Field(discriminator="type")]


class MessageItemIn(Open):
    """A message. System and developer messages become the conversation's instructions."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts[PartIn]


class FunctionCallIn(Open):
    type: Literal["function_call"]
    call_id: CallId
    name: Name
    namespace: Name | None = None
    arguments: str


class CallOutputIn(Open):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: TextOrParts[PartIn]


class CustomToolCallIn(Open):
    type: Literal["custom_tool_call"]
    call_id: CallId
    name: Name
    namespace: Name | None = None
    input: str


class LocalShellCallIn(Open):
    type: Literal["local_shell_call"]
    call_id: CallId
    action: dict[str, Any]


class LocalShellOutputIn(Open):
    """`id` and, if sent, `call_id` are the call's."""

    type: Literal["local_shell_call_output"]
    id: CallId
    call_id: CallId | None = None
    output: str


class ReasoningPartIn(Open):
    text: str | None = None


class ReasoningIn(Open):
    """Reasoning that a client sends back. Used if the session has not stored its own."""

    type: Literal["reasoning"]
    content: TextOrParts[ReasoningPartIn] | None = None
    encrypted_content: str | None = None


class CompactionIn(Open):
    """Replaces the conversation up to the point where the service made it. Items before the last one are ignored."""

    type: Literal["compaction"]
    encrypted_content: str = Field(description="As received: a handle of session, turn and summary; not encrypted.")


class ItemReferenceIn(Open):
    """An item of an earlier answer, by its id."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class HostedItemIn(Open):
    """An item of a tool that OpenAI runs."""

    type: str

    @model_validator(mode="after")
    def _refused(self) -> HostedItemIn:
        found = _OF_A_TOOL.fullmatch(self.type)
        known = self.type if found and found[1] in HOSTED_TOOLS else "this type"
        raise ValueError(f"Items of {known} are of tools that OpenAI hosts; this service runs none")


LEFT_OUT_TOOLS = frozenset(
    {
        "image_generation",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Hosted tools that agents such as Codex offer beside their own, whatever the server is."""

HOSTED_TOOLS = LEFT_OUT_TOOLS | {
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "mcp",
    "shell",
    "tool_search",
}

_OF_A_TOOL = re.compile("(.+?)_(?:call|output|call_output|approval_request|approval_response|list_tools)")


def _item_kind(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = kind_of(cast("dict[str, Any]", value))
    return kind if kind in _ITEM_TAGS else "hosted" if isinstance(kind, str) else None


ItemIn = Annotated[
    Annotated[MessageItemIn, Tag("message")]
    | Annotated[FunctionCallIn, Tag("function_call")]
    | Annotated[CallOutputIn, Tag("function_call_output")]
    | Annotated[CustomToolCallIn, Tag("custom_tool_call")]
    | Annotated[CallOutputIn, Tag("custom_tool_call_output")]
    | Annotated[LocalShellCallIn, Tag("local_shell_call")]
    | Annotated[LocalShellOutputIn, Tag("local_shell_call_output")]
    | Annotated[ReasoningIn, Tag("reasoning")]
    | Annotated[CompactionIn, Tag("compaction")]
    | Annotated[ItemReferenceIn, Tag("item_reference")]
    | Annotated[HostedItemIn, Tag("hosted")],
    Discriminator(_item_kind, custom_error_type="item_type", custom_error_message="Must be an item"),
]

_ITEM_TAGS = tuple(get_args(branch)[1].tag for branch in get_args(get_args(ItemIn)[0]))

_MOST_PAIRS = 16

MetadataIn = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=_MOST_PAIRS),
]


class ItemOut(Open):
    """A message, a tool call, its output, reasoning, or a compaction."""

    id: str
    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "local_shell_call",
        "reasoning",
        "compaction",
    ]


class ItemListOut(Answer):
    object: Literal["list"]
    data: list[ItemOut]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedOut(Answer):
    id: str
    object: Literal["response", "conversation.deleted"]
    deleted: Literal[True]


class ConversationIn(In):
    metadata: MetadataIn | None = None
    items: list[ItemIn] | None = Field(default=None, max_length=MOST_NEW_ITEMS)


class ConversationPatch(In):
    metadata: MetadataIn | None = Field(description="Replaced as a whole; null removes it.")


class ItemsIn(In):
    items: list[ItemIn] = Field(min_length=1, max_length=MOST_NEW_ITEMS)


class ConversationOut(Answer):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, Any]
