"""A model's reply in Anthropic's form: its content blocks, why it stopped, and what it used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.domain.compaction import Compaction
from app.domain.content import call_input
from app.domain.trim_log import CLEARED
from app.domain.types import JsonObject, ToolCall, Usage

_STOP_REASONS: Final[Mapping[str, str]] = {"length": "max_tokens", "content_filter": "refusal"}


def thinking_blocks(reasoning: str | None, blocks: Sequence[JsonObject]) -> list[JsonObject]:
    """The provider's signed blocks, or its reasoning in the same form with an empty signature."""
    if blocks or not reasoning:
        return list(blocks)
    return [{"type": "thinking", "thinking": reasoning, "signature": ""}]


def reply_blocks(text: str | None, calls: Sequence[ToolCall]) -> list[JsonObject]:
    """Text and calls. A reply of neither has one empty text: clients read the first block."""
    texts: list[JsonObject] = [{"type": "text", "text": text or ""}] if text or not calls else []
    return texts + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call_input(call.arguments)} for call in calls
    ]


def compaction_block(compaction: Compaction, text: str) -> JsonObject:
    """What stands for the messages before it, with the summary as a model is shown it."""
    return {"type": "compaction", "content": text, "encrypted_content": compaction.handle}


def applied_edits(context: JsonObject) -> list[JsonObject]:
    """What was cleared from a turn's prompt, as the edit that asked for it; none where nothing was."""
    actions: list[JsonObject] = context.get("context_trim_log", {}).get("actions", [])
    cleared = [action for action in actions if action["reason"] == CLEARED]
    if not cleared:
        return []
    uses = sum(action.get("count", 1) for action in cleared if action["kind"] == "tool_result_shortened")
    tokens = sum(action["tokens_removed_est"] for action in cleared)
    return [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": uses, "cleared_input_tokens": tokens}]


def stop_reason(finish_reason: str | None, calls: Sequence[ToolCall]) -> str:
    """Why the model stopped. Which of the stop sequences it met is not known."""
    return "tool_use" if calls else _STOP_REASONS.get(finish_reason or "", "end_turn")


def usage_json(usage: Usage | None, estimated_tokens: int) -> JsonObject:
    """The provider's figures; where it reports none, the estimate of the prompt. `input_tokens` excludes what the
    provider's cache had a part in."""
    used = usage or Usage(estimated_tokens, 0)
    return {
        "input_tokens": max(0, used.prompt_tokens - used.cached_prompt_tokens - used.cache_write_prompt_tokens),
        "cache_creation_input_tokens": used.cache_write_prompt_tokens,
        "cache_read_input_tokens": used.cached_prompt_tokens,
        "output_tokens": used.completion_tokens,
    }
