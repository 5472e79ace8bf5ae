"""Which reasoning each server wants back with later prompts, and which it refuses.

- **Anthropic**: the signed thinking blocks of the running tool loop, for a model that thinks; it ignores older ones.
- **DeepSeek** (from V3.2 on): `reasoning_content` of all that the assistant said in turns in which it called tools, in
  this request and every later one, or 400 ("The `reasoning_content` in the thinking mode must be passed back to the
  API"); of other turns it ignores it. api-docs.deepseek.com/guides/thinking_mode
- **Moonshot's Kimi**: the same field in every message that calls tools, or 400 ("thinking is enabled but
  reasoning_content is missing in assistant tool call message at index 2"); an empty text counts as missing.
- **Groq and Mistral** refuse the field with 400 ("property 'reasoning_content' is unsupported") and 422
  (`extra_forbidden`); OpenAI has no such field. Of the others little is published, and none is known to insist.
"""

from __future__ import annotations

from typing import Final

import httpx

from app.domain.types import ReasoningRule
from app.providers.catalogue_file import ModelEntry
from app.providers.wire import fields_of

_DEEPSEEK_HOST: Final = "api.deepseek.com"
_MOONSHOT_HOSTS: Final = frozenset({"api.moonshot.ai", "api.moonshot.cn"})


def reasoning_rule(listed: ModelEntry, name: str) -> ReasoningRule | None:
    """What the alias's server expects back: by the catalogue, else what is known of its host; None for nothing."""
    thinking = fields_of(listed.parameters.get("thinking"))
    is_off = thinking.get("type") == "disabled"
    if listed.provider == "anthropic":
        return ReasoningRule("blocks", "tool_loop") if thinking and not is_off else None
    if listed.return_reasoning is not None:
        return None if listed.return_reasoning == "never" else ReasoningRule("text", listed.return_reasoning)
    host = httpx.URL(listed.base_url).host if listed.base_url else ""
    insists = host == _DEEPSEEK_HOST or (host in _MOONSHOT_HOSTS and name.startswith("kimi"))
    return ReasoningRule("text", "tool_turns") if insists and not is_off else None
