"""The one protocol every adapter speaks. Errors are `app.domain.errors.ProviderError` and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from app.domain.types import Completion, CompletionRequest, Delta

DeltaSink: TypeAlias = Callable[[Delta], None]
"""Gets what a streamed answer grows by: called synchronously, in order, never with an empty delta."""


class Provider(Protocol):
    """A model behind a wire protocol."""

    is_language_model: bool
    """False for the built-in offline responder, which says so wherever it shows."""

    options: frozenset[str]
    """Which `options` of a request its wire knows; it leaves the others out."""

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Asks once, with the alias's retries and whole-call deadline, and gives the whole answer.

        With `on_delta` the answer is streamed into it on the way; nothing is asked again after the first delta. Raises
        a `ProviderError`, whose `partial` is the text that had been streamed. A cancelled call leaves no connection
        behind.
        """
        ...

    async def count_tokens(self, request: CompletionRequest) -> int | None:
        """The prompt's exact tokens by the provider's own count, or None where it offers none.

        It is asked once, with a deadline of its own. Raises a `ProviderError` when the count cannot be had now.
        """
        ...

    async def aclose(self) -> None:
        """Gives its connections back."""
        ...
