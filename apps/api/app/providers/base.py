"""The protocols of provider adapters and their endpoint. Adapters raise only `app.domain.errors.ProviderError`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from app.domain.content import fields_of
from app.domain.frozen import frozen
from app.domain.types import Completion, CompletionRequest, Delta, JsonObject, Usage
from app.providers.catalogue_file import ModelEntry

DeltaSink: TypeAlias = Callable[[Delta], None]
"""Receives each new part of a streamed answer: called synchronously, in order, never with an empty delta."""


@frozen(eq=False)
class Embedded:
    """The vectors of texts, one row for each text. Values are as the model returned them and may not be finite.
    `prompt_tokens` is None where the model did not report how many tokens it read."""

    vectors: npt.NDArray[np.float32]
    prompt_tokens: int | None


class CallCancelled(asyncio.CancelledError):
    """A call was cancelled. `usages` is as in `ProviderError`."""

    def __init__(self, usages: tuple[Usage, ...]) -> None:
        super().__init__()
        self.usages = usages


class EmbeddingModel(Protocol):
    """A model that makes vectors of texts."""

    @property
    def vector_space(self) -> str:
        """A name for what makes its vectors comparable: the model, with the parameters that it is called with."""
        ...

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """One vector for each text, in the same order, by one call within the deadline. Raises a `ProviderError`."""
        ...


class Provider(Protocol):
    """A model with a wire protocol."""

    options: frozenset[str] = frozenset()
    """The `options` of a request that its protocol supports; others are left out."""

    response_formats: frozenset[str] = frozenset({"json_object", "json_schema"})
    """The types of the option `response_format` that its protocol has."""

    takes_any_option: bool = False
    """Whether options that are not in `options` are sent as well."""

    def supported(self, options: Mapping[str, Any]) -> JsonObject:
        """Those of a request's options that its protocol supports."""
        known = options if self.takes_any_option else self.options & options.keys()
        is_formed = fields_of(options.get("response_format")).get("type") in self.response_formats
        return {name: options[name] for name in known if name != "response_format" or is_formed}

    @property
    def reasons_beside_tools(self) -> bool:
        """False once its server has refused tools in a request with reasoning."""
        return True

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Calls the model with the alias's retries and whole-call deadline, and returns the whole answer.

        With `on_delta` the answer is also streamed to it as it arrives; there is no retry after the first delta.
        Raises a `ProviderError`, whose `partial` is the text that had been streamed. A cancelled call leaves no
        connection open; that of a remote model raises `CallCancelled`.
        """
        ...

    async def count_tokens(self, request: CompletionRequest) -> int | None:  # noqa: ARG002 - for those that can count
        """The exact number of tokens in the prompt as the provider counts them, or None if it offers no count.

        Makes one call, with its own deadline. Raises a `ProviderError` when the count fails.
        """
        return None

    async def aclose(self) -> None:
        """Closes its connections, if it has any."""


@frozen
class Endpoint:
    """One alias: its name, its entry in the catalogue, its key, and how much of its connections one tenant may use."""

    label: str
    entry: ModelEntry
    api_key: str | None = field(default=None, repr=False)
    tenant_ratio: float = 1.0

    def headers(self, key_header: str) -> dict[str, str]:
        """The headers of every request. The key is in `key_header` unless the alias names another header."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",  # answers are small; decompression would cost more than it saves
            "user-agent": "plimsoll",
        }
        name = (self.entry.api_key_header or key_header).lower()
        if self.api_key:
            headers[name] = f"Bearer {self.api_key}" if name == "authorization" else self.api_key
        return headers
