"""The one protocol every adapter speaks. Errors are `app.domain.errors.ProviderError` and nothing else."""

from __future__ import annotations

from typing import Protocol

from app.domain.types import Completion, CompletionRequest


class Provider(Protocol):
    """A model behind a wire protocol."""

    is_language_model: bool
    """False for the built-in offline responder, which says so wherever it shows."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """Asks once, with the alias's retries and whole-call deadline.

        Raises a `ProviderError`. A cancelled call leaves no connection behind.
        """
        ...

    async def aclose(self) -> None:
        """Gives its connections back."""
        ...
