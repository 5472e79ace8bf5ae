"""What comes in and goes out in OpenAI's older form of completions, of a text instead of messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.api.schemas.chat import ChatUsage, StreamOptions
from app.api.schemas.values import In
from app.domain.types import Name

_Text = Annotated[str, StringConstraints(min_length=1)]


class CompletionIn(In):
    """A request of OpenAI's completions. A field that is not listed is refused, for it would be without effect."""

    model: Name = Field(description="An alias of the catalogue.")
    prompt: _Text | Annotated[list[_Text], Field(min_length=1, max_length=1)] = Field(
        description="The user's message of a turn; one text."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Clamped to the output reserve.")
    # Passed on to the provider.
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: int | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    # Taken at the one value that this service can give.
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Literal[0] | None = None
    suffix: Literal[""] | None = None
    # Taken without effect.
    user: str | None = None


class CompletionChoice(BaseModel):
    index: Literal[0]
    text: str
    logprobs: None
    finish_reason: Literal["stop", "length", "content_filter"]


class TextCompletion(BaseModel):
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str = Field(description="The alias that answered: a fallback's, where the requested one was down.")
    choices: list[CompletionChoice]
    usage: ChatUsage | None = None
    system_fingerprint: Any = None
