"""Which messages of a turn are sent again with their reasoning, and how many tokens that uses.

Only reasoning that is sent is counted. The choice is made once, here, before the window is planned.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.types import OPEN_STATUSES, Message, ReasoningForm, ReasoningRule, Turn

NO_REASONING = " "
"""Sent as the reasoning of a message that has none, to a server that requires the field in every message of its scope.
Moonshot treats an empty text as missing, and DeepSeek accepts both."""


def with_reasoning(turn: Turn, rule: ReasoningRule | None) -> Turn:
    """The turn with its messages marked and counted as the model's rule says they are sent back.

    Signed blocks are sent back for all calls of the loop or for none: a provider that verifies them refuses a loop in
    which one is missing.
    """
    if rule is None or (rule.scope == "tool_loop" and turn.status not in OPEN_STATUSES):
        return turn
    called = [message for message in turn.messages if message.tool_calls]
    if not called or (rule.form == "blocks" and not all(message.reasoning_blocks for message in called)):
        return turn
    return replace(turn, messages=tuple(_marked(message, rule.form) for message in turn.messages))


def _marked(message: Message, form: ReasoningForm) -> Message:
    """Messages of every role are marked, so that adjacent ones are stored as one run in an audit's references."""
    if message.role != "assistant":
        return replace(message, reasoning_sent=form)
    return replace(message, reasoning_sent=form, tokens=message.tokens + sent_reasoning_tokens(message, form))


def sent_reasoning_tokens(message: Message, form: ReasoningForm) -> int:
    """The tokens that the reasoning of an assistant message adds when it is sent back in this form."""
    if form == "blocks":
        return message.reasoning_tokens if message.reasoning_blocks else 0
    return message.reasoning_tokens if message.reasoning else 1
