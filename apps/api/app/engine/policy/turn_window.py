"""What a window has left for history, and whether a prompt is over it: the arithmetic of the design `turn_atomic`."""

from __future__ import annotations


def history_budget(
    *, window_tokens: int, system_tokens: int, summary_tokens: int, tools_tokens: int, max_output_tokens: int
) -> int:
    """Tokens that are left for messages beside all that is sent with them; may be negative."""
    return window_tokens - system_tokens - summary_tokens - tools_tokens - max_output_tokens


def exceeds_window(*, messages_tokens: int, tools_tokens: int, max_output_tokens: int, window_tokens: int) -> bool:
    """Whether the messages, system text and summary among them, do not fit beside the tools and the answer."""
    return messages_tokens + tools_tokens + max_output_tokens > window_tokens
