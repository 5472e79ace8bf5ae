"""What every adapter is, and the address it calls. Its errors are `app.domain.errors.ProviderError` only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from app.domain.types import Completion, CompletionRequest, Delta

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]

DeltaSink: TypeAlias = Callable[[Delta], None]
"""Gets what a streamed answer grows by: called synchronously, in order, never with an empty delta."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The vectors of texts, a row each, as finite as the model gave them; `prompt_tokens` is None where it did not say
    how many it read."""

    vectors: npt.NDArray[np.float32]
    prompt_tokens: int | None


class EmbeddingModel(Protocol):
    """A model that makes vectors of texts."""

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """A vector a text, in their order, by one call within the deadline. Raises a `ProviderError`."""
        ...


class Provider(Protocol):
    """A model with a wire protocol."""

    options: frozenset[str]
    """The `options` of a request that its protocol supports; others are left out."""

    takes_any_option: bool
    """Whether others are sent to it as well."""

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """One call, with the alias's retries and whole-call deadline; gives the whole answer.

        With `on_delta` the answer is streamed into it on the way; there is no retry after the first delta. Raises
        a `ProviderError`, whose `partial` is the text that had been streamed. A cancelled call leaves no connection
        behind.
        """
        ...

    async def count_tokens(self, request: CompletionRequest) -> int | None:
        """The prompt's exact tokens by the provider's own count, or None where it offers none.

        Called once, with its own deadline. Raises a `ProviderError` when the count fails.
        """
        ...

    async def aclose(self) -> None:
        """Gives its connections back."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One alias's address, key and manners. `label` is the alias; None is the wire protocol's own default."""

    label: str
    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_header: str | None = None
    timeout_s: float = 120.0
    max_tokens_field: MaxTokensField | None = None
    prompt_cache_key: bool | None = None
    custom_tools: bool | None = None
    pass_unknown: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def headers(self, key_header: str) -> dict[str, str]:
        """What every wire's requests carry, the key under `key_header` unless the alias names another."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",  # answers are small; decompression would cost more than it saves
            "user-agent": "plimsoll",
        }
        name = (self.api_key_header or key_header).lower()
        if self.api_key:
            headers[name] = f"Bearer {self.api_key}" if name == "authorization" else self.api_key
        return headers
