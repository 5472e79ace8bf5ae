"""Where and how one alias is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]


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
