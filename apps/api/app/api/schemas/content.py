"""A message's content, tools and tool calls in the OpenAI form. Known fields are checked, others are passed on."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Discriminator, Field, Tag

from app.api.schemas.values import FunctionName, In, NotEmpty, Open
from app.domain.types import Name


class TextPart(Open):
    type: Literal["text"]
    text: str


class ImageUrl(Open):
    url: NotEmpty
    detail: str | None = None


class ImagePart(Open):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(Open):
    data: NotEmpty
    format: str


class AudioPart(Open):
    type: Literal["input_audio"]
    input_audio: InputAudio


class FilePart(Open):
    type: Literal["file"]
    file: dict[str, Any]


ContentPartIn = Annotated[TextPart | ImagePart | AudioPart | FilePart, Field(discriminator="type")]

TEXT_TAG, PARTS_TAG = "(text)", "(parts)"
"""Tags of the two forms of `content`."""


def text_or_list(of: str) -> Discriminator:
    """Distinguishes text from a list. `of` names the items of the list in the error."""
    return Discriminator(
        lambda value: TEXT_TAG if isinstance(value, str) else PARTS_TAG if isinstance(value, list) else None,
        custom_error_type="content_type",
        custom_error_message=f"Must be text or a list of {of}",
    )


PartT = TypeVar("PartT")
TextOrParts: TypeAlias = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[PartT], Tag(PARTS_TAG)], text_or_list("parts")
]
ContentIn = TextOrParts[ContentPartIn]


class FunctionIn(Open):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(Open):
    """A tool in the OpenAI function form."""

    type: Literal["function"]
    function: FunctionIn


class Grammar(Open):
    syntax: str
    definition: str


class GrammarFormat(Open):
    type: Literal["grammar"]
    grammar: Grammar


class TextFormat(In):
    type: Literal["text"]


class CustomTool(Open):
    name: Name
    description: str | None = None
    format: Annotated[GrammarFormat | TextFormat, Field(discriminator="type")] | None = None


class ChatCustomToolIn(Open):
    """A tool whose input is text, in the form of chat completions."""

    type: Literal["custom"]
    custom: CustomTool


StoredToolIn = Annotated[ToolIn | ChatCustomToolIn, Field(discriminator="type")]


class ChosenFunction(In):
    name: Name


class ToolChoice(In):
    type: Literal["function"]
    function: ChosenFunction


class CustomToolChoice(In):
    type: Literal["custom"]
    custom: ChosenFunction


class ChosenTools(In):
    mode: Literal["auto", "required"]
    tools: list[ToolChoice | CustomToolChoice] = Field(min_length=1, max_length=128)


class AllowedToolsChoice(In):
    type: Literal["allowed_tools"]
    allowed_tools: ChosenTools


ChatToolChoice: TypeAlias = ToolChoice | CustomToolChoice | AllowedToolsChoice


class CalledFunction(In):
    name: Name
    arguments: str


class ToolCallIn(In):
    """A tool call in the OpenAI form; `arguments` is JSON text."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class StoredFunction(In):
    name: str
    arguments: str


class StoredCall(In):
    """A tool call as a model made it."""

    id: NotEmpty
    type: Literal["function"]
    function: StoredFunction
